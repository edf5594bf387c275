"""One step = two steps = batches, on the recorded answers and on all released items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import forget_judges
from batch_server import BatchServer, answered, write_lines
from commands import command, judge_arguments, metrics, model_arguments, results
from recorded import CATEGORIES, CLIPPED, JUDGE_CALLS, NORMALIZED, RecordedRun
from released_plawbench import Bench, check
from stub_server import Received, Reply

import lm_eval_tasks
from custom_metrics.cli import main

pytestmark = [pytest.mark.usefixtures("official_prompts"), pytest.mark.slow]


def three_ways(
    respond: Callable[[Received], Reply], calls: int, tasks: Sequence[str], folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, Any]]:  # fmt: skip
    """The results of two steps, of the Batch API, and of a batch runner; a store for each."""
    found = []
    saved = folder / "saved"
    with BatchServer(respond, models=("model", "judge")) as server:
        generated = command(
            "lm_eval", "run", "--include_path", lm_eval_tasks.path(), *tasks,
            "--apply_chat_template", "--predict_only", *model_arguments(server.url),
            "--output_path", str(saved),
        )  # fmt: skip
        assert generated.code == 0, generated.text
        assert {call.model for call in server.received} == {"model"}
        judge = judge_arguments(server.url)
        for way in ("score", "batch", "runner"):
            forget_judges()
            server.reset()
            monkeypatch.setenv("RUBRIC_CACHE_DIR", str(folder / f"cache-{way}"))
            out = ["--output_path", str(folder / way)]
            if way == "batch":
                assert main(["batch", str(saved), *out, "--poll", "0.05", *judge]) == 0
                assert server.batched == calls
            if way == "runner":
                requests = folder / "requests.jsonl"
                assert main(["export", str(saved), "-o", str(requests), *judge]) == 0
                replies = answered(requests, respond, "vllm")
                assert len(replies) == calls
                assert main(["import", str(write_lines(folder / "r.jsonl", replies))]) == 0
            if way != "batch":
                assert main(["score", str(saved), *out, *judge]) == 0
            assert len(server.received) == (calls if way == "score" else 0)
            found.append(results(folder / way))
    return found


def test_the_recorded_answers_to_prbench(
    official_data: Path, official_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RecordedRun(official_data, official_prompts)
    tasks = ["--tasks", "prbench_finance_hard", "--samples", run.samples]
    found = three_ways(run.respond, JUDGE_CALLS, tasks, tmp_path, monkeypatch)
    for one in found:
        values = metrics(one, "prbench_finance_hard")
        assert round(values["clipped_score"], 6) == CLIPPED
        assert round(values["normalized_score"], 6) == NORMALIZED
        assert {name: round(values[name], 4) for name in CATEGORIES} == CATEGORIES
        assert one["results"] == found[0]["results"]


def test_all_released_items_of_plawbench(
    official_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(official_data)
    found = three_ways(bench.respond, 280, ["--tasks", "plawbench"], tmp_path, monkeypatch)
    for one in found:
        check(one, bench.expected())
        assert one["results"] == found[0]["results"]
        assert one["groups"] == found[0]["groups"]
