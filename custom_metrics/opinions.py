"""How far several opinions on the same answers agree, and what that does to the score.

Pure functions. A benchmark gives :class:`Opinions` of a document, the task makes metrics of them:

- ``judge_split``: the share of questions (criteria or sections) with at least two opinions on
  which these differ;
- ``judge_alpha``: Krippendorff's α over all questions of all documents (interval, which for yes
  and no is the nominal one), 1 for agreement and 0 for chance;
- ``judge_sd``: the standard deviation of the task's score between the opinions, each of them
  taken alone, over the documents that all of them scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import krippendorff
import numpy as np
from numpy.typing import NDArray

from custom_metrics import statistics

_NAN = float("nan")
# α's cost grows with the square of the number of different values: shares of points are rounded.
_STEPS = 50


@dataclass(frozen=True)
class Opinions:
    """What several opinions, always in the same order, say of one document.

    ``votes`` holds for each question what each of them says, in [0, 1]; ``scores`` the document's
    score by each alone. NaN stands for an opinion that is missing.
    """

    votes: tuple[tuple[float, ...], ...]
    scores: tuple[float, ...]


class FromOpinions(float):
    """A document's value of a metric, with the opinions that a task's value is made from.

    α or the spread of all documents is no mean of each one's; a plain number for everyone else.
    """

    opinions: Opinions

    def __new__(cls, value: float, opinions: Opinions) -> FromOpinions:
        made = super().__new__(cls, value)
        made.opinions = opinions
        return made

    def __getnewargs__(self) -> tuple[float, Opinions]:  # type: ignore[override]
        return float(self), self.opinions


def of_answers(each: Sequence[Opinions]) -> Opinions:
    """The opinions on several answers to one document as one: all votes, and the mean scores."""
    if len(each) == 1:
        return each[0]
    scores = zip(*(opinions.scores for opinions in each), strict=True)
    return Opinions(
        tuple(votes for opinions in each for votes in opinions.votes),
        tuple(sum(of_one) / len(of_one) for of_one in scores),
    )


def metrics(opinions: Opinions) -> dict[str, float]:
    """The metrics of one document."""
    return {
        "judge_split": split(opinions.votes),
        "judge_alpha": FromOpinions(_alpha(opinions.votes), opinions),
        "judge_sd": FromOpinions(_sd(opinions.scores), opinions),
    }


def split(votes: Sequence[Sequence[float]]) -> float:
    """The share of questions on which opinions differ; NaN where none has two of them."""
    known = [[vote for vote in of_one if vote == vote] for of_one in votes]
    split_ones = [len(set(of_one)) > 1 for of_one in known if len(of_one) > 1]
    return sum(split_ones) / len(split_ones) if split_ones else _NAN


# --- over all documents ----------------------------------------------------------------------


def alpha(values: Sequence[float]) -> float:
    """Krippendorff's α over the questions of all documents. NaN where all say the same."""
    return _alpha([votes for opinions in _all(values) for votes in opinions.votes])


def clipped_mean_sd(values: Sequence[float]) -> float:
    """The standard deviation between the opinions' clipped means."""
    return _sd(_scores_by_opinion(values, statistics.clipped_mean))


def mean_sd(values: Sequence[float]) -> float:
    """The standard deviation between the opinions' means."""
    return _sd(_scores_by_opinion(values, statistics.mean))


def record(
    values: Sequence[float],
    asked: Sequence[tuple[str, int]],
    mean: Callable[[Sequence[float]], float],
) -> dict[str, Any]:
    """The score by each opinion alone, least, most and standard deviation, for a results file.

    Over the ``documents`` that every opinion scored. ``asked`` names the opinions, ``mean`` makes
    the task's score of the documents'.
    """
    scores = _scores_by_opinion(values, mean)
    return {
        "documents": len(_complete(values)),
        "scores": [
            {"judge": judge, "repeat": repeat, "score": score}
            for (judge, repeat), score in zip(asked, scores or [_NAN] * len(asked), strict=True)
        ],
        "min": min(scores, default=_NAN),
        "max": max(scores, default=_NAN),
        "sd": _sd(scores),
    }


def _all(values: Sequence[float]) -> list[Opinions]:
    return [value.opinions for value in values if isinstance(value, FromOpinions)]


def _complete(values: Sequence[float]) -> NDArray[np.float64]:
    """The scores of the documents that every opinion scored: a row each.

    None where these are empty answers only, about which no judge was asked.
    """
    complete = [o for o in _all(values) if not any(score != score for score in o.scores)]
    asked = any(opinions.votes for opinions in complete)
    return np.asarray([o.scores for o in complete] if asked else [], dtype=np.float64)


def _scores_by_opinion(
    values: Sequence[float], mean: Callable[[Sequence[float]], float]
) -> list[float]:
    table = _complete(values)
    return [mean(list(column)) for column in table.T] if table.size else []


def _sd(scores: Sequence[float]) -> float:
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else _NAN


def _alpha(votes: Sequence[Sequence[float]]) -> float:
    # A question with one opinion says nothing about agreement.
    told = [of_one for of_one in votes if sum(vote == vote for vote in of_one) > 1]
    if not told:
        return _NAN
    table = np.round(np.asarray(told, dtype=np.float64).T * _STEPS) / _STEPS
    if len(np.unique(table[~np.isnan(table)])) < 2:
        return _NAN  # nothing varies, so that chance and agreement are one
    return float(krippendorff.alpha(reliability_data=table, level_of_measurement="interval"))
