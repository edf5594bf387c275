"""``lm-eval-rubrics agree``: two judges, or a judge and people, on the same answers.

From runs and labels to pairs of verdicts, and from pairs to figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.metrics import cohen_kappa_score, f1_score

from custom_metrics import plawbench
from custom_metrics.analysis.documents import PRBENCH, PRIMARY, Answered, Document, Graded
from custom_metrics.analysis.labels import Label, Labels, as_met
from custom_metrics.analysis.paired import Difference, Stratum, difference
from custom_metrics.analysis.results import Run
from custom_metrics.errors import DataError

PUBLISHED = {"macro_f1": 0.802, "kappa": 0.603}
"""PRBench's judge against its experts, as its paper reports it (0.605 by another reading)."""

PEOPLE = "people"
_LISTED = 20  # criteria on which the two differ most
_TENTHS = 10  # steps of shares of points, for κ


@dataclass(frozen=True)
class Pair:
    """One criterion, and the shares of its weight that two judges award."""

    task: str
    document: str
    criterion: Graded
    axes: Mapping[str, str]
    first: float
    second: float
    first_reason: str | None = None
    second_reason: str | None = None

    @property
    def weight_moved(self) -> float:
        """What the second judge's score gains by it, in weight."""
        return self.criterion.weight * (self.second - self.first)


@dataclass(frozen=True)
class Verdicts:
    """How far two judges agree on yes or no. ``both`` is how often both find a criterion met.

    ``macro_f1`` is the mean F1 of the classes that occur, and the same whichever judge is taken
    for the truth. ``kappa`` is Cohen's, NaN where neither ever differs from itself.
    """

    count: int
    both: int
    only_first: int
    only_second: int
    neither: int
    agreement: float
    kappa: float
    macro_f1: float


@dataclass(frozen=True)
class Points:
    """How far two judges agree on points, as shares of what there is to award.

    ``bias`` is the mean of second minus first. ``kappa`` is Cohen's with quadratic weights, over
    shares rounded to tenths; it and the ``correlation`` (Pearson's) are NaN where nothing varies.
    """

    count: int
    bias: float
    mean_difference: float
    correlation: float
    kappa: float


@dataclass(frozen=True)
class Line:
    """Figures for all pairs of a benchmark, or for those with ``value`` at ``axis``."""

    axis: str | None
    value: str | None
    figures: Verdicts | Points


@dataclass(frozen=True)
class Agreement:
    """``first`` and ``second`` judge's names on one benchmark's answers.

    ``effect`` is what the second one in the first one's place does to ``score``, over the
    ``effect.documents`` that both graded in full; None where there is none. ``differing`` are the
    criteria on which they differ most, by weight.
    """

    first: str
    second: str
    benchmark: str
    lines: tuple[Line, ...]
    score: str
    effect: Difference | None
    differing: tuple[Pair, ...]
    notes: tuple[str, ...]


def agree(runs: Sequence[Run], labels: Labels | None = None) -> list[Agreement]:
    """Each two of ``runs`` (one or two) and ``labels``, for each benchmark that they share.

    Raises :class:`DataError` where two of them have no answer in common.
    """
    names = [_judges(run) for run in runs]
    if len(set(names)) < len(names):
        names = [run.label for run in runs]
    found: list[Agreement] = []
    if len(runs) > 1:
        first, second = runs
        matched, notes = _same_answers(first, second)
        found += _agreements(names[0], names[1], matched, notes)
    for name, run in zip(names, runs, strict=True) if labels is not None else ():
        assert labels is not None
        matched, notes = _labelled(run, labels)
        found += _agreements(name, PEOPLE, matched, notes)
    return found


def _judges(run: Run) -> str:
    return ", ".join(dict.fromkeys(run.provenance(task).judge_name for task in run.configs))


# --- the same answers twice ----------------------------------------------------------------


@dataclass(frozen=True)
class _Matched:
    """One answer with two gradings."""

    document: Document
    first: Answered
    second: Answered


