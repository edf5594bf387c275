"""Is a run's sample large enough, and how much of its spread is the judge's? From documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from custom_metrics import plawbench
from custom_metrics.analysis.documents import Document
from custom_metrics.analysis.paired import judge_share, smallest_difference_alone
from custom_metrics.analysis.results import Run


def overall_weights(run: Run, tasks: Sequence[str]) -> Mapping[str, float]:
    """Each task's weight in PLawBench's Overall, where they are its four subsets; else empty."""
    subsets = {task: str(run.configs[task].get("test_split")) for task in tasks}
    if set(subsets.values()) != set(plawbench.OVERALL_WEIGHTS):
        return {}
    return {task: plawbench.OVERALL_WEIGHTS[subset] for task, subset in subsets.items()}


def smallest_difference(
    documents: Sequence[Document], weights: Mapping[str, float], correlation: float = 0.0
) -> float:
    """What a second run on these documents would have to differ by to be told apart.

    ``weights`` as :func:`overall_weights` gives them, ``correlation`` is the assumption of
    :func:`custom_metrics.analysis.paired.smallest_difference_alone`.
    """
    by_task: dict[str, list[float]] = {}
    for document in documents:
        if not math.isnan(document.score):
            by_task.setdefault(document.task if weights else "", []).append(document.score)
    if weights and by_task.keys() != weights.keys():
        return math.nan
    strata = [(np.array(scores), weights.get(task, 1.0)) for task, scores in by_task.items()]
    return smallest_difference_alone(strata, correlation)


Opinion = tuple[str, int]
"""A judge's name and the number of its repeat, from 0."""


def opinion_scores(document: Document) -> dict[Opinion, float]:
    """The document's score by each opinion alone, of those that gave every verdict."""
    of_answers: dict[Opinion, list[float]] = {}
    for answer in document.answers:
        best = sum(c.weight for c in answer.criteria if c.weight > 0)
        points: dict[Opinion, list[float]] = {}
        for criterion in answer.criteria:
            for vote in criterion.votes:
                if vote["met"] is not None:
                    key = str(vote["judge"]), int(vote["repeat"])
                    points.setdefault(key, []).append(criterion.weight * float(vote["met"]))
        for key, each in points.items():
            if best and len(each) == len(answer.criteria):
                of_answers.setdefault(key, []).append(sum(each) / best)
    judged = sum(not answer.empty for answer in document.answers)
    return {
        key: sum(each) / len(document.answers)
        for key, each in of_answers.items()
        if len(each) == judged
    }


def judge_shares(documents: Sequence[Document]) -> dict[str, float]:
    """The judge's share of the variance of the documents' scores by one opinion, where there are
    several.

    By each judge's name, of its repeats (how far it contradicts itself), and, with more than one
    judge, under ``all`` of all opinions (whom one asks counts too). Empty without several opinions.
    """
    scores = [opinion_scores(document) for document in documents]
    judges = sorted({judge for each in scores for judge, _ in each})
    shares = {
        judge: judge_share([[s for (j, _), s in each.items() if j == judge] for each in scores])
        for judge in judges
    }
    if len(judges) > 1:
        shares["all"] = judge_share([list(each.values()) for each in scores])
    return {name: share for name, share in shares.items() if not math.isnan(share)}
