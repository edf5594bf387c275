"""Where points went: criteria that were missed, and harmful ones that were met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from custom_metrics.analysis.documents import Document, Graded
from custom_metrics.analysis.results import Run

_LISTED = 12  # criteria of each list


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


LostByRuns = Mapping[tuple[str, str], int]
"""How many runs lost a criterion, by document and criterion."""


def lost_by_runs(runs: Sequence[Run]) -> LostByRuns:
    """Of all criteria of ``runs``; one that several answers of a run lost counts once."""
    return Counter(
        key
        for run in runs
        for key in {(d.id, c.id) for d in run.documents for c in all_criteria(d) if is_lost(c)}
    )


def lost_points(documents: Sequence[Document], by_runs: LostByRuns) -> Lost:
    """Missed criteria and harm done, in documents with verdicts."""
    pairs = [(doc, c) for doc in documents for c in all_criteria(doc) if c.met is not None]
    missable = [(doc, c) for doc, c in pairs if c.weight > 0]
    harmful = [(doc, c) for doc, c in pairs if c.weight < 0]
    return Lost(
        _kinds(missable, lambda c: c.category),
        _kinds(missable, lambda c: f"{c.weight:g}", by=lambda c: -c.weight),
        _kinds(harmful, lambda c: c.category),
        _kinds(harmful, lambda c: f"−{-c.weight:g}", by=lambda c: c.weight),
        _costliest(missable, by_runs),
        _costliest(harmful, by_runs),
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


def _costliest(pairs: Sequence[tuple[Document, Graded]], by_runs: LostByRuns) -> tuple[Costly, ...]:
    """The heaviest first; of equal weight those that more runs lost, then that cost more."""
    found = []
    seen = set()  # of several answers to a document, the first that lost it
    for doc, criterion in pairs:
        if is_lost(criterion) and (doc.id, criterion.id) not in seen:
            seen.add((doc.id, criterion.id))
            best = sum(c.weight for c in doc.criteria if c.weight > 0)
            cost = abs(criterion.weight) / best if best else math.nan
            runs = by_runs[doc.id, criterion.id]
            found.append(Costly(doc, criterion, criterion.weight, cost, runs))
    found.sort(key=lambda c: (-abs(c.points), -c.runs, -c.cost, c.document.id))
    return tuple(found[:_LISTED])
