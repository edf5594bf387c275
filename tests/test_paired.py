"""The statistics of a comparison, against what textbooks and simulation say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from custom_metrics.analysis.paired import (
    Stratum,
    difference,
    judge_share,
    smallest_difference,
    smallest_difference_alone,
)


def test_a_weighted_score_is_drawn_within_its_strata() -> None:
    rng = np.random.default_rng(3)
    parts = [(rng.random(n), rng.random(n), w) for n, w in ((250, 0.5), (18, 0.2), (60, 0.3))]
    found = difference([Stratum(a, b, w) for a, b, w in parts])
    assert found.value == pytest.approx(sum(w * (b.mean() - a.mean()) for a, b, w in parts))
    assert found.documents == 328
    error = math.sqrt(sum(w**2 * (b - a).var(ddof=1) / a.size for a, b, w in parts))
    # Scores that are spread evenly: the normal interval, all but.
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)
    assert found.smallest == pytest.approx(2.801585 * error, rel=1e-5)


def test_clipping_is_of_the_means() -> None:
    low, high = np.array([-0.5, -0.1, 0.3] * 20), np.array([-0.3, 0.4, 0.5] * 20)
    found = difference([Stratum(low, high)], clip=True)
    assert (found.first, found.second) == (0.0, pytest.approx(0.2))
    assert found.value == pytest.approx(0.2)
    assert found.high < difference([Stratum(low, high)]).high
    assert difference([Stratum(low, low - 1)], clip=True).value == 0


@pytest.mark.parametrize("count", [6, 12])
def test_few_documents_get_the_interval_that_they_need(count: int) -> None:
    """A plain percentile interval of six documents covers the truth 86 times of 100."""
    rng = np.random.default_rng(5)
    zeros = np.zeros(count)
    draws = [difference([Stratum(zeros, rng.normal(size=count))]) for _ in range(300)]
    covered = np.mean([found.low <= 0 <= found.high for found in draws])
    assert 0.92 <= covered <= 0.98


def test_five_documents_prove_nothing() -> None:
    zeros, ones = np.zeros(5), np.arange(1.0, 6.0)
    assert difference([Stratum(zeros, ones)]).low > 0
    assert not difference([Stratum(zeros, ones)]).told_apart
    more = difference([Stratum(np.zeros(6), np.arange(1.0, 7.0))])
    assert more.told_apart
    assert math.isnan(difference([Stratum(zeros[:1], ones[:1])]).low)


def test_a_stratum_needs_the_same_documents() -> None:
    with pytest.raises(ValueError, match="same documents"):
        Stratum(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="one or more"):
        Stratum(np.zeros(0), np.zeros(0))


def test_the_smallest_difference_is_found_four_times_of_five() -> None:
    rng = np.random.default_rng(7)
    n, spread = 100, 0.3
    smallest = smallest_difference([(rng.normal(0, spread, 100_000), 1.0)])
    smallest *= math.sqrt(100_000 / n)
    assert smallest == pytest.approx(2.8016 * spread / 10, rel=0.01)
    changes = rng.normal(smallest, spread, size=(4000, n))
    statistic = changes.mean(axis=1) / (changes.std(axis=1, ddof=1) / math.sqrt(n))
    assert np.mean(np.abs(statistic) > 1.959964) == pytest.approx(0.8, abs=0.03)


def test_the_smallest_difference_from_one_run() -> None:
    scores = np.random.default_rng(9).random(600)
    alone = smallest_difference_alone([(scores, 1.0)])
    assert alone == pytest.approx(2.801585 * math.sqrt(2 * scores.var(ddof=1) / 600), rel=1e-5)
    half = smallest_difference_alone([(scores, 1.0)], correlation=0.5)
    assert half == pytest.approx(alone / math.sqrt(2))
    assert math.isnan(smallest_difference_alone([(scores[:1], 1.0)]))
    assert math.isnan(smallest_difference([]))


def test_the_judges_share_of_the_variance() -> None:
    # Shrout and Fleiss (1979), table 2: six targets, four judges; ICC(1,1) is 0.17.
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    assert 1 - judge_share(ratings) == pytest.approx(0.166, abs=0.0005)
    rng = np.random.default_rng(11)
    documents = rng.normal(0, 0.3, size=(4000, 1))
    opinions = documents + rng.normal(0, 0.1, size=(4000, 3))
    assert judge_share(opinions.tolist()) == pytest.approx(0.01 / 0.10, abs=0.01)
    # Documents with fewer opinions count as well.
    uneven = [row[: 1 + number % 3] for number, row in enumerate(opinions.tolist())]
    assert judge_share(uneven) == pytest.approx(0.1, abs=0.02)


def test_the_judges_share_where_there_is_nothing_to_say() -> None:
    assert math.isnan(judge_share([]))
    assert math.isnan(judge_share([[0.5, 0.6]]))
    assert math.isnan(judge_share([[0.5], [0.6]]))
    assert math.isnan(judge_share([[0.5, 0.5], [0.5, 0.5]]))
    assert judge_share([[0.5, 0.5], [0.7, 0.7]]) == 0
    assert judge_share([[0.4, 0.6], [0.6, 0.4]]) == 1