def _same_answers(first: Run, second: Run) -> tuple[list[_Matched], list[str]]:
    """The answers that both runs graded, and what was left out."""
    theirs = {(d.task, d.id): d for d in second.documents}
    matched: dict[tuple[str, str, int], _Matched] = {}
    alone = other_answers = other_rubrics = empty = 0
    for document in first.documents:
        other = theirs.get((document.task, document.id))
        if other is None:
            alone += 1
        elif _rubric(document) != _rubric(other):
            other_rubrics += 1
        elif [a.text for a in document.answers] != [a.text for a in other.answers]:
            other_answers += 1
        else:
            for number, (one, two) in enumerate(zip(document.answers, other.answers, strict=True)):
                empty += one.empty
                # Hard splits repeat documents of the full ones: each counts once.
                key = document.benchmark, document.id, number
                if not one.empty:
                    matched.setdefault(key, _Matched(document, one, two))
    left_out = (
        (alone, "documents are in the first run only"),
        (other_answers, "documents have other answers in the second run, and are left out"),
        (other_rubrics, "documents have another rubric in the second run, and are left out"),
        (empty, "answers are empty, and no judge saw them"),
    )
    notes = [f"{count} {what}" for count, what in left_out if count]
    if not matched:
        raise DataError(
            f"the runs have no graded answer in common: {'; '.join(notes) or 'no samples files'}. "
            "Agreement is about one model's answers, judged twice"
        )
    return list(matched.values()), notes


def _rubric(document: Document) -> list[tuple[str, str, float]]:
    return [(c.id, c.text, c.weight) for c in document.criteria]


# --- people's labels -----------------------------------------------------------------------


def _labelled(run: Run, labels: Labels) -> tuple[list[_Matched], list[str]]:
    """The answers of ``run`` with people's labels as their second grading."""
    documents = {d.id: d for d in run.documents}
    several = next((d.id for d in run.documents if len(d.answers) > 1), None)
    if several is not None:
        raise DataError(f"labels do not say which of the answers to {several!r} they are about")
    by_document: dict[str, dict[str, Label]] = {}
    for (name, criterion), label in labels.items():
        by_document.setdefault(name, {})[criterion] = label
    matched: list[_Matched] = []
    unknown = empty = 0
    for name, of_document in by_document.items():
        document = documents.get(name)
        if document is None:
            unknown += len(of_document)
        elif document.empty:
            empty += len(of_document)
        else:
            second = _as_answer(document, of_document)
            matched.append(_Matched(document, document.answers[0], second))
    left_out = ((unknown, "of documents that the run lacks"), (empty, "of empty answers"))
    notes = [f"{count} labels are {what}, and are left out" for count, what in left_out if count]
    if not matched:
        raise DataError(f"no label is about an answer of {run.label}: {'; '.join(notes)}")
    return matched, notes


def _as_answer(document: Document, labels: Mapping[str, Label]) -> Answered:
    criteria = {c.id: c for c in document.criteria}
    for name, label in labels.items():
        if name not in criteria:
            raise DataError(f"{label.place}: {document.id!r} has no criterion {name!r}")
    return Answered(
        document.answer,
        document.status,
        tuple(
            replace(
                criterion,
                met=as_met(labels[name], document, criterion) if name in labels else None,
                explanation=None,
                failure=None,
            )
            for name, criterion in criteria.items()
        ),
    )


# --- figures -------------------------------------------------------------------------------


def _agreements(
    first: str, second: str, matched: Sequence[_Matched], notes: Sequence[str]
) -> Iterator[Agreement]:
    for benchmark in dict.fromkeys(m.document.benchmark for m in matched):
        of_it = [m for m in matched if m.document.benchmark == benchmark]
        pairs = [pair for m in of_it for pair in _pairs(m)]
        unread = sum(len(m.first.criteria) for m in of_it) - len(pairs)
        said = [*notes, *([f"{unread} criteria lack a verdict in one of them"] if unread else [])]
        if not pairs:
            raise DataError(f"no criterion has a verdict of both: {'; '.join(said)}")
        differing = sorted(
            (pair for pair in pairs if abs(pair.second - pair.first) > 0),
            key=lambda pair: (-abs(pair.weight_moved), pair.document, pair.criterion.id),
        )
        yield Agreement(
            first,
            second,
            benchmark,
            tuple(_lines(benchmark, pairs)),
            *_effect(benchmark, of_it),
            tuple(differing[:_LISTED]),
            tuple(said),
        )


