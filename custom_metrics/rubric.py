"""The objects that travel between a benchmark and its judge, in the field's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from custom_metrics.answer import Answer
from custom_metrics.judge import Outcome

Message = dict[str, str]
"""``{"role": …, "content": …}``, as chat models take it."""

Doc = Mapping[str, Any]
"""A document: what a benchmark keeps of one row. It is written to the samples file."""


@dataclass(frozen=True)
class Criterion:
    """One item of a rubric: what an answer should (positive weight) or should not do."""

    id: str
    text: str
    weight: int
    category: str


@dataclass(frozen=True)
class Judgement:
    """What the judge said of one answer.

    ``outcomes`` follow the calls that the benchmark asked for; an empty answer was never shown to
    the judge and has none. ``failed_is_unmet`` is the official way to count a call without a
    verdict; otherwise such a document has no score. ``opinions`` is how many were asked for on each
    call.
    """

    answer: Answer
    outcomes: tuple[Outcome[Any], ...] = ()
    failed_is_unmet: bool = False
    opinions: int = 1

    @property
    def excluded(self) -> bool:
        """Whether the document has to be left out of the means."""
        return any(
            outcome.failed and not (self.failed_is_unmet and outcome.asked)
            for outcome in self.outcomes
        )
