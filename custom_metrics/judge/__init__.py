"""Asking a judge, and reading what it says. Knows nothing of any benchmark.

A benchmark hands :class:`JudgeCall` objects to :class:`Judge` and gets an :class:`Outcome` for
each. ``config`` holds the settings, ``client`` and ``lexical`` are the two kinds of judge,
``engine`` keeps the calls in flight and asks again, ``verdicts`` reads replies.
"""

from custom_metrics.judge.calls import JudgeCall, Outcome, Reply, Unreadable
from custom_metrics.judge.config import JudgeConfig, resolve_config
from custom_metrics.judge.engine import Judge, shared_judge
from custom_metrics.judge.replies import excerpt, object_with
from custom_metrics.judge.verdicts import Met, read_met, write_met

__all__ = [
    "Judge",
    "JudgeCall",
    "JudgeConfig",
    "Met",
    "Outcome",
    "Reply",
    "Unreadable",
    "excerpt",
    "object_with",
    "read_met",
    "resolve_config",
    "shared_judge",
    "write_met",
]
