"""``lm-eval-rubrics compare``: two runs on the documents that both have scored.

From runs to differences. What cannot be compared is refused, with what differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from custom_metrics import plawbench, prbench
from custom_metrics.analysis.documents import AXES, PLAWBENCH, PRBENCH, PRIMARY, Document
from custom_metrics.analysis.paired import Difference, Stratum, difference
from custom_metrics.analysis.reliability import judge_shares, overall_weights
from custom_metrics.analysis.results import Provenance, Run
from custom_metrics.errors import ConfigError, DataError

# Settings of a judge that decide when a verdict comes, and not what it says. Which prompt it was
# is known by its hash.
_NO_MATTER = ("api_key_env", "concurrency", "max_retries", "note", "prompt", "timeout")
_ENDPOINT = ".endpoint"
_FEW = 20  # documents, below which a bootstrap's interval is rough

_OTHERS = {
    PRBENCH: ("normalized_score",),
    PLAWBENCH: tuple(f"{name}_acc" for name, _, _ in plawbench.SECTIONS),
}
_OVERALL = "overall"  # PLawBench's, of all four subsets


@dataclass(frozen=True)
class Line:
    """A metric of a task or group, over all its documents or those with ``value`` at ``axis``."""

    task: str
    metric: str
    difference: Difference
    axis: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class Comparison:
    """``second`` against ``first``. ``differing`` says what should be the same and is not."""

    first: Run
    second: Run
    lines: tuple[Line, ...]
    differing: tuple[str, ...]
    notes: tuple[str, ...]


def compare(first: Run, second: Run, *, anyway: bool = False) -> Comparison:
    """Every metric of every task and group that both have.

    Raises :class:`ConfigError` where judge, prompts, data or a task's version differ, unless
    ``anyway``, and :class:`DataError` where there is nothing to compare.
    """
    tasks = [task for task in first.configs if task in second.configs]
    if not tasks:
        raise DataError(
            f"the runs have no task in common: {', '.join(first.configs)} in {first.label}, "
            f"{', '.join(second.configs)} in {second.label}"
        )
    differing = tuple(differences(first, second, tasks))
    if differing and not anyway:
        raise ConfigError(
            "these runs were not graded alike, and their difference would not be the models'. "
            f"{'. '.join(differing)}. Add --anyway to compare them all the same"
        )
    lines: list[Line] = []
    notes = [
        f"{text}: the same judge only if the same model answers there"
        for text in endpoints(first, second, tasks)
    ]
    for name, members in _suites(first, second, tasks):
        pairs = _pairs(first, second, members)
        if members == [name]:
            notes += _notes(name, first, second, pairs)
        if pairs:
            grouped = {task for g, of in first.groups.items() for task in of if g != name}
            alone = not grouped & set(members)
            lines += _lines(name, overall_weights(first, members), pairs, alone=alone)
    if not lines:
        raise DataError(
            "the runs have no scored document in common; the samples files are needed "
            f"(--log_samples). {'. '.join((*notes, *first.notes, *second.notes))}"
        )
    notes += [text for run in (first, second) for text in (*run.conflicts, *run.notes)]
    if any(line.difference.documents < _FEW and line.axis is None for line in lines):
        notes.append(f"with fewer than {_FEW} documents an interval is rough")
    return Comparison(first, second, tuple(lines), differing, tuple(notes))


# --- may they be compared? -----------------------------------------------------------------


def differences(
    first: Run, second: Run, tasks: Sequence[str], names: tuple[str, str] = ("A", "B")
) -> list[str]:
    """What the scores of ``tasks`` depend on, besides the model, and is not the same.

    ``names`` are what the text calls the runs.
    """
    return _unequal(first, second, tasks, _decisive, names)


def endpoints(first: Run, second: Run, tasks: Sequence[str]) -> list[str]:
    """Where the judge was reached, if that is not the same: a server of one's own may move, or
    another model answer to the name."""
    return _unequal(
        first,
        second,
        tasks,
        lambda of: {k: v for k, v in _flat("judge", of.judge) if k.endswith(_ENDPOINT)},
        ("A", "B"),
    )


def _unequal(
    first: Run,
    second: Run,
    tasks: Sequence[str],
    what: Callable[[Provenance], dict[str, Any]],
    names: tuple[str, str],
) -> list[str]:
    found: dict[str, list[str]] = {}
    for task in tasks:
        a, b = what(first.provenance(task)), what(second.provenance(task))
        for name in dict.fromkeys((*a, *b)):
            if a.get(name) != b.get(name):
                sides = [
                    f"{_said(of.get(name))} in {run}" for of, run in ((a, names[0]), (b, names[1]))
                ]
                text = f"{name}: {', '.join(sides)}"
                found.setdefault(text, []).append(task)
    return [
        text if len(of) == len(tasks) else f"{text} ({', '.join(of)})" for text, of in found.items()
    ]


def _decisive(of: Provenance) -> dict[str, Any]:
    return {
        **{k: v for k, v in _flat("judge", of.judge) if not k.endswith(_ENDPOINT)},
        **{f"judge prompt, {role}": value[:12] for role, value in of.judge_prompt.items()},
        **{f"task prompt, {role}": value[:12] for role, value in of.task_prompt.items()},
        "data": of.data[:12],
        "task version": of.version,
    }


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Settings by the path to them; a panel's are nested."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NO_MATTER:
                yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(f"{name}[{number}]", inner)
    else:
        yield name, value


def _said(value: Any) -> str:
    return "not set" if value is None else f"{value:.80}" if isinstance(value, str) else str(value)


# --- what is compared ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    first: Document
    second: Document


def _suites(first: Run, second: Run, tasks: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Groups that both runs have in full, then tasks; each with its tasks."""
    groups = [
        (name, list(members))
        for name, members in first.groups.items()
        if set(second.groups.get(name, ())) == set(members) and set(members) <= set(tasks)
    ]
    return [*groups, *((task, [task]) for task in tasks)]


