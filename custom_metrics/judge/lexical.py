"""A judge without a model: how much of a criterion's wording an answer repeats.

A smoke test for the plumbing around a judge. It cannot read, and its scores mean nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

from sacrebleu.metrics import CHRF

from custom_metrics.judge.calls import JudgeCall, Reply

_SENTENCE_END = re.compile(r"(?<=[.!?。!?;;])\s*|\n+")
_chrf = CHRF()


class LexicalClient:
    """Answers a call with :func:`overlap`, in the form that the benchmark's judge would use."""

    async def check(self) -> None:
        """Nothing can be wrong."""

    async def close(self) -> None:
        """Nothing to close."""

    async def send(self, call: JudgeCall[Any], _max_tokens: int | None) -> Reply:
        return Reply(call.write([overlap(criterion, call.answer) for criterion in call.criteria]))


def overlap(criterion: str, answer: str) -> float:
    """chrF between ``criterion`` and the stretch of ``answer`` most like it, in [0, 1]."""
    return max((_chrf_score(piece, criterion) for piece in _stretches(answer)), default=0.0)


def _chrf_score(piece: str, criterion: str) -> float:
    return float(_chrf.sentence_score(piece, [criterion]).score) / 100


@lru_cache(maxsize=64)
def _stretches(answer: str) -> tuple[str, ...]:
    """Sentences and pairs of neighbouring ones."""
    sentences = [s.strip() for s in _SENTENCE_END.split(answer) if s.strip()]
    pairs = [f"{a} {b}" for a, b in pairwise(sentences)]
    return tuple(sentences + pairs)
