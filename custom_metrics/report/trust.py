"""How far to trust a score: what was left out, what a sample of this size can tell, and how the
judges agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_metrics.analysis import reliability
from custom_metrics.analysis.documents import PRIMARY, Document, Graded
from custom_metrics.analysis.results import Run
from custom_metrics.report.estimates import stated
from custom_metrics.report.labels import AGREEMENT
from custom_metrics.report.lost import all_criteria

_LISTED = 12  # criteria of the list


@dataclass(frozen=True)
class Trust:
    """What a reader has to know before believing the score."""

    documents: int
    scored: int
    excluded: tuple[Document, ...]
    without_score: int
    empty: tuple[Document, ...]
    empty_answers: int
    cut: tuple[Document, ...]
    prompts_cut: int
    answers_shortened: int
    bounds: tuple[float, float] | None
    contradictions: int
    smallest_difference: float
    judge_shares: tuple[tuple[str, float], ...]
    split: int
    voted: int
    heaviest_split: tuple[tuple[Document, Graded], ...]
    opinions: tuple[tuple[str, float], ...]
    agreement: tuple[tuple[str, float], ...]


def trust(
    run: Run, suite: str, tasks: Sequence[str], documents: Sequence[Document], benchmark: str
) -> Trust:
    """Of the documents of ``tasks``, which are those of ``suite``, in one run."""
    row = run.rows[suite]
    low, high = (stated(row, f"{PRIMARY[benchmark]}_{end}").value for end in ("low", "high"))
    voted = [c for doc in documents for c in all_criteria(doc) if len(_given(c)) > 1]
    return Trust(
        documents=len(documents) or int(row.get("sample_len") or 0),
        scored=sum(not math.isnan(doc.score) for doc in documents),
        excluded=tuple(doc for doc in documents if doc.excluded),
        without_score=sum(math.isnan(doc.score) and not doc.excluded for doc in documents),
        empty=_with_status(documents, "empty"),
        empty_answers=sum(a.status == "empty" for doc in documents for a in doc.answers),
        cut=_with_status(documents, "cut_in_reasoning"),
        prompts_cut=sum(_count(run.metadata(t), "prompts_cut") for t in tasks),
        answers_shortened=sum(_count(run.metadata(t), "answers_shortened") for t in tasks),
        bounds=(low, high) if low < high else None,
        contradictions=sum(c.contradicts for doc in documents for c in all_criteria(doc)),
        smallest_difference=reliability.smallest_difference(
            documents, reliability.overall_weights(run, tasks)
        ),
        judge_shares=tuple(reliability.judge_shares(documents).items()),
        split=sum(is_split(c) for c in voted),
        voted=len(voted),
        heaviest_split=_heaviest_split(documents),
        opinions=_opinions(run, tasks),
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
    return len(set(_given(criterion))) > 1


def _given(criterion: Graded) -> list[float]:
    """What each opinion found; those that failed are none."""
    return [float(vote["met"]) for vote in criterion.votes if vote["met"] is not None]


def _heaviest_split(documents: Sequence[Document]) -> tuple[tuple[Document, Graded], ...]:
    found = [(doc, c) for doc in documents for c in all_criteria(doc) if is_split(c)]
    return tuple(sorted(found, key=lambda pair: -abs(pair[1].weight))[:_LISTED])


def _opinions(run: Run, tasks: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """The score by each opinion alone, as the run recorded it; of a group's tasks each has its."""
    found = []
    for task in tasks:
        for opinion in (run.metadata(task).get("judge_opinions") or {}).get("scores", ()):
            name = f"{opinion['judge']} #{opinion['repeat'] + 1}"
            found.append((f"{name}, {task}" if len(tasks) > 1 else name, opinion["score"]))
    return tuple(found)
