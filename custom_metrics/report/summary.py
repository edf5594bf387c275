"""The numbers of the report: from runs to what the templates show. Pure functions.

What a results file holds is shown as it stands there; what it does not hold (breakdowns by topic
and the like, differences between runs) is computed here from the documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from custom_metrics import prbench
from custom_metrics.analysis.compare import differences, metric_difference
from custom_metrics.analysis.documents import PLAWBENCH, PRBENCH, PRIMARY, Document
from custom_metrics.analysis.paired import Difference
from custom_metrics.analysis.results import Run
from custom_metrics.report.estimates import Estimate, estimate, stated
from custom_metrics.report.labels import AXES, SECTIONS, SUBSETS, leaderboards
from custom_metrics.report.lost import Lost, LostByRuns, lost_by_runs, lost_points
from custom_metrics.report.trust import Trust, trust


@dataclass(frozen=True)
class Row:
    """A line of a breakdown. ``facet`` and ``value`` choose its documents in the page's list.

    ``metric`` is what the results files call it, of ``tasks``, where they have it.
    """

    label: str
    estimate: Estimate
    facet: str | None = None
    value: str | None = None
    metric: str | None = None
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Breakdown:
    """Scores by one property of documents or criteria."""

    name: str
    title: str
    rows: tuple[Row, ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One suite (a group, or a task of no group) in one run."""

    suite: str
    benchmark: str
    run: Run
    headline: Estimate
    others: tuple[tuple[str, Estimate], ...]
    breakdowns: tuple[Breakdown, ...]
    documents: tuple[Document, ...]
    lost: Lost | None
    trust: Trust
    facts: tuple[tuple[str, str], ...]
    lexical: bool


@dataclass(frozen=True)
class Against:
    """A run against the first one on the documents that both scored.

    ``rows`` are the differences in the rows of the first breakdown, by label.
    """

    run: Run
    difference: Difference
    rows: Mapping[str, Difference]

    @property
    def estimate(self) -> Estimate:
        found = self.difference
        return Estimate(found.value, found.low, found.high, found.documents)

    @property
    def verdict(self) -> str:
        if math.isnan(self.difference.low):
            return "too few documents to tell"
        if not self.difference.told_apart:
            return "not told apart"
        return "better" if self.difference.value > 0 else "worse"


@dataclass(frozen=True)
class Suite:
    """A suite in all runs that have it."""

    name: str
    benchmark: str
    sections: tuple[Section | None, ...]  # by run
    differences: tuple[Against, ...]
    warnings: tuple[str, ...] = ()

    @property
    def reach(self) -> float:
        """How far from 0 the differences and their intervals go, for a common scale."""
        ends = [abs(end) for d in self.differences
                for end in (d.estimate.value, d.estimate.low, d.estimate.high)]  # fmt: skip
        return max([0.01, *(end for end in ends if not math.isnan(end))])

    def change(self, run: Run, label: str) -> Difference | None:
        """What ``run`` differs by from the first one in a row of the first breakdown."""
        return next((d.rows.get(label) for d in self.differences if d.run is run), None)


@dataclass(frozen=True)
class Leaderboard:
    """Rows in the column order of a paper's table; a cell is NaN where it was not run."""

    benchmark: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    digits: int


@dataclass(frozen=True)
class Summary:
    """All that the page shows besides the documents themselves."""

    runs: tuple[Run, ...]
    suites: tuple[Suite, ...]
    leaderboards: tuple[Leaderboard, ...] = field(default=())


def summarise(runs: Sequence[Run]) -> Summary:
    """Everything for ``runs``; the first of them is what the others are compared with."""
    names = list(dict.fromkeys(name for run in runs for name in suites_of(run)))
    categories, lost = _category_names(runs), lost_by_runs(runs)
    suites = [_suite(name, runs, categories, lost) for name in names]
    return Summary(tuple(runs), tuple(suites), tuple(_leaderboards(runs)))


def suites_of(run: Run) -> list[str]:
    """The groups of a run, and its tasks that belong to none."""
    grouped = {name for members in run.groups.values() for name in members}
    return [name for name in run.rows if name not in grouped]


def tasks_of(run: Run, suite: str) -> list[str]:
    """The tasks of a suite."""
    return list(run.groups.get(suite, [suite]))


# --- one suite in one run --------------------------------------------------------------------


