"""A graded document, as what is made of runs sees it. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAN = float("nan")

PRBENCH, PLAWBENCH = "prbench", "plawbench"
PRIMARY = {PRBENCH: "clipped_score", PLAWBENCH: "acc"}
"""The metric of each benchmark that its headline is made of."""

AXES = {
    PRBENCH: ("topic", "expert", "turns", "economic_pathway", "decision_type", "field"),
    PLAWBENCH: ("subset", "category"),
}
"""What documents are described by; ``turns`` is the number of user turns."""


@dataclass(frozen=True)
class Graded:
    """A criterion and its verdict; PLawBench's are the sections of its rubric, or its ``total``.

    ``met`` is the share of ``weight`` that was awarded: 0 or 1 for a yes or no, between them for
    points, None without a verdict or with nothing to award. ``votes`` are the opinions behind it
    where several were asked for, each with ``judge``, ``repeat``, ``met``, ``explanation`` and
    ``failure``. ``breakdown`` is the judge's own list of a section's points.
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
class Answered:
    """One answer of the model: its text as it was graded, and what the judge made of it.

    ``status`` is ``answered``, ``empty`` or ``cut_in_reasoning``; the judge sees only the first.
    ``remark`` is the judge's text on the answer as a whole, where it writes one.
    """

    text: str
    status: str
    criteria: tuple[Graded, ...]
    remark: str | None = None

    @property
    def empty(self) -> bool:
        return self.status != "answered"


@dataclass(frozen=True)
class Document:
    """One document of a task. ``scores`` are its metrics, NaN where it has no value; ``hash`` is
    the harness's, of what the document was before it was answered."""

    benchmark: str
    task: str
    id: str
    hash: str
    scores: Mapping[str, float]
    axes: Mapping[str, str]
    messages: tuple[Mapping[str, str], ...]
    answers: tuple[Answered, ...]

    @property
    def score(self) -> float:
        """The document's share of the headline score; NaN if it has none."""
        return self.scores.get(PRIMARY[self.benchmark], _NAN)

    @property
    def excluded(self) -> bool:
        """Whether a criterion without a verdict keeps it out of the means."""
        return self.scores.get("judge_coverage") == 0

    @property
    def empty(self) -> bool:
        return self.answers[0].empty

    # Of the first answer; most runs have one.

    @property
    def answer(self) -> str:
        return self.answers[0].text

    @property
    def status(self) -> str:
        return self.answers[0].status

    @property
    def criteria(self) -> tuple[Graded, ...]:
        return self.answers[0].criteria

    @property
    def remark(self) -> str | None:
        return self.answers[0].remark
