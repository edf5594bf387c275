"""What a run or ``score`` wrote, read back: its results files and the samples beside them.

Nothing is computed here. The harness's values stay as they stand in its files; a document is what
its samples line says.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from custom_metrics.errors import DataError

_NAN = float("nan")
_FILTER = ",none"  # the harness writes "metric,filter"
_NAME = re.compile(r"results_(?P<stamp>.+)\.json")

PRBENCH, PLAWBENCH = "prbench", "plawbench"
PRIMARY = {PRBENCH: "clipped_score", PLAWBENCH: "acc"}
"""The metric of each benchmark that its headline is made of."""

AXES = {
    PRBENCH: ("topic", "expert", "turns", "economic_pathway", "decision_type", "field"),
    PLAWBENCH: ("subset", "category"),
}
"""What documents are described by; ``turns`` is the number of user turns."""


@dataclass(frozen=True)
class Graded:
    """A criterion and its verdict; PLawBench's are the sections of its rubric, or its ``total``.

    ``met`` is the share of ``weight`` that was awarded: 0 or 1 for a yes or no, between them for
    points, None without a verdict or with nothing to award. ``votes`` are the opinions behind it
    where several were asked for, each with ``judge``, ``repeat``, ``met``, ``explanation`` and
    ``failure``. ``breakdown`` is the judge's own list of a section's points.
    """

    id: str
    text: str
    weight: float
    category: str
    met: float | None
    explanation: str | None = None
    failure: str | None = None
    contradicts: bool = False
    votes: tuple[Mapping[str, Any], ...] = ()
    breakdown: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Answered:
    """One answer of the model: its text as it was graded, and what the judge made of it.

    ``status`` is ``answered``, ``empty`` or ``cut_in_reasoning``; the judge sees only the first.
    ``remark`` is the judge's text on the answer as a whole, where it writes one.
    """

    text: str
    status: str
    criteria: tuple[Graded, ...]
    remark: str | None = None

    @property
    def empty(self) -> bool:
        return self.status != "answered"


@dataclass(frozen=True)
class Document:
    """One document of a task. ``scores`` are its metrics, NaN where it has no value; ``hash`` is
    the harness's, of what the document was before it was answered."""

    benchmark: str
    task: str
    id: str
    hash: str
    scores: Mapping[str, float]
    axes: Mapping[str, str]
    messages: tuple[Mapping[str, str], ...]
    answers: tuple[Answered, ...]

    @property
    def score(self) -> float:
        """The document's share of the headline score; NaN if it has none."""
        return self.scores.get(PRIMARY[self.benchmark], _NAN)

    @property
    def excluded(self) -> bool:
        """Whether a criterion without a verdict keeps it out of the means."""
        return self.scores.get("judge_coverage") == 0

    @property
    def empty(self) -> bool:
        return self.answers[0].empty

    # Of the first answer; most runs have one.

    @property
    def answer(self) -> str:
        return self.answers[0].text

    @property
    def status(self) -> str:
        return self.answers[0].status

    @property
    def criteria(self) -> tuple[Graded, ...]:
        return self.answers[0].criteria

    @property
    def remark(self) -> str | None:
        return self.answers[0].remark


@dataclass(frozen=True)
class Provenance:
    """What the numbers of a task depend on besides the model. Hashes are SHA-256."""

    judge: Mapping[str, Any]
    judge_prompt: Mapping[str, str]
    task_prompt: Mapping[str, str]
    data: str
    version: str

    @property
    def judge_name(self) -> str:
        """The judge model, or the kind of judge that has none."""
        for name in ("model", "judge_model", "backend"):
            if self.judge.get(name):
                return str(self.judge[name])
        return "unknown"


@dataclass(frozen=True)
class Run:
    """What one model's folder holds: of each task the newest results.

    ``rows`` are the harness's rows of tasks and groups (metric → value, errors as
    ``<metric>_stderr``), ``groups`` the members of each group, ``configs`` the tasks'
    configurations, ``date`` seconds since 1970. ``notes`` say what was left out, and why.
    """

    label: str
    model: str
    date: float
    path: Path
    rows: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Sequence[str]]
    configs: Mapping[str, Mapping[str, Any]]
    documents: tuple[Document, ...]
    notes: tuple[str, ...] = ()

    def metadata(self, task: str) -> Mapping[str, Any]:
        """What the configuration of one of the run's tasks records of how it was judged."""
        return self.configs[task].get("metadata") or {}

    def provenance(self, task: str) -> Provenance:
        """Of one of the run's tasks."""
        metadata = self.metadata(task)
        return Provenance(
            dict(metadata.get("judge") or {}),
            _hashes(metadata.get("judge_prompt")),
            _hashes(metadata.get("task_prompt")),
            str((metadata.get("dataset") or {}).get("fingerprint") or "unknown"),
            str(metadata.get("version") or "unknown"),
        )

    def documents_of(self, tasks: Sequence[str]) -> list[Document]:
        return [document for document in self.documents if document.task in tasks]