def _pairs(matched: _Matched) -> Iterator[Pair]:
    """The criteria that both judged; a call that failed is no verdict, however it was counted."""
    for one, two in zip(matched.first.criteria, matched.second.criteria, strict=True):
        if None not in (one.met, two.met) and not one.failure and not two.failure:
            assert one.met is not None
            assert two.met is not None
            yield Pair(
                matched.document.task,
                matched.document.id,
                one,
                matched.document.axes,
                one.met,
                two.met,
                one.explanation,
                two.explanation,
            )


def _lines(benchmark: str, pairs: Sequence[Pair]) -> Iterator[Line]:
    figures: Callable[[Sequence[Pair]], Verdicts | Points]
    figures = verdicts if benchmark == PRBENCH else points
    axes: dict[str, Callable[[Pair], str | None]]
    if benchmark == PRBENCH:
        axes = {
            "weight": lambda p: "positive" if p.criterion.weight > 0 else "negative",
            "rubric category": lambda p: p.criterion.category,
        }
    else:
        axes = {
            "section": lambda p: p.criterion.category,
            "subset": lambda p: p.axes.get("subset"),
            "category": lambda p: p.axes.get("category"),
        }
    yield Line(None, None, figures(pairs))
    for axis, of in axes.items():
        by_value: dict[str, list[Pair]] = {}
        for pair in pairs:
            if (value := of(pair)) is not None:
                by_value.setdefault(value, []).append(pair)
        for value in sorted(by_value):
            yield Line(axis, value, figures(by_value[value]))


def verdicts(pairs: Sequence[Pair]) -> Verdicts:
    """Of yes-or-no verdicts."""
    first = np.array([pair.first > 0.5 for pair in pairs])
    second = np.array([pair.second > 0.5 for pair in pairs])
    varied = len({*first.tolist(), *second.tolist()}) > 1
    return Verdicts(
        len(pairs),
        int((first & second).sum()),
        int((first & ~second).sum()),
        int((~first & second).sum()),
        int((~first & ~second).sum()),
        float((first == second).mean()),
        float(cohen_kappa_score(first, second)) if varied else math.nan,
        float(f1_score(first, second, average="macro")),
    )


def points(pairs: Sequence[Pair]) -> Points:
    """Of shares of points."""
    first = np.array([pair.first for pair in pairs])
    second = np.array([pair.second for pair in pairs])
    tenths = [np.rint(side * _TENTHS).astype(int) for side in (first, second)]
    varied = first.std() > 0 and second.std() > 0
    differs = len(set(np.concatenate(tenths).tolist())) > 1
    return Points(
        len(pairs),
        float((second - first).mean()),
        float(np.abs(second - first).mean()),
        float(np.corrcoef(first, second)[0, 1]) if varied else math.nan,
        float(cohen_kappa_score(*tenths, weights="quadratic", labels=range(_TENTHS + 1)))
        if differs
        else math.nan,
    )


def _effect(benchmark: str, matched: Sequence[_Matched]) -> tuple[str, Difference | None]:
    """The score's name, and what it is by the one and by the other."""
    scores: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for m in matched:
        both = _score(m.first), _score(m.second)
        if not math.isnan(both[0] + both[1]):
            key = m.document.axes.get("subset", ""), m.document.id
            scores.setdefault(key, []).append(both)
    by_subset: dict[str, list[Any]] = {}
    for (subset, _), each in scores.items():
        by_subset.setdefault(subset, []).append(np.mean(each, axis=0))
    if by_subset.keys() == plawbench.OVERALL_WEIGHTS.keys():
        parts = {subset: np.array(means) for subset, means in by_subset.items()}
        weights = plawbench.OVERALL_WEIGHTS
        return "overall", difference(
            [Stratum(means[:, 0], means[:, 1], weights[subset]) for subset, means in parts.items()]
        )
    name = PRIMARY[benchmark]
    if not scores:
        return name, None
    means = np.concatenate([np.array(of_subset) for of_subset in by_subset.values()])
    stratum = Stratum(means[:, 0], means[:, 1])
    return name, difference([stratum], clip=benchmark == PRBENCH)


def _score(answer: Answered) -> float:
    """Σ weight × met / Σ positive weights; NaN without every verdict."""
    best = sum(c.weight for c in answer.criteria if c.weight > 0)
    known = [c.weight * c.met for c in answer.criteria if c.met is not None and not c.failure]
    return sum(known) / best if best and len(known) == len(answer.criteria) else math.nan