def _suite(
    name: str, runs: Sequence[Run], categories: Mapping[str, str], lost: LostByRuns
) -> Suite:
    sections = [_section(name, run, categories, lost) if name in run.rows else None for run in runs]
    present = [section for section in sections if section]
    first, *others = present
    compared = [d for other in others if (d := _against(first, other))]
    return Suite(
        name, first.benchmark, tuple(sections), tuple(compared), tuple(_warnings(first, others))
    )


def _warnings(first: Section, others: Sequence[Section]) -> list[str]:
    """What other runs do not share with the first one, though a comparison needs it."""
    found = [text for section in (first, *others) for text in section.run.conflicts]
    for other in others:
        tasks = [task for task in tasks_of(first.run, first.suite) if task in other.run.configs]
        labels = (first.run.label, other.run.label)
        differing = differences(first.run, other.run, tasks, labels)
        if differing:
            found.append(
                f"{other.run.label} was not graded like {first.run.label}, so their difference is "
                f"not the models' alone. {'. '.join(differing)}."
            )
    return found


def _against(first: Section, other: Section) -> Against | None:
    """``other`` minus ``first``; None where nothing was scored in both."""
    tasks = tasks_of(first.run, first.suite)
    if set(tasks_of(other.run, other.suite)) != set(tasks):
        return None
    whole = metric_difference(first.run, other.run, tasks, _headline(first.run, first.suite))
    if whole is None:
        return None
    rows = {
        row.label: found
        for breakdown in first.breakdowns[:1]
        for row in breakdown.rows
        if row.metric and (found := metric_difference(first.run, other.run, row.tasks, row.metric))
    }
    return Against(other.run, whole, rows)


def _headline(run: Run, suite: str) -> str:
    """The metric that stands for a suite."""
    return "overall" if "overall" in run.rows[suite] else PRIMARY[_benchmark(run, suite)]


def _benchmark(run: Run, suite: str) -> str:
    return PLAWBENCH if any("acc" in run.rows[task] for task in tasks_of(run, suite)) else PRBENCH


def _category_names(runs: Sequence[Run]) -> dict[str, str]:
    """The rubrics' categories by their part of a metric's name."""
    rubrics = (doc.criteria for run in runs for doc in run.documents if doc.benchmark == PRBENCH)
    categories = dict.fromkeys(c.category for criteria in rubrics for c in criteria)
    return {prbench.slug(category): category for category in categories}


def _section(name: str, run: Run, categories: Mapping[str, str], lost: LostByRuns) -> Section:
    tasks = tasks_of(run, name)
    documents = tuple(doc for doc in run.documents if doc.task in tasks)
    row = run.rows[name]
    benchmark = _benchmark(run, name)
    lexical = any(run.metadata(t).get("judge", {}).get("backend") == "lexical" for t in tasks)
    return Section(
        name,
        benchmark,
        run,
        stated(row, _headline(run, name)),
        tuple(_others(row, benchmark)),
        tuple(_breakdowns(run, name, tasks, benchmark, documents, categories)),
        documents,
        lost_points(documents, lost) if benchmark == PRBENCH and documents else None,
        trust(run, name, tasks, documents, benchmark),
        tuple(_facts(run, tasks)),
        lexical,
    )


def _others(row: Mapping[str, Any], benchmark: str) -> list[tuple[str, Estimate]]:
    wanted = {"normalized_score": "Normalized score"} if benchmark == PRBENCH else {}
    return [(label, stated(row, metric)) for metric, label in wanted.items() if metric in row]


def _breakdowns(
    run: Run,
    suite: str,
    tasks: Sequence[str],
    benchmark: str,
    documents: Sequence[Document],
    names: Mapping[str, str],
) -> list[Breakdown]:
    found = []
    if benchmark == PRBENCH:
        found.append(_rubric_categories(run.rows[suite], tasks, documents, names))
    else:
        found.append(_dimensions(run, tasks))
    if len(tasks) > 1:
        metric = PRIMARY[benchmark]
        rows = [
            Row(SUBSETS.get(_subset(run, t), t), stated(run.rows[t], metric), "task", t)
            for t in tasks
            if t in run.rows
        ]
        found.append(
            Breakdown("subset", "Subset 子集" if benchmark == PLAWBENCH else "Task", tuple(rows))
        )
    for axis, title in AXES[benchmark].items():
        found.append(_by_axis(axis, title, documents, clip=benchmark == PRBENCH))
    return [breakdown for breakdown in found if breakdown.rows]


