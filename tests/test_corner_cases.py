"""Corners that a reading of the whole against its purpose brought to light."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import command, judge_arguments, judge_metadata, metrics, model_arguments, samples
from file_server import serve
from in_process import chat_model, evaluate, judge_at
from rows import FINANCE, World, clipped_mean, write_answers
from stub_server import Received, Reply, StubServer, openai_error, verdict

import lm_eval_tasks
from custom_metrics import answers, data
from custom_metrics.cli import main
from custom_metrics.errors import ConfigError, DataError
from custom_metrics.judge import Judge, JudgeCall, JudgeConfig, read_met, write_met

pytestmark = pytest.mark.usefixtures("small_data")


def call(text: str) -> JudgeCall[Any]:
    return JudgeCall(
        messages=lambda: [{"role": "user", "content": text}], read=read_met, conversation=text,
        label=text, answer="", criteria=("",), write=write_met,
    )  # fmt: skip


# --- what a judge writes -------------------------------------------------------------------


def test_a_judge_s_escaped_surrogate_costs_no_samples(
    server: StubServer, world: World, tmp_path: Path
) -> None:
    world.judge_reply = Reply('{"explanation": "half \\ud83d of it", "criteria_met": true}')
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "prbench_finance", *model_arguments(server.url),
        *judge_arguments(server.url, prompt="builtin"), "--output_path", str(tmp_path / "out"),
        "--log_samples",
    )  # fmt: skip
    assert done.code == 0, done.text
    lines = samples(tmp_path / "out", "prbench_finance")
    assert len(lines) == len(FINANCE)
    assert lines[0]["doc"]["criteria"][0]["explanation"] == "half \ufffd of it"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "'temperature' is not supported by this model"),
        (400, "This model does not support temperature."),
        (400, "Unrecognized request argument supplied: temperature"),
        (400, "Unsupported parameter: temperature"),
        (422, "body.temperature: Extra inputs are not permitted"),
    ],
)
def test_a_parameter_is_dropped_however_the_server_words_it(status: int, message: str) -> None:
    def respond(received: Received) -> Reply:
        refused = "temperature" in received.body
        error = openai_error(message, "error", code=None)
        return Reply(status=status, error=error) if refused else Reply(verdict(True))

    with StubServer(respond) as server:
        config = JudgeConfig(model="judge", base_url=server.url, temperature=0, max_retries=0)
        judge = Judge(config)
        outcomes = [future.result(20) for future in judge.submit([call("one"), call("two")])]
        judge.close()
    assert not any(outcome.failed for outcome in outcomes)


def test_what_was_dropped_is_recorded(server: StubServer, world: World) -> None:
    respond = world.respond

    def picky(received: Received) -> Reply:
        if received.model == "judge" and "temperature" in received.body:
            error = openai_error("no", "e", code="unsupported_parameter", param="temperature")
            return Reply(status=400, error=error)
        return respond(received)

    server.responder = picky
    found = evaluate(
        "prbench_finance", **chat_model(server.url), judge=judge_at(server.url, temperature=0.5)
    )
    judge = found["configs"]["prbench_finance"]["metadata"]["judge"]
    assert judge["dropped"] == ["temperature"]


def test_a_403_for_one_call_does_not_end_a_run_that_had_verdicts(
    server: StubServer, world: World
) -> None:
    seen = 0

    def respond(received: Received) -> Reply:
        nonlocal seen
        if received.model == "judge":
            seen += 1
            if seen == 4:
                error = openai_error("the input was flagged", "e", code="moderation")
                return Reply(status=403, error=error)
        return World.respond(world, received)

    server.responder = respond
    found = evaluate(
        "prbench_finance", **chat_model(server.url), judge=judge_at(server.url, concurrency=1)
    )
    row = metrics(found, "prbench_finance")
    assert row["judge_coverage"] == pytest.approx(1 - 1 / len(FINANCE))


def test_a_bound_around_unmet_calls_is_told(
    server: StubServer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.failing = {FINANCE[0].tag(0)}
    found = evaluate(
        "prbench_finance", **chat_model(server.url),
        judge=judge_at(server.url, on_failure="unmet"),
    )  # fmt: skip
    row = metrics(found, "prbench_finance")
    assert row["judge_coverage"] == 1
    assert row["clipped_score_low"] < row["clipped_score_high"]
    assert "count it as unmet" in caplog.text


def test_a_server_that_cuts_prompts_silently_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    with StubServer(lambda _: Reply(verdict(True), prompt_tokens=512)) as server:
        judge = Judge(JudgeConfig(model="judge", base_url=server.url))
        judge.submit([call("word " * 10_000)])[0].result(20)
        judge.close()
    assert "seems to cut long prompts" in caplog.text


def test_an_unknown_judge_model_is_found_before_anything_is_generated(
    world: World,
) -> None:
    def respond(received: Received) -> Reply:
        if received.model == "nope":
            error = openai_error("The model `nope` does not exist", "e", code="model_not_found")
            return Reply(status=404, error=error)
        return world.respond(received)

    with StubServer(respond, models=("model", "judge")) as server:
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "prbench_finance", *model_arguments(server.url),
            *judge_arguments(server.url, prompt="builtin", model="nope"),
        )  # fmt: skip
        assert [call.model for call in server.received] == ["nope"]
    assert done.code == 3
    assert "does not know the model 'nope'" in done.errors


# --- before the model is loaded ------------------------------------------------------------


def test_a_wrong_task_prompt_is_found_before_the_model_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUBRIC_TASK_PROMPT", "offical")
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "plawbench_sample", "--model", "prefilled",
        "--model_args", "path=nowhere.json", "--judge", "backend=lexical", "prompt=builtin",
    )  # fmt: skip
    assert done.code == 2
    assert "'offical'" in done.errors
    assert "nowhere.json" not in done.errors


def test_a_data_set_revision_that_would_be_ignored_is_refused(
    server: StubServer, tmp_path: Path
) -> None:
    path = write_answers(tmp_path / "a.json", {case.id: "Yes." for case in FINANCE})
    with pytest.raises(ConfigError, match="dataset_revision"):
        evaluate(
            "prbench_finance", model="prefilled",
            model_args={"path": str(path), "dataset_revision": "abc"}, judge=judge_at(server.url),
        )  # fmt: skip


def test_processes_that_would_each_judge_everything_are_refused(
    server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = write_answers(tmp_path / "a.json", {case.id: "Yes." for case in FINANCE})
    with pytest.raises(ConfigError, match="2 processes"):
        evaluate(
            "prbench_finance", model="prefilled", model_args={"path": str(path)},
            judge=judge_at(server.url),
        )  # fmt: skip
    assert server.received == []


@pytest.mark.slow
def test_stock_lm_eval_ends_on_one_line(server: StubServer, tmp_path: Path) -> None:
    done = command(
        "lm_eval", "run", "--include_path", lm_eval_tasks.path(), "--tasks", "prbench_finance",
        "--apply_chat_template", *model_arguments(server.url),
        *judge_metadata(server.url, concurrency="many"), "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.code == 1
    last = done.errors.strip().splitlines()[-1]
    assert last.startswith("error: metadata judge \"concurrency\": 'many' is not valid")
    assert "Traceback" not in done.errors
    assert server.received == []


# --- data and answers ----------------------------------------------------------------------


def test_a_file_of_a_pinned_repository_is_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUBRIC_DATA_DIR")
    content = b'[{"a": 1}]'
    folder = tmp_path / "web" / "them" / "bench" / "c0ffee"
    folder.mkdir(parents=True)
    (folder / "rows.json").write_bytes(content)
    right = data.Pinned(("old/name", "them/bench"), "c0ffee", hashlib.sha256(content).hexdigest())
    wrong = data.Pinned(("them/bench",), "c0ffee", "0" * 64)

    def find(pinned: data.Pinned) -> data.Source:
        return data.find_split(
            "split", repository="them/bench", folder="bench", files=["rows.json"], github=pinned
        )

    with serve(tmp_path / "web") as web:
        monkeypatch.setenv("RUBRIC_GITHUB_RAW", web.origin)
        found = find(right)
        assert found.files[0].read_bytes() == content
        assert found.revision == "c0ffee"
        with pytest.raises(DataError, match="SHA-256"):
            find(wrong)
    assert find(right) == found  # the server is gone
    with pytest.raises(DataError, match="RUBRIC_DATA_DIR"):
        find(wrong)


def test_answers_are_read_from_json_and_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(
        '{"id": "a", "answer": "one"}\n\n{"task": "b", "response": null}\n{"id": 3, "output": "3"}',
        encoding="utf-8",
    )
    assert answers.read(path) == {"a": "one", "b": "", "3": "3"}
    for line, named in (
        ('{"id": "a"}', "line 1"),
        ('{"answer": "x"}', "line 1"),
        ('{"id": "a", "answer": 1}', "string or null"),
        ('{"id": "a", "answer": "x"}\n{"id": "a", "answer": "y"}', "second answer"),
        ("nonsense", "line 1"),
    ):
        path.write_text(line, encoding="utf-8")
        with pytest.raises(DataError, match=named):
            answers.read(path)
    with pytest.raises(DataError, match="cannot be read"):
        answers.read(tmp_path / "absent.json")


def test_a_missing_answer_is_no_empty_one(server: StubServer, tmp_path: Path) -> None:
    path = write_answers(tmp_path / "a.json", {FINANCE[0].id: "Yes."})
    with pytest.raises(DataError, match=FINANCE[1].id):
        evaluate(
            "prbench_finance", model="prefilled", model_args={"path": str(path)},
            judge=judge_at(server.url),
        )  # fmt: skip


def test_repeats_and_an_unsorted_choice_of_samples_score_the_right_documents(
    server: StubServer, tmp_path: Path
) -> None:
    found = evaluate(
        "prbench_finance", **chat_model(server.url), judge=judge_at(server.url),
        samples={"prbench_finance": [1, 0]},
    )  # fmt: skip
    row = metrics(found, "prbench_finance")
    assert row["clipped_score"] == pytest.approx(clipped_mean(FINANCE[:2]))
    assert {line["doc"]["id"] for line in found["samples"]["prbench_finance"]} == {
        case.id for case in FINANCE[:2]
    }
    task = tmp_path / "twice.yaml"
    base = os.path.join(lm_eval_tasks.path(), "prbench", "prbench_finance.yaml")
    task.write_text(f"include: {base}\ntask: twice\nrepeats: 2\n", encoding="utf-8")
    twice = evaluate(str(task), **chat_model(server.url), judge=judge_at(server.url))
    assert metrics(twice, "twice")["clipped_score"] == pytest.approx(clipped_mean(FINANCE))


def test_the_demo_s_plawbench_falls_with_the_answers() -> None:
    folder = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers"
    scores = []
    for quality in ("strong", "middling", "weak"):
        found = evaluate(
            "plawbench_sample", model="prefilled",
            model_args={"path": str(folder / f"{quality}.json"), "task_prompt": "builtin"},
            judge={"backend": "lexical", "prompt": "builtin"},
        )  # fmt: skip
        scores.append(metrics(found, "plawbench_sample")["overall"])
        assert "scores mean nothing" in json.dumps(found["results"])
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 2 * scores[1] > 4 * scores[2]


def test_an_answer_that_stands_twice_in_a_json_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text('{"a": "one", "a": "two"}', encoding="utf-8")
    with pytest.raises(DataError, match="second answer for 'a'"):
        answers.read(path)


@pytest.mark.parametrize("name", ["answers.json", "answers.jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, name: str) -> None:
    text = '{"a": "one"}' if name.endswith("json") else '{"id": "a", "answer": "one"}\n'
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    assert answers.read(path) == {"a": "one"}


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_is_none_is_refused(server: StubServer, limit: int) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url),
                 limit=limit)  # fmt: skip


def test_samples_of_a_group_are_refused_and_do_not_run_everything(server: StubServer) -> None:
    with pytest.raises(ConfigError, match="--samples has no indices for it"):
        evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url),
                 samples={"prbench": [0]})  # fmt: skip
    assert not server.received


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--limit", "-1"], "--limit"),
        (["--limit", "0"], "--limit"),
        (["--samples", '{"prbench": [0]}'], "prbench_finance, prbench_legal"),
        (["--samples", '{"prbench_fnance": [0]}'], "prbench_finance, prbench_legal"),
    ],
)
def test_a_wrong_choice_of_documents_ends_before_the_model(
    flags: list[str], named: str, server: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "hf", "--model_args", "pretrained=there-is-none"]
    judge = ["--judge", f"base_url={server.url}", "prompt=builtin"]
    assert main(["run", "--tasks", "prbench", *model, *judge, *flags]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert named in line
