"""The official values, from the real commands over real HTTP, with the official prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import (
    Finished,
    command,
    judge_arguments,
    judge_metadata,
    metrics,
    model_arguments,
    results,
    samples,
)
from recorded import CATEGORIES, CLIPPED, JUDGE_CALLS, NORMALIZED, RecordedRun
from stub_server import StubServer

import lm_eval_tasks


@pytest.fixture
def run(official_data: Path, official_prompts: Path) -> RecordedRun:
    return RecordedRun(official_data, official_prompts)


@pytest.fixture
def server(run: RecordedRun) -> Iterator[StubServer]:
    with StubServer(run.respond, models=("model", "judge")) as running:
        yield running


def judge_calls(server: StubServer) -> int:
    return sum(call.model == "judge" for call in server.received)


def check(done: Finished, folder: Path, server: StubServer) -> None:
    assert done.code == 0, done.text
    found = results(folder)
    values = metrics(found, "prbench_finance_hard")
    assert round(values["clipped_score"], 6) == CLIPPED
    assert round(values["normalized_score"], 6) == NORMALIZED
    categories = {k: v for k, v in values.items() if k in CATEGORIES}
    assert {k: round(v, 4) for k, v in categories.items()} == CATEGORIES
    assert not [k for k in values if k.startswith("category_") and "stderr" not in k
                and k not in CATEGORIES]  # fmt: skip
    assert values["judge_coverage"] == 1.0
    assert values["empty_answers"] == 0
    assert values["clipped_score_low"] == values["clipped_score_high"] == values["clipped_score"]
    assert 0.01 < values["clipped_score_stderr"] < 0.05
    assert judge_calls(server) == JUDGE_CALLS
    assert "0.2555" in done.output


def test_stock_lm_eval(run: RecordedRun, server: StubServer, tmp_path: Path) -> None:
    done = command(
        "lm_eval", "run", "--include_path", lm_eval_tasks.path(),
        "--tasks", "prbench_finance_hard", "--samples", run.samples, "--apply_chat_template",
        *model_arguments(server.url), *judge_metadata(server.url),
        "--output_path", str(tmp_path / "out"), "--log_samples",
    )  # fmt: skip
    check(done, tmp_path / "out", server)
    lines = samples(tmp_path / "out", "prbench_finance_hard")
    assert len(lines) == 100
    assert sum(line["clipped_score"] < 0 for line in lines) == 3
    assert {line["doc"]["answer"] for line in lines} == {a.strip() for a in run.answers.values()}
    metadata = results(tmp_path / "out")["configs"]["prbench_finance_hard"]["metadata"]
    assert metadata["judge"]["model"] == "judge"
    assert metadata["judge_prompt"]["user"]["sha256"].startswith("0821305c")
    assert len(metadata["dataset"]["fingerprint"]) == 64


def test_own_run(run: RecordedRun, server: StubServer, tmp_path: Path) -> None:
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "prbench_finance_hard", "--samples", run.samples,
        *model_arguments(server.url), *judge_arguments(server.url),
        "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    check(done, tmp_path / "out", server)
    assert {call.path for call in server.received} == {"/v1/chat/completions"}


@pytest.mark.slow
def test_responses_api(run: RecordedRun, server: StubServer, tmp_path: Path) -> None:
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "prbench_finance_hard", "--samples", run.samples,
        *model_arguments(server.url), *judge_arguments(server.url, api="responses"),
        "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    check(done, tmp_path / "out", server)
    judged = [call for call in server.received if call.model == "judge"]
    assert {call.path for call in judged} == {"/v1/responses"}
    # Nothing is sent that was not asked for.
    assert {frozenset(call.body) for call in judged} == {frozenset({"model", "input"})}
