"""PLawBench through the real commands, judged over HTTP; right values are computed here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import (
    command,
    judge_arguments,
    judge_metadata,
    metrics,
    model_arguments,
    results,
    samples,
)
from released_plawbench import SECTIONS, Bench, check
from stub_server import Received, Reply, StubServer

import lm_eval_tasks


@pytest.mark.slow
@pytest.mark.usefixtures("official_prompts")
def test_all_released_items_through_stock_lm_eval(official_data: Path, tmp_path: Path) -> None:
    bench = Bench(official_data)
    with StubServer(bench.respond, models=("model", "judge")) as server:
        done = command(
            "lm_eval", "run", "--include_path", lm_eval_tasks.path(), "--tasks", "plawbench",
            "--apply_chat_template", *model_arguments(server.url), *judge_metadata(server.url),
            "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
        assert done.code == 0, done.text
        judged = [call for call in server.received if call.model == "judge"]
    found = results(tmp_path / "out")
    check(found, bench.expected())
    assert f"{metrics(found, 'plawbench')['overall']:.4f}" in done.output
    assert len(judged) == 280
    assert {call.body["max_completion_tokens"] for call in judged} == {8192}
    assert [m["role"] for m in judged[0].messages] == ["system", "user"]
    assert "header says 12" in done.errors

    path = next((tmp_path / "out").rglob("samples_plawbench_case_analysis_*.jsonl"))
    text = path.read_text(encoding="utf-8")
    assert "【法条依据】略" in text  # and not escaped
    assert "\\u" not in text
    line = json.loads(text.splitlines()[0])
    assert line["doc"]["category"]
    section = line["doc"]["grading"]["sections"][0]
    assert section["breakdown"][0]["rationale"] == "理由"
    assert section["points"] >= section["awarded"]
    assert line["doc"]["answer"].count("\n\n\n") == 0
    metadata = found["configs"]["plawbench_case_analysis"]["metadata"]
    assert metadata["judge_prompt"]["user"]["repaired"]
    assert metadata["task_prompt"]["name"] == "official"


def small_table(folder: Path) -> None:
    """A normalised table with subsets of different sizes."""
    rubric = [
        {"criterion": f"{tag}要点", "points": str(points), "tags": tag}
        for tag, points in zip(SECTIONS, (10, 20, 30, 40), strict=True)
    ]
    rows = []
    for task, count in (
        ("case_analysis", 3), ("legal_consultation", 2), ("plaintiff_statement", 1),
        ("defendant_statement", 2),
    ):  # fmt: skip
        for number in range(count):
            name = f"{task}:{number}"
            case = task == "case_analysis"
            rows.append({
                "id": name, "task": task, "judge_type": "", "category": "民事",
                "context": f"甲与乙 {name}" if case else "", "question": f"请处理 {name}",
                "rubrics": rubric if case else "1.（+4分）甲\n2.（+6分）乙",
                "max_points": 100 if case else 10,
            })  # fmt: skip
    folder.mkdir(parents=True)
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (folder / "plawbench.jsonl").write_text(text, encoding="utf-8")


def run_small(
    server: StubServer, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **judge: object
) -> Any:
    small_table(out / "data" / "plawbench")
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(out / "data"))
    monkeypatch.setenv("RUBRIC_TASK_PROMPT", "builtin")
    return command(
        "lm-eval-rubrics", "run", "--tasks", "plawbench", *model_arguments(server.url),
        *judge_arguments(server.url, prompt="builtin", **judge),
        "--output_path", str(out / "out"), "--log_samples", *more,
    )  # fmt: skip


def graded(name: str, points: float) -> Reply:
    """All four sections of a case, or the total of another item, at ``points`` of 10."""
    if name.startswith("case_analysis"):
        worth = dict(zip((key for key, _ in SECTIONS.values()), (10, 20, 30, 40), strict=True))
        details = {key: {"total_points": of * points / 10} for key, of in worth.items()}
        return Reply(json.dumps({"score_details": details}, ensure_ascii=False))
    return Reply(json.dumps({"total_points": points}))


def name_in(call: Received) -> str:
    match = re.search(r"(\w+):(\d)", call.messages[-1]["content"])
    assert match
    return match[0]


POINTS = {
    "case_analysis:0": 2, "case_analysis:1": 4, "case_analysis:2": 9,
    "legal_consultation:0": 5, "legal_consultation:1": 7,
    "plaintiff_statement:0": 1, "defendant_statement:0": 6, "defendant_statement:1": 8,
}  # fmt: skip


def test_an_excluded_item_leaves_its_subset_uneven_and_overall_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(call: Received) -> Reply:
        if call.model == "model":
            return Reply("答卷")
        name = name_in(call)
        return Reply("说不清") if name == "case_analysis:2" else graded(name, POINTS[name])

    with StubServer(respond, models=("model", "judge")) as server:
        done = run_small(server, tmp_path, monkeypatch)
    assert done.code == 0, done.text
    found = results(tmp_path / "out")
    assert metrics(found, "plawbench_case_analysis")["acc"] == pytest.approx(0.3)
    assert metrics(found, "plawbench_case_analysis")["judge_coverage"] == pytest.approx(2 / 3)
    assert metrics(found, "plawbench_case_analysis")["acc_low"] == pytest.approx(0.2)
    assert metrics(found, "plawbench_case_analysis")["acc_high"] == pytest.approx(1.6 / 3)
    group = metrics(found, "plawbench")
    assert group["overall"] == pytest.approx(0.2 * 0.6 + 0.5 * 0.3 + 0.3 * (0.1 + 0.7) / 2)
    assert group["overall_stderr"] == "N/A"  # one plaintiff's statement has no spread
    assert group["judge_coverage"] == pytest.approx(7 / 8)
    failed = [
        line["doc"]["grading"]
        for line in samples(tmp_path / "out", "plawbench_case_analysis")
        if line["doc"]["grading"]["failure"]
    ]
    assert [f["attempts"] for f in failed] == [3]
    assert "score_details" in failed[0]["failure"]


@pytest.mark.slow
def test_unmet_counts_as_no_points_and_a_subset_without_scores_leaves_no_overall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(call: Received) -> Reply:
        if call.model == "model":
            return Reply("答卷")
        name = name_in(call)
        return Reply("") if "0" in name else graded(name, POINTS[name])

    with StubServer(respond, models=("model", "judge")) as server:
        done = run_small(server, tmp_path / "a", monkeypatch, max_retries=0)
        assert done.code == 0, done.text
        unmet = run_small(server, tmp_path / "b", monkeypatch, on_failure="unmet", max_retries=0)
        assert unmet.code == 0, unmet.text
    assert "plawbench_plaintiff_statement: no call got a verdict" in done.errors
    row = metrics(results(tmp_path / "a" / "out"), "plawbench")
    assert "overall" not in row
    assert row["judge_coverage"] == pytest.approx(4 / 8)
    found = results(tmp_path / "b" / "out")
    assert metrics(found, "plawbench_plaintiff_statement")["acc"] == 0
    case = metrics(found, "plawbench_case_analysis")["acc"]
    assert case == pytest.approx((0 + 0.4 + 0.9) / 3)
    expected = 0.2 * 0.35 + 0.5 * case + 0.3 * (0 + 0.4) / 2
    assert metrics(found, "plawbench")["overall"] == pytest.approx(expected)


def test_a_reply_cut_at_the_limit_is_asked_for_again_with_twice_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(call: Received) -> Reply:
        if call.model == "model":
            return Reply("答卷")
        name = name_in(call)
        whole = graded(name, POINTS[name]).text or ""
        if name == "case_analysis:0" and call.body["max_completion_tokens"] == 100:
            return Reply(whole[:40], finish_reason="length")
        if name == "case_analysis:1":  # never ends by itself, but all the points are there
            return Reply(whole + ', "feedback": "好', finish_reason="length")
        return Reply(whole)

    with StubServer(respond, models=("model", "judge")) as server:
        done = run_small(server, tmp_path, monkeypatch, max_tokens=100)
        rooms = [
            (name_in(c), c.body["max_completion_tokens"])
            for c in server.received
            if c.model == "judge"
        ]
    assert done.code == 0, done.text
    again = sorted(name for name, room in rooms if room == 200)
    assert again == ["case_analysis:0", "case_analysis:1"]
    assert len(rooms) == len(POINTS) + 2
    assert metrics(results(tmp_path / "out"), "plawbench_case_analysis")["acc"] == pytest.approx(
        0.5
    )


def test_the_subsets_are_judged_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(call: Received) -> Reply:
        if call.model == "model":
            return Reply("答卷")
        name = name_in(call)
        return Reply(graded(name, POINTS[name]).text, delay=0.5)

    with StubServer(respond, models=("model", "judge")) as server:
        done = run_small(server, tmp_path, monkeypatch, concurrency=8)
        assert done.code == 0, done.text
        assert server.peak == 8  # the largest subset has three items


def test_limit_one_and_the_sample_group_give_an_overall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(call: Received) -> Reply:
        if call.model == "model":
            return Reply("答卷")
        name = name_in(call)
        return graded(name, POINTS[name])

    with StubServer(respond, models=("model", "judge")) as server:
        done = run_small(server, tmp_path, monkeypatch, "--limit", "1")
    assert done.code == 0, done.text
    group = metrics(results(tmp_path / "out"), "plawbench")
    assert group["overall"] == pytest.approx(0.2 * 0.5 + 0.5 * 0.2 + 0.3 * (0.1 + 0.6) / 2)
    assert group["overall_stderr"] == "N/A"


def test_an_unknown_task_prompt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StubServer(lambda _: Reply("答卷"), models=("model", "judge")) as server:
        small_table(tmp_path / "data" / "plawbench")
        monkeypatch.setenv("RUBRIC_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.setenv("RUBRIC_TASK_PROMPT", "offical")
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "plawbench_case_analysis",
            *model_arguments(server.url), *judge_arguments(server.url, prompt="builtin"),
        )  # fmt: skip
    assert done.code == 2
    assert "RUBRIC_TASK_PROMPT" in done.errors
    assert "'offical'" in done.errors
    assert "Traceback" not in done.errors
