"""The numbers of the report: from runs to what the templates show. Pure functions.

What a results file holds is shown as it stands there; what it does not hold (breakdowns by topic
and the like, differences between runs) is computed here from the documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from custom_metrics import paired, plawbench, prbench, statistics
from custom_metrics.compare import differences
from custom_metrics.report.labels import AGREEMENT, AXES, SECTIONS, SUBSETS, leaderboards
from custom_metrics.results import PLAWBENCH, PRBENCH, PRIMARY, Document, Graded, Run

Z95 = 1.959964  # two-sided 95%
_NAN = math.nan
_LISTED = 12  # criteria of each list


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, NaN where there is none, and the documents behind it."""

    value: float
    low: float = _NAN
    high: float = _NAN
    count: int | None = None

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Row:
    """A line of a breakdown. ``facet`` and ``value`` choose its documents in the page's list."""

    label: str
    estimate: Estimate
    facet: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Breakdown:
    """Scores by one property of documents or criteria."""

    name: str
    title: str
    rows: tuple[Row, ...]
    note: str = ""


@dataclass(frozen=True)
class Kind:
    """Criteria of one category or weight: how often they were missed, or their harm was done."""

    label: str
    count: int
    lost: int

    @property
    def share(self) -> float:
        return self.lost / self.count


@dataclass(frozen=True)
class Costly:
    """One criterion that cost points, and how many of the runs it cost them."""

    document: Document
    criterion: Graded
    points: float
    cost: float
    runs: int


@dataclass(frozen=True)
class Lost:
    """Where points went: by category and weight, and the single criteria."""

    missed_by_category: tuple[Kind, ...]
    missed_by_weight: tuple[Kind, ...]
    harm_by_category: tuple[Kind, ...]
    harm_by_weight: tuple[Kind, ...]
    missed: tuple[Costly, ...]
    harmful: tuple[Costly, ...]


@dataclass(frozen=True)
class Trust:
    """What a reader has to know before believing the score."""

    documents: int
    scored: int
    excluded: tuple[Document, ...]
    empty: tuple[Document, ...]
    cut: tuple[Document, ...]
    prompts_cut: int
    answers_shortened: int
    bounds: tuple[float, float] | None
    contradictions: int
    smallest_difference: float
    judge_share: float
    split: int
    voted: int
    heaviest_split: tuple[tuple[Document, Graded], ...]
    opinions: tuple[tuple[str, float], ...]
    agreement: tuple[tuple[str, float], ...]


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
    """A run against the first one on the documents that both scored."""

    run: Run
    difference: paired.Difference

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
    suites = [_suite(name, runs) for name in names]
    return Summary(tuple(runs), tuple(suites), tuple(_leaderboards(runs)))


def suites_of(run: Run) -> list[str]:
    """The groups of a run, and its tasks that belong to none."""
    grouped = {name for members in run.groups.values() for name in members}
    return [name for name in run.rows if name not in grouped]


def tasks_of(run: Run, suite: str) -> list[str]:
    """The tasks of a suite."""
    return [task for name in run.groups.get(suite, ()) for task in tasks_of(run, name)] or [suite]


# --- one suite in one run --------------------------------------------------------------------


def _suite(name: str, runs: Sequence[Run]) -> Suite:
    sections = [_section(name, run, runs) if name in run.rows else None for run in runs]
    present = [section for section in sections if section]
    first, *others = present
    compared = [d for other in others if (d := against(first, other))]
    return Suite(
        name, first.benchmark, tuple(sections), tuple(compared), tuple(_warnings(first, others))
    )


def _warnings(first: Section, others: Sequence[Section]) -> list[str]:
    """What other runs do not share with the first one, though a comparison needs it."""
    found = []
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


def _section(name: str, run: Run, runs: Sequence[Run]) -> Section:
    tasks = tasks_of(run, name)
    documents = tuple(doc for doc in run.documents if doc.task in tasks)
    row = run.rows[name]
    chinese = "acc_low" in row or "overall" in row or any("acc" in run.rows[t] for t in tasks)
    benchmark = PLAWBENCH if chinese else PRBENCH
    main = "overall" if "overall" in row else PRIMARY[benchmark]
    lexical = any(_metadata(run, t).get("judge", {}).get("backend") == "lexical" for t in tasks)
    return Section(
        name,
        benchmark,
        run,
        stated(row, main),
        tuple(_others(row, benchmark)),
        tuple(_breakdowns(run, name, tasks, benchmark, documents)),
        documents,
        lost_points(documents, run, runs) if benchmark == PRBENCH and documents else None,
        _trust(run, name, tasks, documents, benchmark),
        tuple(_facts(run, tasks)),
        lexical,
    )