def _hashes(record: Any) -> dict[str, str]:
    """A prompt's SHA-256 by role."""
    parts = record.items() if isinstance(record, Mapping) else ()
    return {role: str(part["sha256"]) for role, part in parts if isinstance(part, Mapping)}


def read_runs(paths: Sequence[str]) -> list[Run]:
    """A run for each file given, and for each folder with results at or below a folder given.

    Raises :class:`DataError` that names file and line for what is damaged, no results file of the
    harness's, or of no task of this project's.
    """
    runs: dict[tuple[Path, ...], Run] = {}
    for given in paths:
        path = Path(given).expanduser()
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        folders: dict[Path, list[Path]] = {}
        for file in [path] if path.is_file() else sorted(path.rglob("results_*.json")):
            folders.setdefault(file.parent, []).append(file)
        found = {tuple(files): _run(folder, files) for folder, files in folders.items()}
        judged = {files: run for files, run in found.items() if run is not None}
        if not judged:
            what = "results of this project's tasks" if found else "results_*.json"
            raise DataError(f"{path}: no {what} in it; give what run or score wrote")
        runs.update(judged)
    return told_apart(list(runs.values()))


def read_run(path: str) -> Run:
    """The one run of a file or folder. Raises :class:`DataError`, also where there are several."""
    run, *others = read_runs([path])
    if others:
        folders = ", ".join(str(other.path) for other in [run, *others])
        raise DataError(f"{path}: {len(others) + 1} runs are in it; give one of {folders}")
    return run


# --- results files -------------------------------------------------------------------------


@dataclass
class _Found:
    """What is gathered from the results files of a folder, the newest last."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    stamps: dict[str, str] = field(default_factory=dict)
    older: Counter[str] = field(default_factory=Counter)
    unjudged: dict[str, None] = field(default_factory=dict)
    model: str = ""
    date: float = 0.0


def _run(folder: Path, files: Sequence[Path]) -> Run | None:
    """None where no file has a judged task of ours."""
    found = _Found()
    for file in sorted(files):
        _add(found, file)
    if not found.configs:
        return None
    notes = [
        f"{task}: the newest results count, not those of {count} earlier "
        f"{'run' if count == 1 else 'runs'}"
        for task, count in sorted(found.older.items())
    ]
    notes += [f"{task}: answers without a judgement are left out" for task in found.unjudged]
    for name, members in list(found.groups.items()):
        if any(found.stamps.get(member) != found.stamps[name] for member in members):
            notes.append(f"{name}: its members were run again later, so its row is left out")
            del found.groups[name], found.rows[name]
    documents: list[Document] = []
    for task in found.configs:
        samples = folder / f"samples_{task}_{found.stamps[task]}.jsonl"
        if not samples.exists():
            notes.append(f"{task}: no {samples.name} beside the results, so only its scores")
            continue
        read = _documents(samples, task, str(found.configs[task].get("test_split")))
        documents += read
        expected = found.rows[task].get("sample_len")
        if isinstance(expected, int) and len(read) != expected:
            notes.append(f"{task}: {samples.name} holds {len(read)} of {expected} documents")
    return Run(
        _short(found.model) or folder.name,
        found.model,
        found.date,
        folder,
        found.rows,
        found.groups,
        found.configs,
        tuple(documents),
        tuple(notes),
    )


def _add(found: _Found, file: Path) -> None:
    match = _NAME.fullmatch(file.name)
    content = _json(file)
    if match is None or not isinstance(content.get("results"), dict):
        raise DataError(f"{file}: not a results file of the harness (results_<date>.json)")
    stamp, results = match["stamp"], content["results"]
    try:
        configs = {
            task: config
            for task, config in (content.get("configs") or {}).items()
            if "lm_eval_rubrics" in (config.get("metadata") or {}) and task in results
        }
        judged = {task for task, config in configs.items() if "judge" in config["metadata"]}
        found.unjudged.update(dict.fromkeys(sorted(configs.keys() - judged)))
        groups = {
            name: list(members)
            for name, members in (content.get("group_subtasks") or {}).items()
            if members and name in results and set(members) <= judged
        }
        for name in results:
            if name not in judged and name not in groups:
                continue
            found.older[name] += name in found.stamps
            found.stamps[name] = stamp
            found.rows[name] = _row(results[name])
        date = float(content.get("date") or 0)
        model = str(content.get("model_name") or file.parent.name)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not a results file of the harness ({error})") from None
    found.configs.update({task: configs[task] for task in configs if task in judged})
    found.groups.update(groups)
    found.unjudged = dict.fromkeys(t for t in found.unjudged if t not in found.configs)
    found.older = +found.older
    if judged:
        found.model, found.date = model, date


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Metric → value. The harness adds an error to what is an error already; that is left out."""
    names = {key: key.removesuffix(_FILTER) for key in row}
    return {name: row[key] for key, name in names.items() if not name.endswith("_stderr_stderr")}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON in UTF-8 ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a results file of the harness")
    return content


