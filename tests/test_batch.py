"""Judging by batch files: export, import, and the whole round through a Batch API."""

from __future__ import annotations

import itertools
import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import forget_judges, kept, wait_until
from background import running
from batch_server import BatchServer, Ending, answered, write_lines
from commands import judge_arguments, model_arguments, only, results, samples
from rows import (
    FINANCE,
    LEGAL,
    UTILITY,
    Case,
    Item,
    World,
    clipped_mean,
    criterion_of,
    write_data,
)
from stub_server import Received, Reply, StubServer, content_filtered, server_error

from custom_metrics.batch.files import BadLine, read_replies
from custom_metrics.batch.replies import import_replies
from custom_metrics.cli import main
from custom_metrics.errors import DataError

CALLS = sum(len(case.items) for case in FINANCE + LEGAL)


@pytest.fixture
def server(world: World) -> Iterator[BatchServer]:
    with BatchServer(world.respond, models=("model", "judge")) as started:
        yield started


pytestmark = pytest.mark.usefixtures("small_data")


def saved(server: StubServer, out: Path, tasks: str = "prbench") -> Path:
    """Answers, as ``lm_eval --predict_only`` saves them; the calls for them are forgotten."""
    command = ["run", "--tasks", tasks, "--output_path", str(out), *model_arguments(server.url)]
    assert main([*command, "--no_answer_store", "--predict_only"]) == 0
    server.reset()
    return out


@pytest.fixture
def answers(server: StubServer, tmp_path: Path) -> Path:
    return saved(server, tmp_path / "saved")


def settings(server: StubServer, **more: object) -> list[str]:
    return list(judge_arguments(server.url, prompt="builtin", **more))


