"""Two runs on the same documents: how large their difference is, and how sure that is.

Pure functions over scores. NaN stands for what cannot be said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from custom_metrics.statistics import BOOTSTRAP_DRAWS, BOOTSTRAP_SEED

LEVEL, POWER = 0.05, 0.8
_TOLD_APART = NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(POWER)
# Documents: of fewer, not even all of them moving one way is proof at this level (sign test).
_LEAST = 6
_SAME = 1e-9  # what rounding leaves between equal scores
_NUMBERS_AT_ONCE = 4_000_000

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Stratum:
    """The same documents' scores in two runs, and the weight of their mean in the whole score."""

    first: Scores
    second: Scores
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape or not self.first.size:
            raise ValueError("the same documents, one or more, are needed in both runs")


@dataclass(frozen=True)
class Difference:
    """``second`` minus ``first`` with its 95% interval (NaN below two documents).

    ``wins`` counts the documents that are better in the second run. ``smallest`` is the difference
    that two such runs tell apart (see :func:`smallest_difference`). ``told_apart``: the interval
    leaves out zero, and is of six documents or more.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    documents: int
    wins: int
    ties: int
    losses: int
    smallest: float
    told_apart: bool

    @property
    def moved(self) -> int:
        return self.wins + self.losses


def difference(strata: Sequence[Stratum], *, clip: bool = False) -> Difference:
    """The difference of two runs' scores, a score being Σ weight × mean over the strata.

    ``clip`` makes it max(0, ·), of the means and not of each document. The interval is that of a
    seeded paired bootstrap: documents are drawn within their stratum, the same for both runs, and
    the percentiles are those that suit few documents as well (see :func:`_outside`).
    """
    first, second = (
        _clipped(sum(s.weight * float(side.mean()) for s, side in sides), clip)
        for sides in ([(s, s.first) for s in strata], [(s, s.second) for s in strata])
    )
    moves = np.concatenate([s.second - s.first for s in strata])
    low = high = math.nan
    if all(s.first.size > 1 for s in strata):
        outside = _outside([(s.second - s.first, s.weight) for s in strata])
        ends = np.quantile(_draws(strata, clip), [outside, 1 - outside])
        low, high = (float(end) for end in ends)
    return Difference(
        first,
        second,
        second - first,
        low,
        high,
        documents=int(moves.size),
        wins=int((moves > _SAME).sum()),
        ties=int((np.abs(moves) <= _SAME).sum()),
        losses=int((moves < -_SAME).sum()),
        smallest=smallest_difference([(s.second - s.first, s.weight) for s in strata]),
        told_apart=(low > 0 or high < 0) and all(s.first.size >= _LEAST for s in strata),
    )


def _clipped(score: float, clip: bool) -> float:
    return max(0.0, score) if clip else score


def _draws(strata: Sequence[Stratum], clip: bool) -> Scores:
    """The difference in each draw of the bootstrap."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    totals = np.zeros((2, BOOTSTRAP_DRAWS))
    for stratum in strata:
        both = np.stack([stratum.first, stratum.second])
        size = both.shape[1]
        step = max(1, _NUMBERS_AT_ONCE // size)
        for start in range(0, BOOTSTRAP_DRAWS, step):
            count = min(step, BOOTSTRAP_DRAWS - start)
            chosen = rng.integers(size, size=(count, size), dtype=np.int32)
            totals[:, start : start + count] += stratum.weight * both[:, chosen].mean(axis=2)
    first, second = np.maximum(totals, 0.0) if clip else totals
    return np.asarray(second - first)


def _outside(changes: Sequence[tuple[Scores, float]]) -> float:
    """The share of draws on either side of the interval; 2.5% for many documents.

    A plain percentile interval is too narrow for few. This is Hesterberg's expanded one: its width
    is that of Student's t (by Welch and Satterthwaite where there are strata), its shape the
    bootstrap's. PLawBench has subsets of six documents.
    """
    sizes = np.array([values.size for values, _ in changes])
    errors = np.array([w**2 * float(values.var(ddof=1)) / values.size for values, w in changes])
    if not errors.sum():
        return LEVEL / 2
    freedom = errors.sum() ** 2 / (errors**2 / (sizes - 1)).sum()
    drawn = (errors * (sizes - 1) / sizes).sum()  # what the draws vary by
    reach = stats.t.ppf(1 - LEVEL / 2, freedom) * math.sqrt(errors.sum() / drawn)
    return float(stats.norm.sf(reach))


# --- is the sample large enough? -----------------------------------------------------------


def smallest_difference(changes: Sequence[tuple[Scores, float]]) -> float:
    """The smallest true difference that a paired comparison finds with 80% power at 5%, two-sided.

    ``changes`` are the documents' differences between two runs and their stratum's weight: it is
    (1.96 + 0.84) standard errors. Clipping is not looked at. NaN below two documents.
    """
    return _TOLD_APART * _error(changes)


def smallest_difference_alone(
    scores: Sequence[tuple[Scores, float]], correlation: float = 0.0
) -> float:
    """:func:`smallest_difference` expected from one run's scores, before there is a second one.

    It assumes that the other run's scores are spread as widely, and how they go along with these:
    ``correlation`` 0 is two models that have nothing in common, the most cautious case. Models
    mostly find the same documents hard, so that pairs tell smaller differences: at 0.5 it is 0.71
    of this.
    """
    return _TOLD_APART * math.sqrt(2 * (1 - correlation)) * _error(scores)


def _error(strata: Sequence[tuple[Scores, float]]) -> float:
    """The standard error of Σ weight × mean."""
    if not strata or any(values.size < 2 for values, _ in strata):
        return math.nan
    return math.sqrt(sum(w**2 * float(values.var(ddof=1)) / values.size for values, w in strata))


def judge_share(opinions: Sequence[Sequence[float]]) -> float:
    """The share of the variance of documents' scores that comes from the judge, in [0, 1].

    ``opinions`` holds for each document its scores by each opinion alone. One-way random effects
    (1 − ICC(1)) of a single opinion's score; the mean or majority of several has less. NaN unless
    two documents have scores, and one of them several.
    """
    groups = [np.asarray(scores, dtype=np.float64) for scores in opinions if len(scores)]
    total = sum(group.size for group in groups)
    if len(groups) < 2 or total == len(groups):
        return math.nan
    mean = float(np.concatenate(groups).mean())
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (total - len(groups))
    between = sum(g.size * (float(g.mean()) - mean) ** 2 for g in groups) / (len(groups) - 1)
    each = (total - sum(g.size**2 for g in groups) / total) / (len(groups) - 1)
    documents = max(0.0, (between - within) / each)
    return within / (within + documents) if within + documents else math.nan
