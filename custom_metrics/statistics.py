"""Means and their standard errors over documents. Pure functions.

A value is NaN where a document has no score (it was excluded, or the metric does not apply);
such documents are left out. A mean without any document is NaN; a standard error of fewer than
two is the string ``N/A``, as the harness writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_DRAWS = 10_000
BOOTSTRAP_SEED = 1234
_DRAWN_AT_ONCE = 500_000  # all draws of a thousand documents together are 130 MB

Stderr = float | str


def scored(values: Sequence[float]) -> NDArray[np.float64]:
    """The values that are not NaN."""
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def mean(values: Sequence[float]) -> float:
    """Mean over the scored documents."""
    kept = scored(values)
    return float(kept.mean()) if kept.size else float("nan")


def mean_stderr(values: Sequence[float]) -> Stderr:
    """Standard error of :func:`mean`: s / √n."""
    kept = scored(values)
    return float(kept.std(ddof=1) / np.sqrt(kept.size)) if kept.size > 1 else "N/A"


def clipped_mean(values: Sequence[float]) -> float:
    """Mean over the scored documents, then max(0, ·). Each document keeps its sign."""
    average = mean(values)
    return average if np.isnan(average) else max(0.0, average)


def clipped_mean_stderr(values: Sequence[float]) -> Stderr:
    """Standard error of :func:`clipped_mean`, by a seeded bootstrap over documents."""
    kept = scored(values)
    if kept.size < 2:
        return "N/A"
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    means = np.empty(BOOTSTRAP_DRAWS)
    rows = max(1, _DRAWN_AT_ONCE // kept.size)
    for start in range(0, BOOTSTRAP_DRAWS, rows):
        part = means[start : start + rows]
        chosen = rng.integers(kept.size, size=(part.size, kept.size), dtype=np.int32)
        part[:] = kept[chosen].mean(axis=1)
    return float(np.maximum(means, 0.0).std(ddof=1))


def total(values: Sequence[float]) -> float:
    """Sum over the documents that have a value."""
    return float(scored(values).sum())