def expected(server: StubServer, answers: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The results of scoring with live calls, nothing of which is kept."""
    with monkeypatch.context() as without:
        without.setenv("RUBRIC_JUDGE_CACHE", "off")
        assert main(["score", str(answers), "--output_path", str(out), *settings(server)]) == 0
    forget_judges()
    server.reset()
    return results(out)["results"]


def export(server: StubServer, answers: Path, out: Path, *more: str) -> int:
    forget_judges()
    return main(["export", str(answers), "-o", str(out), *settings(server), *more])


# --- export and import ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["openai", "vllm"])
def test_exported_answered_and_imported_calls_score_as_live_ones_do(
    shape: str, server: BatchServer, world: World, answers: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    monkeypatch.delenv("OPENAI_API_KEY")
    requests = tmp_path / "requests.jsonl"
    assert export(server, answers, requests) == 0
    lines = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    assert len(lines) == CALLS == len({line["custom_id"] for line in lines})
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    # Calls that share a conversation stand side by side.
    order = [criterion_of(Received("", {}, line["body"], 0)).rpartition("-c")[0] for line in lines]
    assert len(list(itertools.groupby(order))) == len(set(order))
    replies = answered(requests, world.respond, shape)
    assert main(["import", str(write_lines(tmp_path / "out.jsonl", replies[::-1]))]) == 0
    forget_judges()
    command = ["score", str(answers), "--output_path", str(tmp_path / "two"), *settings(server)]
    assert main(command) == 0
    assert not server.received
    assert results(tmp_path / "two")["results"] == live
    # Nothing is missing any more.
    assert export(server, answers, tmp_path / "again.jsonl") == 0
    assert not (tmp_path / "again.jsonl").exists()


def test_repeats_are_exported_and_a_panel_finds_what_its_judges_were_asked_alone(
    server: BatchServer, world: World, answers: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def alone(model: str, *more: str) -> list[str]:
        return [*settings(server), f"model={model}", *more]

    for number, judge in enumerate((alone("a", "repeats=2"), alone("b"))):
        requests = tmp_path / f"requests-{number}.jsonl"
        assert main(["export", str(answers), "-o", str(requests), *judge]) == 0
        assert f"{CALLS * (2 - number)} calls to be made, 0 in the store" in capsys.readouterr().out
        replies = write_lines(tmp_path / f"out-{number}.jsonl", answered(requests, world.respond))
        assert main(["import", str(replies)]) == 0
        forget_judges()
    both = json.dumps([{"model": "a", "repeats": 2}, {"model": "b"}])
    command = ["score", str(answers), "--output_path", str(tmp_path / "two"), *settings(server)]
    assert main([*command, f"models={both}"]) == 0
    assert not server.received
    found = results(tmp_path / "two")["results"]["prbench_finance"]
    assert found["clipped_score,none"] == pytest.approx(clipped_mean(FINANCE))
    assert found["judge_split,none"] == 0


def test_the_bodies_are_those_of_live_calls(
    server: BatchServer, answers: Path, tmp_path: Path
) -> None:
    more = ["temperature=0.5", "structured=json_schema", 'extra_body={"seed": 7}']
    assert export(server, answers, tmp_path / "requests.jsonl", *more) == 0
    bodies = [json.loads(line)["body"] for line in (tmp_path / "requests.jsonl").open()]
    forget_judges()
    assert main(["score", str(answers), *settings(server), *more]) == 0
    sent = [call.body for call in server.received]
    assert sorted(map(json.dumps, bodies)) == sorted(map(json.dumps, sent))
    assert {body["seed"] for body in bodies} == {7}


def test_only_what_failed_is_asked_live_and_only_that_is_exported_again(
    server: BatchServer, world: World, answers: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    assert export(server, answers, tmp_path / "requests.jsonl") == 0

    def poorly(call: Received) -> Reply:
        wrong = {0: content_filtered(), 1: Reply("I think so."), 2: Reply(""),
                 3: Reply('{"explanation": "', finish_reason="length")}  # fmt: skip
        return wrong.get(call.number, world.respond(call))

    replies = answered(tmp_path / "requests.jsonl", poorly)
    capsys.readouterr()
    assert main(["import", str(write_lines(tmp_path / "out.jsonl", replies))]) == 0
    said = capsys.readouterr().out
    assert f"{CALLS - 3} replies kept" in said
    assert "2 empty or cut off" in said
    assert "1 failed" in said
    # Prose is found out when it is read; then its place is free for another reply.
    for _ in range(2):
        assert export(server, answers, tmp_path / "rest.jsonl") == 0
        rest = [json.loads(line) for line in (tmp_path / "rest.jsonl").open()]
        first = [json.loads(line) for line in (tmp_path / "requests.jsonl").open()][:4]
        assert [line["body"] for line in rest] == [line["body"] for line in first]
        (tmp_path / "rest.jsonl").unlink()
    assert export(server, answers, tmp_path / "rest.jsonl") == 0
    replies = answered(tmp_path / "rest.jsonl", world.respond)[:2]
    assert main(["import", str(write_lines(tmp_path / "rest-out.jsonl", replies))]) == 0
    forget_judges()
    command = ["score", str(answers), "--output_path", str(tmp_path / "two"), *settings(server)]
    assert main(command) == 0
    assert len(server.received) == 2
    assert results(tmp_path / "two")["results"] == live


def test_files_are_split_at_the_limit_and_never_overwritten(
    server: BatchServer, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "requests.jsonl"
    assert export(server, answers, out, "--requests_per_file", "7") == 0
    files = sorted(tmp_path.glob("requests*.jsonl"))
    assert len(files) > 1
    lines = [file.read_text("utf-8").splitlines() for file in files]
    assert all(len(each) <= 7 for each in lines)
    assert sum(map(len, lines)) == CALLS
    # A conversation that fits into one file is not spread over two.
    ids = [{criterion_of(Received("", {}, json.loads(t)["body"], 0)).rpartition("-c")[0]
            for t in each} for each in lines]  # fmt: skip
    assert sum(map(len, ids)) == len(FINANCE + LEGAL)
    before = out.read_bytes()
    assert export(server, answers, out) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def foreign(lines: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    changed = [dict(line) for line in lines]
    own = changed[2]["custom_id"]
    changed[2]["custom_id"] = {
        "no id of ours": "request-1",
        "another export": f"{'0' * 12}-{own.rpartition('-')[2]}",
        "another request": f"{own.partition('-')[0]}-{'0' * 64}",
    }[what]
    return changed


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("no id of ours", "custom_id is none"),
        ("another export", "was not made here"),
        ("another request", "has no such request"),
    ],
)
def test_replies_to_something_else_are_refused_and_none_is_kept(
    what: str, named: str, server: BatchServer, world: World, answers: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert export(server, answers, tmp_path / "requests.jsonl") == 0
    replies = foreign(answered(tmp_path / "requests.jsonl", world.respond), what)
    path = write_lines(tmp_path / "out.jsonl", replies)
    assert main(["import", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}, line 3" in error
    assert named in error
    store = tmp_path / "cache" / "judge.sqlite"
    assert not store.exists() or not kept(store)


def test_replies_that_came_after_unreadable_ones_count(
    server: BatchServer, world: World, answers: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    assert export(server, answers, tmp_path / "requests.jsonl") == 0
    requests = tmp_path / "requests.jsonl"
    bad = write_lines(tmp_path / "bad.jsonl", answered(requests, lambda _: Reply("I cannot say.")))
    good = write_lines(tmp_path / "good.jsonl", answered(requests, world.respond))
    new = f"{CALLS} replies kept"
    for path, said in (
        (bad, new), (good, new), (bad, "0 replies kept"), (good, f"{CALLS} known already"),
    ):  # fmt: skip
        assert main(["import", str(path)]) == 0
        assert said in capsys.readouterr().out
    forget_judges()
    assert main(["score", str(answers), "--output_path", str(tmp_path / "two"),
                 *settings(server)]) == 0  # fmt: skip
    assert not server.received
    assert results(tmp_path / "two")["results"] == live


def test_a_cut_off_line_costs_itself_and_a_second_import_nothing(
    server: BatchServer, world: World, answers: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert export(server, answers, tmp_path / "requests.jsonl") == 0
    replies = answered(tmp_path / "requests.jsonl", world.respond)
    path = write_lines(tmp_path / "out.jsonl", [*replies, replies[0]])
    path.write_bytes(path.read_bytes()[:-40])
    for kept_now, known in ((CALLS, 0), (0, CALLS)):
        capsys.readouterr()
        assert main(["import", str(path)]) == 0
        said = capsys.readouterr().out
        assert f"{kept_now} replies kept" in said
        assert (f"{known} known already" in said) == bool(known)
        assert f"1 lines are no JSON (the first: {path}, line {CALLS + 1})" in said
    assert len(kept(tmp_path / "cache" / "judge.sqlite")) == CALLS


@pytest.mark.parametrize(
    ("judge", "named"),
    [
        ("backend=lexical", "takes no batch files"),
        ("backend=lm_eval judge_model=hf judge_model_args=pretrained=x", "takes no batch files"),
        ("azure_endpoint=https://a.invalid api_version=1", "azure_endpoint"),
        ('models=[{"model":"a"},{"model":"b"}]', "batch files are for one judge"),
    ],
)
def test_a_judge_without_batch_files_is_refused(
    judge: str, named: str, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(answers), "-o", str(tmp_path / "r.jsonl"), "--judge", "prompt=builtin"]
    assert main([*command, *judge.split()]) == 2
    assert named in capsys.readouterr().err


def test_without_a_store_there_is_nothing_to_import_into(
    answers: Path, server: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", "off")
    assert export(server, answers, tmp_path / "requests.jsonl") == 2
    assert main(["import", str(tmp_path / "requests.jsonl")]) == 2
    assert capsys.readouterr().err.count("RUBRIC_JUDGE_CACHE is off") == 2


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ({"response": None, "error": {"code": "batch_expired", "message": "Late."}}, "Late."),
        ({"response": {"status_code": 500, "body": None}, "error": "engine died"},
         "500: engine died"),
        ({"response": {"status_code": 400, "body": {"error": {"message": "No."}}}, "error": None},
         "400: No."),
        ({"response": {"status_code": 200, "body": {"choices": []}}},
         "the response has no message"),
        ({"response": {"status_code": 200, "body": {"choices": None, "error": {"code": 429}}}},
         "200: 429"),
        ({}, "no response"),
        ({"response": {"body": []}, "error": None}, "no response"),
    ],
)  # fmt: skip
def test_what_a_line_without_a_reply_says(
    line: dict[str, Any], failure: str, tmp_path: Path
) -> None:
    row = {"custom_id": f"{'a' * 12}-{'b' * 64}", **line}
    (found,) = read_replies(write_lines(tmp_path / "out.jsonl", [row]))
    assert not isinstance(found, str)
    assert (found.reply, found.failure) == (None, failure)


def test_a_reply_of_the_responses_api_is_read(tmp_path: Path) -> None:
    body = {"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 2},
            "output": [{"type": "reasoning"},
                       {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}],
            "error": None}  # fmt: skip
    row = {"custom_id": f"{'a' * 12}-{'b' * 64}", "response": {"status_code": 200, "body": body}}
    (found,) = read_replies(write_lines(tmp_path / "out.jsonl", [row]))
    assert not isinstance(found, str)
    assert found.reply is not None
    assert (found.reply.text, found.reply.usage.prompt) == ("Yes.", 3)


def test_a_line_that_is_no_object_is_nobody_s(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("[1]\n", encoding="utf-8")
    (found,) = read_replies(path)
    assert isinstance(found, BadLine)
    assert found.foreign
    with pytest.raises(DataError, match="custom_id"):
        import_replies([str(path)])


def test_an_import_that_was_killed_is_finished_by_the_next(
    server: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = tuple(Item(5, UTILITY, number % 3 == 0) for number in range(100))
    cases = [Case(f"finance-{number}", items[: 100 - number]) for number in range(1, 16)]
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "many", finance=cases)))
    world = World(cases)
    server.responder = world.respond
    answers = saved(server, tmp_path / "many-saved", tasks="prbench_finance")
    assert export(server, answers, tmp_path / "requests.jsonl") == 0
    replies = answered(tmp_path / "requests.jsonl", world.respond)
    path = write_lines(tmp_path / "replies.jsonl", replies)
    store = tmp_path / "cache" / "judge.sqlite"
    assert main(["cache"]) == 0
    with running("lm-eval-rubrics", "import", str(path), log=tmp_path / "log") as run:
        wait_until(lambda: (store.exists() and _rows(store) > 0) or run.ended())
        run.send(signal.SIGKILL)
        run.code()
    assert main(["import", str(path)]) == 0
    forget_judges()
    command = ["score", str(answers), "--output_path", str(tmp_path / "two"), *settings(server)]
    assert main(command) == 0
    assert not server.received
    assert _rows(store) == len(replies)
    found = results(tmp_path / "two")["results"]["prbench_finance"]
    assert found["clipped_score,none"] == pytest.approx(clipped_mean(cases))


def _rows(store: Path) -> int:
    try:
        return len(kept(store))
    except sqlite3.OperationalError:  # its table is not there yet
        return 0


# --- the Batch API -------------------------------------------------------------------------------


def batch(server: StubServer, answers: Path, out: Path, *more: str) -> int:
    forget_judges()
    return main(batch_command(server, answers, out, *more))


def batch_command(server: StubServer, answers: Path, out: Path, *more: str) -> list[str]:
    return ["batch", str(answers), "--output_path", str(out), "--poll", "0.02", *more,
            *settings(server)]  # fmt: skip


def test_a_batch_scores_as_live_calls_do(
    server: BatchServer, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    assert batch(server, answers, tmp_path / "two", "--requests_per_file", "8") == 0
    assert results(tmp_path / "two")["results"] == live
    assert not server.received
    assert server.batched == CALLS
    assert len(server.batches) == len(server.files) / 2 > 1
    # Once more: all is in the store.
    assert batch(server, answers, tmp_path / "three") == 0
    assert results(tmp_path / "three")["results"] == live
    assert server.batched == CALLS


@pytest.mark.parametrize(
    "ending",
    [
        Ending("expired", lines=5),
        Ending("cancelled", lines=5),
        Ending("completed", lines=0),
        Ending("expired", lines=0),
    ],
    ids=lambda e: f"{e.status} with {e.lines}",
)
def test_what_one_round_leaves_the_next_one_brings(
    ending: Ending, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings = [ending, Ending(lines=3)]
    with BatchServer(world.respond, models=("model", "judge"), endings=endings) as server:
        answers = saved(server, tmp_path / "saved")
        live = expected(server, answers, tmp_path / "live", monkeypatch)
        if ending.lines:
            assert batch(server, answers, tmp_path / "two") == 0
            assert len(server.batches) == 3
        else:  # a round without any verdict ends it, and says why; the command goes on where it was
            assert batch(server, answers, tmp_path / "two") == 3
            assert len(server.batches) == 1
            assert batch(server, answers, tmp_path / "two") == 0
            assert len(server.batches) == 3
        assert server.batched == CALLS
        assert not server.received
    assert results(tmp_path / "two")["results"] == live


def test_calls_that_no_batch_brings_are_left_out_or_asked_live(
    server: BatchServer, world: World, answers: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    world.failing = {"finance-1-c1"}
    assert batch(server, answers, tmp_path / "two") == 0
    assert "1 calls have no verdict from any batch" in caplog.text
    assert not server.received
    assert len(server.batches) == 2  # the second one was of that call alone, and brought nothing
    found = results(tmp_path / "two")["results"]["prbench_finance"]
    assert found["judge_coverage,none"] == pytest.approx(2 / 3)
    world.failing = set()
    assert batch(server, answers, tmp_path / "three", "--live_rest") == 0
    assert results(tmp_path / "three")["results"] == live


def test_a_batch_that_the_api_refuses_stops_with_its_words(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = [Ending("failed", message="Enqueued token limit reached for judge.")]
    with BatchServer(world.respond, models=("model", "judge"), endings=endings) as server:
        answers = saved(server, tmp_path / "saved")
        assert batch(server, answers, tmp_path / "two") == 3
        error = capsys.readouterr().err
        assert "Enqueued token limit reached" in error
        assert "the same command again" in " ".join(error.split()) or "run the same" in error
        assert not list((tmp_path / "two").rglob("*.json"))
        assert batch(server, answers, tmp_path / "two") == 0
    assert not server.received


def test_of_several_files_those_that_the_api_refuses_go_again(world: World, tmp_path: Path) -> None:
    full = Ending("failed", message="Enqueued token limit reached for judge.")
    with BatchServer(
        world.respond, models=("model", "judge"), endings=[Ending(), full, full]
    ) as server:
        answers = saved(server, tmp_path / "saved")
        assert batch(server, answers, tmp_path / "two", "--requests_per_file", "8") == 0
        assert server.batched == CALLS


def test_passing_faults_of_the_api_are_waited_for(
    server: BatchServer, answers: Path, tmp_path: Path
) -> None:
    server.faults = [500, 429, 503]
    assert batch(server, answers, tmp_path / "two") == 0
    assert server.batched == CALLS


def test_a_batch_that_was_made_without_an_answer_is_not_made_twice(
    server: BatchServer, answers: Path, tmp_path: Path
) -> None:
    server.lost = 1
    assert batch(server, answers, tmp_path / "two") == 0
    assert len(server.batches) == 1


@pytest.mark.parametrize("missing", ["batch_0", "file-1"], ids=["the batch", "its replies"])
def test_what_was_paid_for_is_not_sent_again_unless_told_to(
    missing: str, server: BatchServer, answers: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server.missing = {missing}  # as with another project's key
    for _ in range(2):
        assert batch(server, answers, tmp_path / "two") == 3
        error = capsys.readouterr().err
        assert "batch batch_0" in error
        assert "--forget_lost" in error
    assert len(server.batches) == 1
    server.missing = set()
    assert batch(server, answers, tmp_path / "two") == 0
    assert len(server.batches) == 1
    assert server.batched == CALLS


@pytest.mark.parametrize("missing", ["batch_0", "file-1"], ids=["the batch", "its replies"])
def test_what_the_api_has_lost_goes_again_when_told_to(
    missing: str, server: BatchServer, answers: Path, tmp_path: Path
) -> None:
    server.missing = {missing}
    assert batch(server, answers, tmp_path / "two") == 3
    assert batch(server, answers, tmp_path / "two", "--forget_lost") == 0
    assert len(server.batches) == 2
    assert not server.received


@pytest.mark.parametrize("status", [413, 400])
def test_a_file_that_the_api_does_not_take_is_made_anew(
    status: int, server: BatchServer, answers: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server.faults = [status, status]
    assert batch(server, answers, tmp_path / "two") == 3
    assert f"a fault of {status}" in capsys.readouterr().err
    server.faults = []
    assert batch(server, answers, tmp_path / "two", "--requests_per_file", "8") == 0
    assert len(server.batches) > 1  # in smaller ones
    assert server.batched == CALLS


def test_answers_that_the_api_does_not_give_are_waited_out(
    server: BatchServer, answers: Path, tmp_path: Path
) -> None:
    for odd in (b"<html>", b"[]", b"{}", b'"x"', b"null"):
        server.odd = [odd] * 6  # to the upload, the list, the creation and the polls
        out = tmp_path / f"out-{odd!r}"
        forget_judges()
        command = ["batch", str(answers), "--output_path", str(out), "--poll", "0.01",
                   *settings(server, temperature=len(odd) / 10)]  # fmt: skip
        assert main(command) == 0


def test_a_status_that_batches_do_not_have_is_not_polled_for_ever(
    server: BatchServer, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status, server.hold = "sleeping", True
    forget_judges()
    command = ["batch", str(answers), "--output_path", str(tmp_path / "two"), "--poll", "0.01",
               *settings(server, max_outage=1)]  # fmt: skip
    assert main(command) == 3
    assert "without a status that batches have" in capsys.readouterr().err
    server.status, server.hold = "in_progress", False
    assert batch(server, answers, tmp_path / "two") == 0
    assert len(server.batches) == 1


def test_foreign_lines_among_the_replies_cost_only_themselves(
    server: BatchServer, answers: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.strangers = [{"custom_id": "somebody-else-s"}, {"custom_id": f"{'0' * 12}-{'0' * 64}"}]
    assert batch(server, answers, tmp_path / "two") == 0
    assert len(server.batches) == 1
    assert "2 of other requests" in caplog.text


def test_a_refused_key_stops_at_once(
    server: BatchServer, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [401]
    assert batch(server, answers, tmp_path / "two") == 3
    assert "refuses the API key" in capsys.readouterr().err
    assert not server.batches


@pytest.mark.parametrize("moment", ["waiting", "made", "uploaded"])
def test_a_batch_command_that_was_killed_goes_on_where_it_was(
    moment: str, server: BatchServer, answers: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    live = expected(server, answers, tmp_path / "live", monkeypatch)
    server.hold = True
    command = batch_command(server, answers, tmp_path / "two")
    reached = {
        "waiting": lambda: bool(server.batches) and server.batches[0].polled > 1,
        "made": lambda: bool(server.batches),
        "uploaded": lambda: bool(server.files),
    }[moment]
    with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
        wait_until(lambda: reached() or run.ended())
        run.send(signal.SIGKILL)
        assert run.code() == -signal.SIGKILL, run.text
    server.hold = False
    assert main(command) == 0
    assert len(server.batches) == 1
    assert server.batched == CALLS
    assert not server.received
    assert results(tmp_path / "two")["results"] == live


def test_another_batch_command_at_the_same_time_is_refused(
    server: BatchServer, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.hold = True
    command = batch_command(server, answers, tmp_path / "one")
    with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
        wait_until(lambda: bool(server.batches) or run.ended())
        assert batch(server, answers, tmp_path / "two") == 2
        assert "another lm-eval-rubrics batch is running" in capsys.readouterr().err
        run.send(signal.SIGINT)
        assert run.code() == 130, run.text
        assert "the same command again" in run.text


def test_the_samples_say_what_live_samples_say(
    server: BatchServer, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected(server, answers, tmp_path / "live", monkeypatch)
    assert batch(server, answers, tmp_path / "two") == 0
    for task in ("prbench_finance", "prbench_legal"):
        assert repr(samples(tmp_path / "live", task)) == repr(samples(tmp_path / "two", task))
    assert only(tmp_path / "two", "results_*.json").parent.name == "model"


def test_a_judge_whose_every_call_fails_stops_with_its_reason(
    server: BatchServer, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.responder = lambda _: server_error(400)
    assert batch(server, answers, tmp_path / "two") == 3
    assert "bring no more verdicts: 400" in capsys.readouterr().err
    assert len(server.batches) == 1
