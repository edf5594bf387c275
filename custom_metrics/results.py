"""What a run or ``score`` wrote, read back from its results and samples files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_metrics.errors import DataError

_NAN = float("nan")
_FILTER = ",none"  # the harness writes "metric,filter"
_STAMP = re.compile(r"results_(.+)\.json\Z")

PRBENCH, PLAWBENCH = "prbench", "plawbench"
PRIMARY = {PRBENCH: "clipped_score", PLAWBENCH: "acc"}
_AXES = {
    PRBENCH: ("topic", "expert", "turns", "economic_pathway", "decision_type", "field"),
    PLAWBENCH: ("category",),
}


@dataclass(frozen=True)
class Graded:
    """A criterion and its verdict; PLawBench's are the sections of its rubric.

    ``met`` is the share of ``weight`` that was awarded (0 or 1 for a yes or no), None without a
    verdict.
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
class Document:
    """One document of a run with its answer and what the judge made of it."""

    benchmark: str
    task: str
    id: str
    scores: Mapping[str, float]
    axes: Mapping[str, str]
    criteria: tuple[Graded, ...]
    answer: str
    status: str
    messages: tuple[Mapping[str, str], ...]
    remark: str | None

    @property
    def score(self) -> float:
        """The document's share of the headline score; NaN if it is excluded."""
        return self.scores.get(PRIMARY[self.benchmark], _NAN)

    @property
    def excluded(self) -> bool:
        return self.scores.get("judge_coverage") == 0

    @property
    def empty(self) -> bool:
        return self.status != "answered"


@dataclass(frozen=True)
class Run:
    """What one model's folder holds: of each task the newest results."""

    label: str
    model: str
    date: float
    path: Path
    rows: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Sequence[str]]
    configs: Mapping[str, Mapping[str, Any]]
    documents: tuple[Document, ...]
    notes: tuple[str, ...]


def read_runs(paths: Sequence[str]) -> list[Run]:
    """A run for each folder that has results files. Raises :class:`DataError`."""
    folders: dict[Path, list[Path]] = {}
    for given in paths:
        path = Path(given)
        found = [path] if path.is_file() else sorted(path.rglob("results_*.json"))
        if not found:
            raise DataError(f"{path}: no results_*.json in it; give a folder that a run wrote")
        for file in found:
            folders.setdefault(file.parent, []).append(file)
    runs = [_run(folder, files) for folder, files in folders.items()]
    return runs


def _run(folder: Path, files: Sequence[Path]) -> Run:
    rows: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {}
    configs: dict[str, dict[str, Any]] = {}
    stamps: dict[str, str] = {}
    model, date = folder.name, 0.0
    for file in sorted(files):
        match = _STAMP.match(file.name)
        content = _json(file)
        if match is None or "results" not in content:
            raise DataError(f"{file}: not a results file of the harness")
        model, date = str(content.get("model_name") or model), float(content.get("date") or 0)
        for name, row in content["results"].items():
            rows[name] = {k.removesuffix(_FILTER): v for k, v in row.items()}
        groups.update({g: list(m) for g, m in (content.get("group_subtasks") or {}).items() if m})
        for name, config in (content.get("configs") or {}).items():
            configs[name], stamps[name] = config, match[1]
    notes: list[str] = []
    documents: list[Document] = []
    for name, stamp in stamps.items():
        samples = folder / f"samples_{name}_{stamp}.jsonl"
        if samples.exists():
            documents.extend(_documents(samples, name))
        else:
            notes.append(f"{name}: no samples file beside the results, so only its scores")
    label = Path(model).stem if "/" in model else model
    return Run(label, model, date, folder, rows, groups, configs, tuple(documents), tuple(notes))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a results file of the harness")
    return content


def _documents(path: Path, task: str) -> Iterator[Document]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                sample = json.loads(line)
                yield _document(sample, task)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not a judged sample ({error!r})") from None


def _document(sample: Mapping[str, Any], task: str) -> Document:
    doc = sample["doc"]
    benchmark = PRBENCH if "criteria" in doc else PLAWBENCH
    names = sample["metrics"]
    if benchmark == PRBENCH:
        criteria = tuple(
            Graded(
                c["id"], c["text"], c["weight"], c["category"],
                None if c["met"] is None else float(c["met"]),
                c["explanation"], c["failure"], c["contradicts_explanation"],
                tuple(c.get("votes") or ()),
            )
            for c in doc["criteria"]
        )  # fmt: skip
        remark = None
    else:
        grading = doc["grading"]
        votes = grading.get("votes") or ()
        texts = {s["dimension"]: s["text"] for s in doc["sections"]} or {"total": doc["rubric"]}
        criteria = tuple(
            Graded(
                s["section"], texts[s["section"]], s["points"], s["section"],
                None if s["awarded"] is None else s["awarded"] / s["points"] if s["points"] else 1,
                None, grading["failure"], s.get("contradicts_breakdown", False),
                tuple(_section_vote(vote, s) for vote in votes), tuple(s["breakdown"]),
            )
            for s in grading["sections"]
        )  # fmt: skip
        remark = grading["explanation"]
    return Document(
        benchmark,
        task,
        doc["id"],
        {n: float(sample[n]) for n in names if not n.endswith("_stderr")},
        {n: str(doc[n]) for n in _AXES[benchmark] if doc.get(n) is not None},
        criteria,
        doc["answer"],
        doc["answer_status"],
        tuple(doc["messages"]),
        remark,
    )


def _section_vote(vote: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """One opinion on one section: the share of its points, as ``met``."""
    given = (vote.get("awarded") or {}).get(section["section"])
    share = None if given is None or not section["points"] else given / section["points"]
    return {**vote, "met": None if share is None else min(1.0, share)}