def _subset(run: Run, task: str) -> str:
    return str(run.configs.get(task, {}).get("test_split", task))


def _rubric_categories(
    row: Mapping[str, Any],
    tasks: Sequence[str],
    documents: Sequence[Document],
    names: Mapping[str, str],
) -> Breakdown:
    """``names`` of the categories by what the metrics call them, from the rubrics of all runs."""
    counts: Counter[str] = Counter(
        slug
        for doc in documents
        if not math.isnan(doc.score)
        for slug in {prbench.slug(c.category) for c in doc.criteria if c.weight > 0}
    )
    rows = []
    for metric in row:
        slug = metric.removeprefix("category_")
        if slug == metric or metric.endswith("_stderr"):
            continue
        found = stated(row, metric)
        label = names.get(slug, slug.replace("_", " "))
        rows.append(
            Row(label, Estimate(found.value, found.low, found.high, counts[slug] or None),
                "category" if slug in names else None, names.get(slug), metric, tuple(tasks))
        )  # fmt: skip
    note = "Of each document, the points within the category; as in the results file."
    return Breakdown("category", "Rubric category", tuple(rows), note)


def _dimensions(run: Run, tasks: Sequence[str]) -> Breakdown:
    rows = []
    for task in tasks:
        row = run.rows.get(task, {})
        for name, label in SECTIONS.items():
            metric = f"{name}_acc"
            if metric in row:
                rows.append(Row(label, stated(row, metric), "category", label, metric, (task,)))
    return Breakdown(
        "dimension", "Dimension 维度", tuple(rows), "The four sections of a case analysis."
    )


def _by_axis(axis: str, title: str, documents: Sequence[Document], *, clip: bool) -> Breakdown:
    groups: dict[str, list[float]] = {}
    for doc in documents:
        if axis in doc.axes:
            groups.setdefault(doc.axes[axis], []).append(doc.score)
    order: Callable[[str], Any] = (
        int if axis == "turns" else lambda value: (-len(groups[value]), value)
    )
    facet = "topic" if axis == "category" else axis  # of a document; criteria have categories too
    rows = [
        Row(value, estimate(groups[value], clip=clip), facet, value)
        for value in sorted(groups, key=order)
    ]
    return Breakdown(axis, title, tuple(rows))


def _facts(run: Run, tasks: Sequence[str]) -> list[tuple[str, str]]:
    """What decided the numbers, as the results file records it."""

    def of_all(read: Callable[[Mapping[str, Any]], str]) -> str:
        values = dict.fromkeys(read(run.metadata(task)) for task in tasks)
        return "; ".join(value for value in values if value)

    def judge(metadata: Mapping[str, Any]) -> str:
        return ", ".join(f"{k}={v}" for k, v in (metadata.get("judge") or {}).items() if v)

    def prompt(metadata: Mapping[str, Any]) -> str:
        record = metadata.get("judge_prompt") or {}
        hashes = (v.get("sha256") for v in record.values() if isinstance(v, Mapping))
        parts = [str(found)[:12] for found in hashes if found]
        return f"{record.get('name', '')} {' '.join(parts)}".strip()

    def data(metadata: Mapping[str, Any]) -> str:
        record = metadata.get("dataset") or {}
        parts = [
            record.get("origin"),
            record.get("revision"),
            str(record.get("fingerprint") or "")[:12],
        ]
        return " ".join(str(part) for part in parts if part)

    facts = [
        ("Model", run.model),
        ("Judge", of_all(judge)),
        ("Judge prompt", of_all(prompt)),
        ("Data", of_all(data)),
        ("Task version", of_all(lambda m: str(m.get("version", "")))),
    ]
    return [(name, value) for name, value in facts if value]


# --- leaderboards ----------------------------------------------------------------------------


def _leaderboards(runs: Sequence[Run]) -> list[Leaderboard]:
    found = []
    for board in leaderboards():
        rows = []
        for run in runs:
            cells = tuple(board.scale * read(run.rows) for _, read in board.columns)
            if not all(math.isnan(cell) for cell in cells):
                rows.append((run.label, cells))
        if rows:
            columns = tuple(name for name, _ in board.columns)
            found.append(
                Leaderboard(board.benchmark, board.title, columns, tuple(rows), board.digits)
            )
    return found
