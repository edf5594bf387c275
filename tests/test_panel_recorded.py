"""A panel on the recorded run: with the recorded judge in the majority, the official values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from commands import command, metrics, model_arguments, results
from recorded import CATEGORIES, CLIPPED, JUDGE_CALLS, NORMALIZED, RecordedRun
from stub_server import Received, Reply, StubServer, verdict

import lm_eval_tasks


@pytest.mark.slow
def test_the_recorded_judge_twice_and_one_that_says_the_opposite(
    official_data: Path, official_prompts: Path, tmp_path: Path
) -> None:
    run = RecordedRun(official_data, official_prompts)

    def opposite(call: Received) -> Reply:
        return Reply(verdict(not run.verdicts[call.prompt]))

    with (
        StubServer(run.respond, models=("model", "judge")) as first,
        StubServer(run.respond, models=("judge",)) as second,
        StubServer(opposite, models=("contrary",)) as third,
    ):
        judges = [
            {"model": "judge", "base_url": first.url},
            {"model": "judge", "base_url": second.url},
            {"model": "contrary", "base_url": third.url},
        ]
        done = command(
            "lm_eval", "run", "--include_path", lm_eval_tasks.path(), "--tasks",
            "prbench_finance_hard", "--samples", run.samples, "--apply_chat_template",
            *model_arguments(first.url), "--metadata", json.dumps({"judge": {"models": judges}}),
            "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
        asked = [len(server.received) for server in (first, second, third)]
    assert done.code == 0, done.text
    assert asked == [JUDGE_CALLS + len(run.indices), JUDGE_CALLS, JUDGE_CALLS]
    found = metrics(results(tmp_path / "out"), "prbench_finance_hard")
    assert round(found["clipped_score"], 6) == CLIPPED
    assert round(found["normalized_score"], 6) == NORMALIZED
    assert {name: round(found[name], 4) for name in CATEGORIES} == CATEGORIES
    assert found["judge_split"] == 1
    metadata = results(tmp_path / "out")["configs"]["prbench_finance_hard"]["metadata"]
    record = metadata["judge_opinions"]
    assert record["documents"] == 100
    names = ["judge #1", "judge #2", "contrary"]
    assert [score["judge"] for score in record["scores"]] == names
    other = _opposite_score(official_data, run)
    expected = [CLIPPED, CLIPPED, other]
    assert [score["score"] for score in record["scores"]] == pytest.approx(expected, abs=1e-6)
    assert found["judge_sd"] == pytest.approx(np.std(expected, ddof=1), abs=1e-6)
    # α by its definition for 3 × 1,578 yes or no: of each unit's three pairs two differ.
    met = sum(run.verdicts.values())
    yes = 2 * met + (JUDGE_CALLS - met)
    every = 3 * JUDGE_CALLS
    chance = 2 * yes * (every - yes) / (every * (every - 1))
    assert found["judge_alpha"] == pytest.approx(1 - (2 / 3) / chance)


def _opposite_score(data: Path, run: RecordedRun) -> float:
    """The clipped score if every recorded verdict were the other one."""
    rows = parquet.read_table(data / "prbench" / "finance_hard.parquet").to_pylist()
    lines = (data / "prbench" / "recorded_run.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = {entry["task"]: entry["verdicts"] for entry in map(json.loads, lines)}
    scores = []
    for row in (rows[index] for index in run.indices):
        points = best = 0
        for item in row["rubric"]:
            notes = item["annotations"]
            weight = int(notes[f"{notes['weight_class'].replace(' ', '_')}_weight"])
            best += max(0, weight)
            points += weight * (not recorded[row["task"]][item["id"]])
        scores.append(points / best)
    return max(0.0, float(np.mean(scores)))
