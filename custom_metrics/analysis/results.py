"""What a run or ``score`` wrote, read back: its results files and the samples beside them.

The harness's values stay as they stand in its files; a document is what its samples line says.
Computed is only whether the two contradict each other.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from custom_metrics import statistics
from custom_metrics.analysis.documents import PRBENCH, PRIMARY, Document
from custom_metrics.analysis.samples import read_documents, said
from custom_metrics.data import deep_writable
from custom_metrics.errors import DataError
from custom_metrics.masking import mask

_FILTER = ",none"  # the harness writes "metric,filter"
_LAST_DATE = 32_503_680_000.0  # the year 3000
_MOST = 1e12  # of any metric
_ROUNDING = 1e-6
_NAME = re.compile(r"results_(?P<stamp>.+)\.json")


@dataclass(frozen=True)
class Provenance:
    """What the numbers of a task depend on besides the model. Hashes are SHA-256."""

    judge: Mapping[str, Any]
    judge_prompt: Mapping[str, str]
    task_prompt: Mapping[str, str]
    data: str
    version: str

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Provenance:
        """As a task's configuration records it."""
        return cls(
            dict(metadata.get("judge") or {}),
            _hashes(metadata.get("judge_prompt")),
            _hashes(metadata.get("task_prompt")),
            str((metadata.get("dataset") or {}).get("fingerprint") or "unknown"),
            str(metadata.get("version") or "unknown"),
        )

    @property
    def judge_name(self) -> str:
        """The judge model, or the kind of judge that has none."""
        members = self.judge.get("models")
        if isinstance(members, list) and members:
            return ", ".join(dict.fromkeys(_judge_name(member) for member in members))
        return _judge_name(self.judge)


@dataclass(frozen=True)
class Run:
    """One model's results in a folder: of each task the newest.

    ``rows`` are the harness's rows of tasks and groups (metric → value, errors as
    ``<metric>_stderr``), ``groups`` the members of each group, ``configs`` the tasks'
    configurations, ``date`` seconds since 1970. ``notes`` say what was left out, and why, and
    ``conflicts`` where the files contradict each other.
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
    conflicts: tuple[str, ...] = ()

    def metadata(self, task: str) -> Mapping[str, Any]:
        """What the configuration of one of the run's tasks records of how it was judged."""
        return self.configs[task].get("metadata") or {}

    def provenance(self, task: str) -> Provenance:
        """Of one of the run's tasks."""
        return Provenance.of(self.metadata(task))

    def documents_of(self, tasks: Sequence[str]) -> list[Document]:
        return [document for document in self.documents if document.task in tasks]


def _judge_name(judge: Any) -> str:
    known = judge if isinstance(judge, Mapping) else {}
    names = (known.get(name) for name in ("model", "judge_model", "backend"))
    return next((str(name) for name in names if name), "unknown")


def _hashes(record: Any) -> dict[str, str]:
    """A prompt's SHA-256 by role."""
    parts = record.items() if isinstance(record, Mapping) else ()
    hashes = {role: part.get("sha256") for role, part in parts if isinstance(part, Mapping)}
    return {role: str(found) for role, found in hashes.items() if found}


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
        files = [path] if path.is_file() else sorted(_results_below(path))
        some = False
        for folder in dict.fromkeys(file.parent for file in files):
            opened = [_open(file) for file in files if file.parent == folder]
            for alike in _of_one_model(opened):
                key = tuple(file.path.resolve() for file in alike)
                run = runs.get(key) or _run(folder, alike)  # what is given twice is one run
                if run is not None:
                    some, runs[key] = True, run
        if not some:
            what = "results of this project's tasks" if files else "results_*.json"
            raise DataError(f"{path}: no {what} in it; give what run or score wrote")
    return told_apart(list(runs.values()))


