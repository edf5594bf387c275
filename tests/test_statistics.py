"""Means over documents and their standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from custom_metrics.statistics import (
    clipped_mean,
    clipped_mean_stderr,
    mean,
    mean_stderr,
    scored,
    total,
)

NAN = float("nan")
Aggregation = Callable[[Sequence[float]], object]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5], 0.5),
        ([1.0, 0.0], 0.5),
        ([-0.5, 0.25, 0.5], 1 / 12),
        ([1.0, NAN, 0.0], 0.5),
        ([NAN, -1.0], -1.0),
    ],
)
def test_mean_leaves_out_documents_without_a_score(values: list[float], expected: float) -> None:
    assert mean(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 0.5], 0.75),
        ([-1.0, 1.0, 0.6], 0.2),  # clipping each document first would give 1.6 / 3
        ([-1.0, 0.4], 0.0),
        ([-1.0, NAN, 0.4], 0.0),
        ([-0.2], 0.0),
        ([NAN, 0.3], 0.3),
    ],
)
def test_the_mean_is_clipped_and_not_its_documents(values: list[float], expected: float) -> None:
    assert clipped_mean(values) == pytest.approx(expected)


def test_zero_has_no_sign_after_clipping() -> None:
    assert math.copysign(1, clipped_mean([-1.0, 0.5])) == 1
    assert math.copysign(1, clipped_mean([-0.0])) == 1


@pytest.mark.parametrize("aggregate", [mean, clipped_mean])
@pytest.mark.parametrize("values", [[], [NAN], [NAN, NAN]])
def test_a_mean_of_no_scored_document_is_nan(
    aggregate: Callable[[Sequence[float]], float], values: list[float]
) -> None:
    assert math.isnan(aggregate(values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 0.0], 0.5),  # s = √½, n = 2
        ([2.0, 4.0, 6.0], 2 / math.sqrt(3)),
        ([1.0, 1.0, 1.0], 0.0),
        ([NAN, 1.0, 0.0, NAN], 0.5),
    ],
)
def test_stderr_of_the_mean_is_s_over_root_n(values: list[float], expected: float) -> None:
    assert mean_stderr(values) == pytest.approx(expected)


@pytest.mark.parametrize("stderr", [mean_stderr, clipped_mean_stderr])
@pytest.mark.parametrize("values", [[], [0.5], [NAN], [0.5, NAN, NAN]])
def test_fewer_than_two_scored_documents_have_no_stderr(
    stderr: Aggregation, values: list[float]
) -> None:
    assert stderr(values) == "N/A"


@pytest.mark.parametrize("stderr", [mean_stderr, clipped_mean_stderr])
def test_stderr_leaves_out_documents_without_a_score(stderr: Aggregation) -> None:
    assert stderr([0.1, NAN, 0.5, 0.9, NAN]) == stderr([0.1, 0.5, 0.9])


@pytest.mark.parametrize("size", [2, 10, 100, 600])
def test_far_from_zero_the_bootstrap_agrees_with_s_over_root_n(size: int) -> None:
    values = np.random.default_rng(size).normal(5.0, 0.2, size)
    spread = float(values.std(ddof=0)) / math.sqrt(size)  # what resampling estimates
    assert clipped_mean_stderr(list(values)) == pytest.approx(spread, rel=0.03)


def test_where_every_draw_is_clipped_the_stderr_is_zero() -> None:
    assert clipped_mean_stderr([-0.5, -0.4, -0.6]) == 0.0


def test_clipping_narrows_the_stderr() -> None:
    values = [-1.0, 1.0] * 20
    clipped, plain = clipped_mean_stderr(values), mean_stderr(values)
    assert isinstance(clipped, float)
    assert isinstance(plain, float)
    # A normal distribution around 0, its lower half put to 0: s · √(½ − 1/(2π)).
    assert clipped == pytest.approx(plain * math.sqrt(0.5 - 1 / (2 * math.pi)), rel=0.05)


def test_the_bootstrap_gives_the_same_number_every_time() -> None:
    values = [0.1, -0.4, 0.7, 0.3]
    assert clipped_mean_stderr(values) == clipped_mean_stderr(values)


@pytest.mark.parametrize(
    ("values", "expected"), [([], 0.0), ([1.0, 0.0, 1.0], 2.0), ([1.0, NAN], 1.0)]
)
def test_total_counts_the_documents_that_have_a_value(values: list[float], expected: float) -> None:
    assert total(values) == expected


def test_scored_keeps_the_order() -> None:
    assert scored([3.0, NAN, 1.0]).tolist() == [3.0, 1.0]