def stated(row: Mapping[str, Any], metric: str) -> Estimate:
    """A metric of a results file, with the interval that its standard error gives."""
    value = row.get(metric, _NAN)
    value = float(value) if isinstance(value, int | float) else _NAN
    stderr = row.get(f"{metric}_stderr", "N/A")
    count = row.get("sample_len")
    if not isinstance(stderr, int | float) or math.isnan(stderr):
        return Estimate(value, count=count)
    floor = 0.0 if metric == PRIMARY[PRBENCH] else -math.inf
    return Estimate(value, max(floor, value - Z95 * stderr), min(1.0, value + Z95 * stderr), count)


def _others(row: Mapping[str, Any], benchmark: str) -> list[tuple[str, Estimate]]:
    wanted = {"normalized_score": "Normalized score"} if benchmark == PRBENCH else {}
    return [(label, stated(row, metric)) for metric, label in wanted.items() if metric in row]


def estimate(values: Sequence[float], *, clip: bool) -> Estimate:
    """The mean over documents, as the benchmark's headline is computed, and its interval."""
    count = len(statistics.scored(values))
    if clip:
        mean, stderr = statistics.clipped_mean(values), statistics.clipped_mean_stderr(values)
    else:
        mean, stderr = statistics.mean(values), statistics.mean_stderr(values)
    if isinstance(stderr, str):
        return Estimate(mean, count=count)
    low = mean - Z95 * stderr
    return Estimate(mean, max(0.0, low) if clip else low, min(1.0, mean + Z95 * stderr), count)


def _breakdowns(
    run: Run, suite: str, tasks: Sequence[str], benchmark: str, documents: Sequence[Document]
) -> list[Breakdown]:
    found = []
    if benchmark == PRBENCH:
        found.append(_rubric_categories(run.rows[suite], documents))
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


def _rubric_categories(row: Mapping[str, Any], documents: Sequence[Document]) -> Breakdown:
    names = {prbench.slug(c.category): c.category for doc in documents for c in doc.criteria}
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
                "category" if slug in names else None, names.get(slug))
        )  # fmt: skip
    note = "Of each document, the points within the category; as in the results file."
    return Breakdown("category", "Rubric category", tuple(rows), note)


def _dimensions(run: Run, tasks: Sequence[str]) -> Breakdown:
    rows = []
    for task in tasks:
        row = run.rows.get(task, {})
        for name, label in SECTIONS.items():
            if f"{name}_acc" in row:
                rows.append(Row(label, stated(row, f"{name}_acc"), "category", label))
    return Breakdown(
        "dimension", "Dimension 维度", tuple(rows), "The four sections of a case analysis."
    )


def _by_axis(axis: str, title: str, documents: Sequence[Document], *, clip: bool) -> Breakdown:
    groups: dict[str, list[float]] = {}
    for doc in documents:
        if axis in doc.axes:
            groups.setdefault(doc.axes[axis], []).append(doc.score)
    numeric = all(value.isdigit() for value in groups)
    order: Callable[[str], Any] = int if numeric else lambda value: (-len(groups[value]), value)
    facet = "topic" if axis == "category" else axis  # of a document; criteria have categories too
    rows = [
        Row(value, estimate(groups[value], clip=clip), facet, value)
        for value in sorted(groups, key=order)
    ]
    return Breakdown(axis, title, tuple(rows))


def _metadata(run: Run, task: str) -> Mapping[str, Any]:
    return run.configs.get(task, {}).get("metadata") or {}


