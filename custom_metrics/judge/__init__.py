"""Asking a judge, and reading what it says. Knows nothing of any benchmark.

A benchmark hands :class:`JudgeCall` objects to :class:`Judge` and gets an :class:`Outcome` for
each. ``config`` holds the settings, ``client``, ``in_process`` and ``lexical`` are the kinds of
judge, ``engine`` keeps the calls in flight and asks again, ``panel`` asks several
judges, ``verdicts`` reads replies.
"""

from custom_metrics.judge.calls import (
    JudgeCall,
    Outcome,
    Reply,
    Request,
    Unreadable,
    Vote,
    strict_object,
)
from custom_metrics.judge.config import JudgeConfig, resolve_config
from custom_metrics.judge.engine import Judge, shared_judge
from custom_metrics.judge.panel import Panel
from custom_metrics.judge.replies import excerpt, object_with
from custom_metrics.judge.verdicts import MET_SCHEMA, Met, majority, read_met, write_met

__all__ = [
    "MET_SCHEMA",
    "Judge",
    "JudgeCall",
    "JudgeConfig",
    "Met",
    "Outcome",
    "Panel",
    "Reply",
    "Request",
    "Unreadable",
    "Vote",
    "excerpt",
    "majority",
    "object_with",
    "read_met",
    "resolve_config",
    "shared_judge",
    "strict_object",
    "write_met",
]
