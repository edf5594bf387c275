"""A score with its 95% interval, from a results file or from documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_metrics import statistics

Z95 = 1.959964  # two-sided 95%
_NAN = math.nan


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, NaN where there is none, and the documents behind it."""

    value: float
    low: float = _NAN
    high: float = _NAN
    count: int | None = None

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)


def stated(row: Mapping[str, Any], metric: str) -> Estimate:
    """A metric of a results file, with the interval that its standard error gives."""
    value = row.get(metric, _NAN)
    value = float(value) if isinstance(value, int | float) else _NAN
    stderr = row.get(f"{metric}_stderr", "N/A")
    count = row.get("sample_len")
    if not isinstance(stderr, int | float) or math.isnan(stderr):
        return Estimate(value, count=count)
    # Only a rubric category's share of points may be below zero.
    floor = -math.inf if metric.startswith("category_") else 0.0
    return Estimate(value, max(floor, value - Z95 * stderr), min(1.0, value + Z95 * stderr), count)


def estimate(values: Sequence[float], *, clip: bool) -> Estimate:
    """The mean over documents, as the benchmark's headline is computed, and its interval."""
    count = len(statistics.scored(values))
    if clip:
        mean, stderr = statistics.clipped_mean(values), statistics.clipped_mean_stderr(values)
    else:
        mean, stderr = statistics.mean(values), statistics.mean_stderr(values)
    if isinstance(stderr, str):
        return Estimate(mean, count=count)
    low = mean - Z95 * stderr
    return Estimate(mean, max(0.0, low) if clip else low, min(1.0, mean + Z95 * stderr), count)