def _results_below(folder: Path) -> Iterator[Path]:
    """The results files at or below a folder; links are followed, no folder twice."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(place) / n for n in names if fnmatch.fnmatch(n, "results_*.json"))


def read_run(path: str) -> Run:
    """The one run of a file or folder. Raises :class:`DataError`, also where there are several."""
    run, *others = read_runs([path])
    if others:
        folders = ", ".join(str(other.path) for other in [run, *others])
        raise DataError(f"{path}: {len(others) + 1} runs are in it; give one of {folders}")
    return run


# --- results files -------------------------------------------------------------------------


class _OpinionScore(BaseModel):
    judge: str
    repeat: int
    score: float


class _Opinions(BaseModel):
    scores: list[_OpinionScore]


class _Count(BaseModel):
    count: int = 0


class _Metadata(BaseModel):
    """What this project writes of a task, as far as it is read here."""

    judge: dict[str, Any] | None = None
    judge_prompt: dict[str, Any] | None = None
    dataset: dict[str, Any] | None = None
    judge_opinions: _Opinions | None = None
    prompts_cut: _Count | None = None
    answers_shortened: _Count | None = None


class _Config(BaseModel):
    metadata: dict[str, Any] | None = None


class _Content(BaseModel):
    """A results file of the harness, as far as it is read here."""

    results: dict[str, dict[str, Any]]
    configs: dict[str, _Config] = Field(default_factory=dict)
    group_subtasks: dict[str, list[str]] = Field(default_factory=dict)
    date: float = Field(default=0, ge=0, le=_LAST_DATE)
    model_name: str | None = None


@dataclass(frozen=True)
class _File:
    """A results file: the date in its name, and of its tasks those that are ours."""

    path: Path
    stamp: str
    model: str
    date: float
    rows: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Sequence[str]]
    configs: Mapping[str, Mapping[str, Any]]
    unjudged: Sequence[str]


def _open(path: Path) -> _File:
    """Raises :class:`DataError`. No key that somebody wrote into it is passed on."""
    match = _NAME.fullmatch(path.name)
    raw = mask(deep_writable(_json(path)))
    if match is None:
        raise DataError(f"{path}: not a results file of the harness (results_<date>.json)")
    try:
        content = _Content.model_validate(raw)
        ours = {
            task: raw["configs"][task]
            for task, config in content.configs.items()
            if "lm_eval_rubrics" in (config.metadata or {}) and task in content.results
        }
        for task in ours:
            _Metadata.model_validate(ours[task]["metadata"])
    except ValidationError as error:
        raise DataError(f"{path}: not a results file of the harness ({said(error)})") from None
    judged = {task: c for task, c in ours.items() if c["metadata"].get("judge") is not None}
    groups = {
        name: members
        for name, members in content.group_subtasks.items()
        if members and name in content.results and set(members) <= judged.keys()
    }
    rows = {name: row for name, row in content.results.items() if name in judged or name in groups}
    return _File(
        path,
        match["stamp"],
        content.model_name or path.parent.name,
        content.date,
        {name: _row(path, name, row) for name, row in rows.items()},
        groups,
        judged,
        sorted(ours.keys() - judged.keys()),
    )


def _of_one_model(files: Sequence[_File]) -> list[list[_File]]:
    """Files that may be taken together: of one model, and no task by two judges."""
    found: list[tuple[list[_File], dict[str, str]]] = []
    for file in files:
        judges = {
            task: Provenance.of(config["metadata"]).judge_name
            for task, config in file.configs.items()
        }
        for members, theirs in found:
            alike = all(theirs.get(task, judge) == judge for task, judge in judges.items())
            if members[0].model == file.model and alike:
                members.append(file)
                theirs.update(judges)
                break
        else:
            found.append(([file], judges))
    return [members for members, _ in found]


def _run(folder: Path, files: Sequence[_File]) -> Run | None:
    """Of each task the newest; None where no file has a judged task of ours."""
    files = sorted(files, key=lambda file: file.path)  # their names are dates
    configs = {task: config for file in files for task, config in file.configs.items()}
    if not configs:
        return None
    rows = {name: row for file in files for name, row in file.rows.items()}
    groups = {name: members for file in files for name, members in file.groups.items()}
    stamps = {name: file.stamp for file in files for name in file.rows}
    times = Counter(name for file in files for name in file.rows)
    unjudged = dict.fromkeys(t for file in files for t in file.unjudged if t not in configs)
    newest = [file for file in files if file.configs][-1]
    notes = [
        f"{name}: the newest results count, not those of {count - 1} earlier "
        f"{'run' if count == 2 else 'runs'}"
        for name, count in sorted(times.items())
        if count > 1
    ]
    notes += [f"{task}: answers without a judgement are left out" for task in unjudged]
    for name, members in list(groups.items()):
        if any(stamps.get(member) != stamps[name] for member in members):
            notes.append(f"{name}: its members were run again later, so its row is left out")
            del groups[name], rows[name]
    documents: list[Document] = []
    conflicts: list[str] = []
    for task, config in configs.items():
        samples = folder / f"samples_{task}_{stamps[task]}.jsonl"
        if not samples.exists():
            notes.append(f"{task}: no {samples.name} beside the results, so only its scores")
            continue
        read = read_documents(samples, task, str(config.get("test_split")))
        documents += read
        conflicts += _conflict(samples, rows[task], read)
        expected = rows[task].get("sample_len")
        if isinstance(expected, int) and len(read) != expected:
            notes.append(f"{task}: {samples.name} holds {len(read)} of {expected} documents")
    return Run(
        _short(newest.model) or folder.name,
        newest.model,
        newest.date,
        folder,
        rows,
        groups,
        configs,
        tuple(documents),
        tuple(notes),
        tuple(conflicts),
    )


def _conflict(samples: Path, row: Mapping[str, Any], documents: Sequence[Document]) -> list[str]:
    """Whether a samples file is of another run than the results beside it."""
    if len(documents) != row.get("sample_len") or not documents:
        return []  # which is a note of its own
    metric = PRIMARY[documents[0].benchmark]
    mean = statistics.clipped_mean if documents[0].benchmark == PRBENCH else statistics.mean
    theirs, ours = row.get(metric), mean([document.score for document in documents])
    if not isinstance(theirs, float) or math.isnan(theirs) or abs(theirs - ours) < _ROUNDING:
        return []
    return [
        f"{samples.name} gives {metric} {ours:.4f}, and the results beside it have {theirs:.4f}: "
        "one of them is of another run"
    ]


def _row(path: Path, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Metric → value, a number as float; counts stay whole. The harness adds an error to what is
    an error already; that is left out."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        metric = key.removesuffix(_FILTER)
        if metric.endswith("_stderr_stderr"):
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= _MOST and value == value:
                raise DataError(f"{path}: {name}: {metric} is no number that a run can have")
            value = int(value) if metric == "sample_len" else float(value)
        found[metric] = value
    return found


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