def _facts(run: Run, tasks: Sequence[str]) -> list[tuple[str, str]]:
    """What decided the numbers, as the results file records it."""

    def of_all(read: Callable[[Mapping[str, Any]], str]) -> str:
        values = dict.fromkeys(read(_metadata(run, task)) for task in tasks)
        return "; ".join(value for value in values if value)

    def judge(metadata: Mapping[str, Any]) -> str:
        return ", ".join(f"{k}={v}" for k, v in (metadata.get("judge") or {}).items() if v)

    def prompt(metadata: Mapping[str, Any]) -> str:
        record = metadata.get("judge_prompt") or {}
        parts = [v["sha256"][:12] for v in record.values() if isinstance(v, Mapping)]
        return f"{record.get('name', '')} {' '.join(parts)}".strip()

    def data(metadata: Mapping[str, Any]) -> str:
        record = metadata.get("dataset") or {}
        parts = [
            record.get("origin"),
            record.get("revision"),
            (record.get("fingerprint") or "")[:12],
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


# --- where points went -----------------------------------------------------------------------


def lost_points(documents: Sequence[Document], run: Run, runs: Sequence[Run]) -> Lost:
    """Missed criteria and harm done, in documents with verdicts."""
    pairs = [(doc, c) for doc in documents for c in all_criteria(doc) if c.met is not None]
    missable = [(doc, c) for doc, c in pairs if c.weight > 0]
    harmful = [(doc, c) for doc, c in pairs if c.weight < 0]
    elsewhere = Counter(
        key
        for other in runs
        if other is not run
        for key in {(d.id, c.id) for d in other.documents for c in all_criteria(d) if is_lost(c)}
    )
    return Lost(
        _kinds(missable, lambda c: c.category),
        _kinds(missable, lambda c: f"{c.weight:g}", by=lambda c: -c.weight),
        _kinds(harmful, lambda c: c.category),
        _kinds(harmful, lambda c: f"−{-c.weight:g}", by=lambda c: c.weight),
        _costliest(missable, elsewhere),
        _costliest(harmful, elsewhere),
    )


def all_criteria(doc: Document) -> Iterator[Graded]:
    """The criteria of every answer to it; most runs have one."""
    return (criterion for answer in doc.answers for criterion in answer.criteria)


def is_lost(criterion: Graded) -> bool:
    """Whether it cost points: not (fully) met, or a harmful one that was."""
    if criterion.met is None:
        return False
    return criterion.met > 0 if criterion.weight < 0 else criterion.met < 1


def _kinds(
    pairs: Sequence[tuple[Document, Graded]],
    label: Callable[[Graded], str],
    by: Callable[[Graded], float] | None = None,
) -> tuple[Kind, ...]:
    counted: Counter[str] = Counter(label(c) for _, c in pairs)
    lost: Counter[str] = Counter(label(c) for _, c in pairs if is_lost(c))
    kinds = [Kind(name, count, lost[name]) for name, count in counted.items()]
    if by is None:
        return tuple(sorted(kinds, key=lambda kind: (-kind.share, kind.label)))
    place = {label(c): by(c) for _, c in pairs}
    return tuple(sorted(kinds, key=lambda kind: place[kind.label]))


def _costliest(
    pairs: Sequence[tuple[Document, Graded]], elsewhere: Mapping[tuple[str, str], int]
) -> tuple[Costly, ...]:
    """The heaviest first; of equal weight those that more runs lost, then that cost more."""
    found = []
    seen = set()  # of several answers to a document, the first that lost it
    for doc, criterion in pairs:
        if is_lost(criterion) and (doc.id, criterion.id) not in seen:
            seen.add((doc.id, criterion.id))
            best = sum(c.weight for c in doc.criteria if c.weight > 0)
            cost = abs(criterion.weight) / best if best else _NAN
            runs = 1 + elsewhere.get((doc.id, criterion.id), 0)
            found.append(Costly(doc, criterion, criterion.weight, cost, runs))
    found.sort(key=lambda c: (-abs(c.points), -c.runs, -c.cost, c.document.id))
    return tuple(found[:_LISTED])


# --- how far to trust it ---------------------------------------------------------------------


def _trust(
    run: Run, suite: str, tasks: Sequence[str], documents: Sequence[Document], benchmark: str
) -> Trust:
    row = run.rows[suite]
    low, high = (stated(row, f"{PRIMARY[benchmark]}_{end}").value for end in ("low", "high"))
    voted = [c for doc in documents for c in all_criteria(doc) if len(c.votes) > 1]
    return Trust(
        documents=len(documents) or int(row.get("sample_len") or 0),
        scored=sum(not math.isnan(doc.score) for doc in documents),
        excluded=tuple(doc for doc in documents if math.isnan(doc.score)),
        empty=_with_status(documents, "empty"),
        cut=_with_status(documents, "cut_in_reasoning"),
        prompts_cut=sum(_count(_metadata(run, t), "prompts_cut") for t in tasks),
        answers_shortened=sum(_count(_metadata(run, t), "answers_shortened") for t in tasks),
        bounds=(low, high) if low < high else None,
        contradictions=sum(c.contradicts for doc in documents for c in all_criteria(doc)),
        smallest_difference=_smallest_difference(documents, benchmark, run),
        judge_share=paired.judge_share(
            [list(_scores_by_opinion(doc).values()) for doc in documents]
        ),
        split=sum(is_split(c) for c in voted),
        voted=len(voted),
        heaviest_split=_heaviest_split(documents),
        opinions=tuple(_opinions(documents)),
        agreement=tuple(
            (label, found.value)
            for metric, label in AGREEMENT.items()
            if (found := stated(row, metric)).known
        ),
    )


def _with_status(documents: Sequence[Document], status: str) -> tuple[Document, ...]:
    return tuple(doc for doc in documents if any(a.status == status for a in doc.answers))


def _count(metadata: Mapping[str, Any], name: str) -> int:
    return int((metadata.get(name) or {}).get("count") or 0)


def is_split(criterion: Graded) -> bool:
    """Whether the opinions on it differ; those that failed are none."""
    return len({v.get("met") for v in criterion.votes if v.get("met") is not None}) > 1


def _heaviest_split(documents: Sequence[Document]) -> tuple[tuple[Document, Graded], ...]:
    found = [(doc, c) for doc in documents for c in all_criteria(doc) if is_split(c)]
    return tuple(sorted(found, key=lambda pair: -abs(pair[1].weight))[:_LISTED])


def _scores_by_opinion(doc: Document) -> dict[str, float]:
    """The first answer's score by each judge and repeat that gave every verdict."""
    by_opinion: dict[str, list[tuple[float, float]]] = {}
    for criterion in doc.criteria:
        for vote in criterion.votes:
            if vote.get("met") is not None:
                key = f"{vote.get('judge')} #{int(vote.get('repeat') or 0) + 1}"
                by_opinion.setdefault(key, []).append((criterion.weight, float(vote["met"])))
    best = sum(c.weight for c in doc.criteria if c.weight > 0)
    return {
        key: sum(w * m for w, m in pairs) / best
        for key, pairs in by_opinion.items()
        if len(pairs) == len(doc.criteria) and best
    }


def _opinions(documents: Sequence[Document]) -> list[tuple[str, float]]:
    by_key: dict[str, list[float]] = {}
    for doc in documents:
        for key, value in _scores_by_opinion(doc).items():
            by_key.setdefault(key, []).append(value)
    return [(key, statistics.clipped_mean(values)) for key, values in sorted(by_key.items())]


# --- several runs ----------------------------------------------------------------------------


def weights_of(benchmark: str, run: Run, tasks: Sequence[str]) -> dict[str, float]:
    """Each task's weight in the headline score where it is a weighted mean, else empty."""
    subsets = {task: _subset(run, task) for task in tasks}
    if benchmark != PLAWBENCH or set(subsets.values()) != set(plawbench.OVERALL_WEIGHTS):
        return {}
    return {task: plawbench.OVERALL_WEIGHTS[subset] for task, subset in subsets.items()}


def _smallest_difference(documents: Sequence[Document], benchmark: str, run: Run) -> float:
    """What two runs like this one tell apart, their scores taken as independent."""
    scored = [doc for doc in documents if not math.isnan(doc.score)]
    weights = weights_of(benchmark, run, sorted({doc.task for doc in scored}))
    by_task: dict[str, list[float]] = {}
    for doc in scored:
        by_task.setdefault(doc.task if weights else "", []).append(doc.score)
    return paired.smallest_difference_alone(
        [(np.array(scores), weights.get(task, 1.0)) for task, scores in by_task.items()]
    )


def against(first: Section, second: Section) -> Against | None:
    """``second`` minus ``first`` on shared documents; None where too few of them have scores."""
    theirs = {(doc.task, doc.id): doc.score for doc in second.documents}
    pairs = [
        (doc.task, doc.score, theirs[doc.task, doc.id])
        for doc in first.documents
        if not math.isnan(doc.score + theirs.get((doc.task, doc.id), _NAN))
    ]
    weights = weights_of(first.benchmark, first.run, sorted({task for task, _, _ in pairs}))
    if not pairs or ("overall" in first.run.rows[first.suite] and not weights):
        return None
    by_task: dict[str, list[tuple[float, float]]] = {}
    for task, before, after in pairs:
        by_task.setdefault(task if weights else "", []).append((before, after))
    strata = [
        paired.Stratum(
            np.array([before for before, _ in scores]),
            np.array([after for _, after in scores]),
            weights.get(task, 1.0),
        )
        for task, scores in by_task.items()
    ]
    return Against(second.run, paired.difference(strata, clip=first.benchmark == PRBENCH))


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