def _pairs(first: Run, second: Run, tasks: Sequence[str]) -> list[_Pair]:
    """The documents that both runs have, with a score or without."""
    theirs = {(document.task, document.id): document for document in second.documents_of(tasks)}
    return [
        _Pair(document, other)
        for document in first.documents_of(tasks)
        if (other := theirs.get((document.task, document.id)))
    ]


def _notes(name: str, first: Run, second: Run, pairs: Sequence[_Pair]) -> Iterator[str]:
    """What one has to know of a task's documents."""
    sizes = [len(run.documents_of([name])) for run in (first, second)]
    scored = sum(not math.isnan(pair.first.score + pair.second.score) for pair in pairs)
    if scored < max(sizes):
        yield (
            f"{name}: {scored} documents are compared, of {sizes[0]} in A and {sizes[1]} in B; "
            f"{len(pairs) - scored} that both have lack a score in one"
        )
    changed = sum(pair.first.hash != pair.second.hash for pair in pairs)
    if changed:
        yield f"{name}: {changed} documents do not hold the same in both, and are compared by id"
    if any(len(pair.first.answers) != len(pair.second.answers) for pair in pairs):
        yield f"{name}: the runs have different numbers of answers to a document"
    elif pairs and all(_texts(pair.first) == _texts(pair.second) for pair in pairs):
        yield f"{name}: the answers are the same in both; for two judges of them there is agree"
    for letter, run in (("A", first), ("B", second)):
        for judge, share in judge_shares(run.documents_of([name])).items():
            yield (
                f"{name}: of the variance of {letter}'s scores by one opinion {share:.1%} is the "
                f"judge's ({'whichever judge' if judge == 'all' else judge})"
            )


def metric_difference(
    first: Run, second: Run, tasks: Sequence[str], metric: str
) -> Difference | None:
    """The difference in a metric over the documents of ``tasks`` that have it in both runs.

    ``overall`` is PLawBench's weighted mean over ``tasks``. None where there is nothing to compare.
    """
    return _difference(_pairs(first, second, tasks), metric, overall_weights(first, tasks))


def _texts(document: Document) -> list[str]:
    return [answer.text for answer in document.answers]


def _lines(
    name: str, weights: Mapping[str, float], pairs: Sequence[_Pair], *, alone: bool
) -> Iterator[Line]:
    """``alone`` is a group, or a task of none: its documents are looked at by what they are."""
    benchmark = pairs[0].first.benchmark
    primary = PRIMARY[benchmark]
    if weights:
        if overall := _difference(pairs, _OVERALL, weights):
            yield Line(name, _OVERALL, overall)
        return
    for metric in (primary, *_OTHERS[benchmark]):
        yield from _line(name, metric, pairs)
    names = {prbench.slug(c.category): c.category for p in pairs for c in p.first.criteria}
    for slug in sorted(names) if benchmark == PRBENCH else ():
        yield from _line(name, f"category_{slug}", pairs, "rubric category", names[slug])
    for axis in AXES[benchmark] if alone else ():
        values = {pair.first.axes[axis] for pair in pairs if axis in pair.first.axes}
        for value in sorted(values) if len(values) > 1 else ():
            chosen = [pair for pair in pairs if pair.first.axes.get(axis) == value]
            yield from _line(name, primary, chosen, axis, value)


def _line(
    name: str,
    metric: str,
    pairs: Sequence[_Pair],
    axis: str | None = None,
    value: str | None = None,
) -> Iterator[Line]:
    """One line, or none where no document has the metric in both runs."""
    if found := _difference(pairs, metric):
        yield Line(name, metric, found, axis, value)


def _difference(
    pairs: Sequence[_Pair], metric: str, weights: Mapping[str, float] | None = None
) -> Difference | None:
    """``weights`` of the tasks in :data:`_OVERALL`, which needs documents of each."""
    if metric == _OVERALL:
        by_task = [
            _stratum(
                [pair for pair in pairs if pair.first.task == task], PRIMARY[PLAWBENCH], weight
            )
            for task, weight in (weights or {}).items()
        ]
        strata = [stratum for stratum in by_task if stratum]
        return difference(strata) if strata and len(strata) == len(by_task) else None
    whole = _stratum(pairs, metric)
    return difference([whole], clip=metric == PRIMARY[PRBENCH]) if whole else None


def _stratum(pairs: Sequence[_Pair], metric: str, weight: float = 1.0) -> Stratum | None:
    if not pairs:
        return None
    scores = np.array(
        [[d.scores.get(metric, math.nan) for d in (p.first, p.second)] for p in pairs],
        dtype=np.float64,
    )
    scores = scores[~np.isnan(scores).any(axis=1)]
    return Stratum(scores[:, 0], scores[:, 1], weight) if scores.size else None