# --- samples files -------------------------------------------------------------------------


def _documents(path: Path, task: str, split: str) -> list[Document]:
    """The documents of a samples file, read line by line. Raises :class:`DataError`."""
    found: dict[str, Document] = {}
    for number, text in _lines(path):
        place = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            cut = "" if text.endswith("\n") else "; the file ends in the middle of it"
            raise DataError(f"{place}: not JSON{cut}") from None
        try:
            document = _document(line, task, split)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{place}: not a judged line of this project's ({what})") from None
        if document.id in found:
            raise DataError(f"{place}: a second line for {document.id!r}, which would count twice")
        found[document.id] = document
    return list(found.values())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, text) for number, text in enumerate(file, 1) if text.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _document(line: Mapping[str, Any], task: str, split: str) -> Document:
    doc = line["doc"]
    described = {"subset": split, **doc}
    # With several answers to a document each has its own judgement.
    answers = doc.get("answers") or [doc]
    benchmark = PRBENCH if "criteria" in answers[0] else PLAWBENCH
    read = _prbench_answer if benchmark == PRBENCH else _plawbench_answer
    metrics = [name for name in line["metrics"] if not name.endswith("_stderr")]
    return Document(
        benchmark,
        task,
        str(doc["id"]),
        str(line["doc_hash"]),
        {name: float(line[name]) for name in metrics},
        {n: str(described[n]) for n in AXES[benchmark] if described.get(n) is not None},
        tuple(doc["messages"]),
        tuple(read(doc, answer) for answer in answers),
    )


def _prbench_answer(_: Mapping[str, Any], answer: Mapping[str, Any]) -> Answered:
    criteria = tuple(
        Graded(
            str(c["id"]),
            c["text"],
            c["weight"],
            c["category"],
            None if c["met"] is None else float(c["met"]),
            c["explanation"],
            c["failure"],
            c["contradicts_explanation"],
            tuple(c.get("votes") or ()),
        )
        for c in answer["criteria"]
    )
    return Answered(answer["answer"], answer["answer_status"], criteria)


def _plawbench_answer(doc: Mapping[str, Any], answer: Mapping[str, Any]) -> Answered:
    grading = answer["grading"]
    texts = {s["dimension"]: s["text"] for s in doc["sections"]} or {"total": doc["rubric"]}
    criteria = tuple(
        Graded(
            section["section"],
            texts[section["section"]],
            section["points"],
            section["section"],
            _share(section["awarded"], section["points"]),
            failure=grading["failure"],
            contradicts=bool(section.get("contradicts_breakdown")),
            votes=tuple(
                {
                    "judge": vote["judge"],
                    "repeat": vote["repeat"],
                    "met": _share(
                        (vote["awarded"] or {}).get(section["section"]), section["points"]
                    ),
                    "explanation": vote.get("explanation"),
                    "failure": vote["failure"],
                }
                for vote in grading.get("votes") or ()
            ),
            breakdown=tuple(section["breakdown"]),
        )
        for section in grading["sections"]
    )
    return Answered(answer["answer"], answer["answer_status"], criteria, grading["explanation"])


def _share(awarded: float | None, points: float) -> float | None:
    return None if awarded is None or not points else min(awarded / points, 1.0)


# --- labels --------------------------------------------------------------------------------


def _short(model: str) -> str:
    """``Qwen/Qwen3-8B`` → ``Qwen3-8B``; a file of answers stands for its model."""
    return re.sub(r"\.jsonl?\Z", "", model.rstrip("/").rpartition("/")[2])


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs of one label are labelled by what is not the same: the judge, the folder or the date."""
    ways: tuple[Callable[[Run], str], ...] = (
        lambda run: ", ".join(sorted({run.provenance(task).judge_name for task in run.configs})),
        lambda run: run.path.parent.name,
        lambda run: time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.date)),
        lambda run: str(run.path),
    )
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    named: dict[int, str] = {}
    for label, same in by_label.items():
        numbers = [str(number) for number in range(1, len(same) + 1)]
        marks = next(
            (found for way in ways if len(set(found := [way(run) for run in same])) == len(same)),
            numbers,
        )
        if len(same) > 1:
            named.update({id(r): f"{label} ({m})" for r, m in zip(same, marks, strict=True)})
    return [replace(run, label=named.get(id(run), run.label)) for run in runs]
