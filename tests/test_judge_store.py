"""Every paid reply is kept, found again by what determines it, and survives what may happen."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import (
    CASES,
    PATIENCE,
    ask,
    call,
    calls,
    judge_at,
    kept,
    verdicts,
    wait_until,
)
from background import running
from commands import judge_arguments, metrics, results
from rows import World, clipped_mean, write_answers, write_data
from stub_server import Received, Reply, StubServer, content_filtered, verdict

from custom_metrics.cli import main
from custom_metrics.judge import Met

SECRET = "sk-the-secret-of-the-judge"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where replies are kept when nothing else is said."""
    return tmp_path / "cache" / "judge.sqlite"


def respond(received: Received) -> Reply:
    """Met if the last digit of the question is even."""
    digits = [c for c in received.prompt if c.isdigit()]
    return Reply(verdict(not digits or int(digits[-1]) % 2 == 0))


EVEN_AND_ODD = [True, False] * 5

# Another process with a judge of its own; prints its verdicts.
ASKING = """
import sys
sys.path.insert(0, sys.argv[1])
from asking import CASES, ask, calls, judge_at, verdicts
with judge_at(sys.argv[2], concurrency=16) as judge:
    sys.stdin.readline()
    print(verdicts(ask(judge, calls(int(sys.argv[3])))))
"""


def another_process(url: str, count: int) -> subprocess.Popen[str]:
    """It waits for a line, then asks ``count`` questions."""
    return subprocess.Popen(
        [sys.executable, "-c", ASKING, str(Path(__file__).parent), url, str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# --- served again --------------------------------------------------------------------------------


def test_a_second_judge_is_served_without_a_request() -> None:
    with StubServer(respond) as server:
        with judge_at(server.url) as judge:
            first = ask(judge, calls(10))
        with judge_at(server.url) as judge:
            second = ask(judge, calls(10))
            line = judge.settle()
        assert len(server.received) == 10
    assert second == first
    assert verdicts(second) == EVEN_AND_ODD
    assert line.startswith("0 calls, 10 from the store, 0 retried, 0 failed, 0 tokens in")


def test_another_process_is_served_without_a_request() -> None:
    with StubServer(respond) as server:
        with judge_at(server.url) as judge:
            ask(judge, calls(10))
        output, errors = another_process(server.url, 10).communicate("go\n", timeout=60)
        assert len(server.received) == 10
    assert output.strip() == str(EVEN_AND_ODD), errors


def test_an_outcome_from_the_store_says_how_many_requests_it_took() -> None:
    asked: Counter[str] = Counter()

    def prose_first(received: Received) -> Reply:
        asked[received.prompt] += 1
        return Reply("It is met." if asked[received.prompt] == 1 else verdict(True))

    with StubServer(prose_first) as server:
        for _ in range(2):
            with judge_at(server.url) as judge:
                assert [o.attempts for o in ask(judge, calls(3))] == [2] * 3
        assert len(server.received) == 6


def test_a_replys_explanation_comes_back_as_it_was() -> None:
    said = "„Ja“ – 是的, \x00 and \u202e back, 𝄞"
    with StubServer(lambda _: Reply(verdict(True, said))) as server:
        for _ in range(2):
            with judge_at(server.url) as judge:
                (outcome,) = ask(judge, [call()])
            assert outcome.value == Met(True, said)
        assert len(server.received) == 1


DETERMINES_IT: dict[str, dict[str, Any]] = {
    "model": {"model": "another"},
    "temperature": {"temperature": 0.5},
    "max_tokens": {"max_tokens": 700},
    "reasoning_effort": {"reasoning_effort": "low"},
    "extra_body": {"extra_body": {"seed": 1}},
    "api": {"api": "responses"},
}
DOES_NOT = {
    "concurrency": 3, "timeout": 5, "max_retries": 4, "rpm": 10_000, "max_calls": 0,
    "prices": "1,1,1", "max_outage": 1, "on_failure": "unmet", "prompt": "builtin",
}  # fmt: skip


@pytest.mark.parametrize("name", DETERMINES_IT)
def test_what_determines_a_reply_is_in_its_key(name: str) -> None:
    with StubServer(respond) as server:
        for settings in ({}, DETERMINES_IT[name], DETERMINES_IT[name]):
            with judge_at(server.url, **settings) as judge:
                ask(judge, calls(2))
        assert len(server.received) == 4


def test_another_address_another_prompt_and_another_seed_are_other_questions() -> None:
    with StubServer(respond) as server, StubServer(respond) as other:
        with judge_at(server.url) as judge:
            ask(judge, [call("one")])
            ask(judge, [call("one.")])
        with judge_at(other.url) as judge:
            ask(judge, [call("one")])
        for seed in (1, 2, 1):
            with judge_at(other.url, extra_body={"seed": seed}) as judge:
                ask(judge, [call("one")])
        assert (len(server.received), len(other.received)) == (2, 3)


def test_what_does_not_determine_a_reply_is_not_in_its_key() -> None:
    with StubServer(respond) as server:
        with judge_at(server.url) as judge:
            ask(judge, calls(2))
        with judge_at(server.url, **DOES_NOT) as judge:
            assert verdicts(ask(judge, calls(2))) == [True, False]
        assert len(server.received) == 2


def test_identical_questions_in_flight_are_asked_once() -> None:
    with (
        StubServer(lambda _: Reply(verdict(True), delay=0.1)) as server,
        judge_at(server.url) as judge,
    ):
        batches = [judge.submit([call()] * 5) for _ in range(4)]
        outcomes = [future.result(20) for batch in batches for future in batch]
        assert verdicts(outcomes) == [True] * 20
        assert len(server.received) == 1


# --- not served ----------------------------------------------------------------------------------


def test_a_reply_that_arrives_while_its_question_is_submitted_again_is_not_paid_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowly(received: Received) -> Reply:
        return replace(respond(received), delay=0.5)

    with StubServer(slowly) as server, judge_at(server.url) as judge:
        assert judge._store is not None
        find = judge._store.find

        def find_and_dawdle(keys: Sequence[str]) -> Any:
            found = find(keys)
            if threading.current_thread() is threading.main_thread():
                first.result(PATIENCE)  # the reply comes after the look into the store
            return found

        (first,) = judge.submit(calls(1))
        monkeypatch.setattr(judge._store, "find", find_and_dawdle)
        (second,) = ask(judge, calls(1))
        assert second == first.result()
        assert len(server.received) == 1
        assert "1 calls, 1 from the store" in judge.settle()


def test_unusable_replies_are_kept_for_the_record_and_asked_again(store: Path) -> None:
    with StubServer(lambda _: Reply("It is met.")) as server:
        with judge_at(server.url, max_retries=2) as judge:
            assert verdicts(ask(judge, [call()])) == [None]
        assert kept(store) == [("It is met.", 0)] * 3
        server.responder = lambda _: Reply(verdict(True))
        with judge_at(server.url) as judge:
            assert verdicts(ask(judge, [call()])) == [True]
        assert len(server.received) == 4
    assert kept(store)[3:] == [(verdict(True), 1)]


def test_off_keeps_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", "off")
    with StubServer(respond) as server:
        for _ in range(2):
            with judge_at(server.url) as judge:
                ask(judge, calls(3))
        assert len(server.received) == 6
    assert not store.exists()


def test_a_path_of_the_users_own(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", str(tmp_path / "my folder" / "replies.db"))
    with StubServer(respond) as server:
        for _ in range(2):
            with judge_at(server.url) as judge:
                ask(judge, calls(3))
        assert len(server.received) == 3
    assert len(kept(tmp_path / "my folder" / "replies.db")) == 3
    assert not store.exists()


def test_the_lexical_judge_keeps_nothing(store: Path) -> None:
    with judge_at("http://127.0.0.1:9/v1", backend="lexical") as judge:
        assert None not in verdicts(ask(judge, calls(3)))
    assert not store.exists()


def test_no_secret_enters_the_file(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", SECRET)
    with StubServer(respond, api_key=SECRET) as server, judge_at(server.url) as judge:
        ask(judge, calls(3))
        files = list(store.parent.iterdir())
        assert {f.name for f in files} >= {"judge.sqlite", "judge.sqlite-wal"}
        assert all(SECRET.encode() not in file.read_bytes() for file in files)
    assert SECRET.encode() not in store.read_bytes()


# --- damage --------------------------------------------------------------------------------------


def filled(server: StubServer, store: Path, count: int = 10) -> None:
    """A store of that many replies, all of them in the one file."""
    with judge_at(server.url) as judge:
        ask(judge, calls(count))
    server.reset()
    assert not Path(f"{store}-wal").exists()


def test_a_file_that_is_no_database_is_set_aside(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.parent.mkdir(parents=True)
    store.write_bytes(b"no database at all " * 500)
    with StubServer(respond) as server:
        for _ in range(2):
            with caplog.at_level(logging.WARNING), judge_at(server.url) as judge:
                assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
        assert len(server.received) == 10
    (aside,) = store.parent.glob("judge.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"no database at all")
    (warned,) = [message for message in caplog.messages if "damaged" in message]
    assert aside.name in warned


def test_a_file_of_another_version_is_set_aside(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StubServer(respond) as server:
        filled(server, store)
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("PRAGMA user_version = 99")
        with caplog.at_level(logging.WARNING), judge_at(server.url) as judge:
            assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
        assert len(server.received) == 10
    assert len(list(store.parent.glob("judge.sqlite.damaged-*"))) == 1
    assert "format is 99" in caplog.text


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_a_page_of_noise(data: bytes) -> bytes:
    """The first page, which opening the file reads, is left as it is."""
    return data[:4096] + bytes(n % 251 for n in range(len(data) - 4096))


@pytest.mark.parametrize(
    "damaged",
    [
        truncated,
        with_a_page_of_noise,
    ],
)
def test_a_damaged_file_is_set_aside_when_the_damage_shows(
    damaged: Callable[[bytes], bytes], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StubServer(respond) as server:
        filled(server, store, 60)
        store.write_bytes(damaged(store.read_bytes()))
        with caplog.at_level(logging.WARNING), judge_at(server.url) as judge:
            assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
    assert len(list(store.parent.glob("judge.sqlite.damaged-*"))) == 1
    assert "damaged" in caplog.text


def flip(store: Path, bit: int) -> None:
    """One bit of one reply's text: that of the letter t of "true", in the first that has it."""
    data = bytearray(store.read_bytes())
    place = data.index(b'"criteria_met": true') + len('"criteria_met": ')
    data[place] ^= bit
    store.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "bit",
    [
        0x02,
        0x80,
    ],
)
def test_a_reply_with_a_flipped_bit_is_asked_again(
    bit: int, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StubServer(respond) as server:
        filled(server, store)
        flip(store, bit)
        with caplog.at_level(logging.WARNING), judge_at(server.url) as judge:
            assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
        assert len(server.received) == 1
    assert "damaged" in caplog.text


def test_a_damaged_reply_that_was_asked_again_is_not_warned_of_any_more(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StubServer(respond) as server:
        filled(server, store)
        flip(store, 0x02)
        with judge_at(server.url) as judge:
            ask(judge, calls(10))
        caplog.clear()
        with caplog.at_level(logging.WARNING), judge_at(server.url) as judge:
            assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
        assert len(server.received) == 1
    assert "damaged" not in caplog.text


def test_a_reply_with_a_lone_surrogate_is_read_and_kept() -> None:
    with StubServer(lambda _: Reply(verdict(True) + "\n\ud83d")) as server:
        for _ in range(2):
            with judge_at(server.url) as judge:
                assert verdicts(ask(judge, calls(2))) == [True] * 2
        assert len(server.received) == 2


def test_a_rerun_in_which_only_calls_that_fail_for_good_are_left_ends_as_the_first_run() -> None:
    def refuse_some(received: Received) -> Reply:
        hopeless = any(digit in received.prompt for digit in "23")
        return content_filtered() if hopeless else Reply(verdict(True))

    with StubServer(refuse_some) as server:
        found = []
        for _ in range(2):
            with judge_at(server.url, concurrency=4) as judge:
                found.append(verdicts(ask(judge, calls(100))))
    assert found[0].count(None) == 36
    assert found[0] == found[1]


def test_a_store_that_cannot_be_written_any_more_costs_no_verdict(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StubServer(respond) as server, judge_at(server.url) as judge:
        ask(judge, calls(2))
        with closing(sqlite3.connect(store)) as another:
            another.execute("DROP TABLE replies")
        with caplog.at_level(logging.WARNING):
            assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
    assert str(store) in caplog.text


# --- several processes ---------------------------------------------------------------------------


def test_a_file_that_another_process_is_just_beginning_is_waited_for(store: Path) -> None:
    store.parent.mkdir(parents=True)
    with (
        closing(sqlite3.connect(store, isolation_level=None, check_same_thread=False)) as another,
        StubServer(respond) as server,
    ):
        another.execute("BEGIN IMMEDIATE")
        done = threading.Timer(0.3, another.execute, ["COMMIT"])
        done.start()
        try:
            with judge_at(server.url) as judge:
                assert verdicts(ask(judge, calls(10))) == EVEN_AND_ODD
        finally:
            done.join()


def test_two_processes_write_one_file_at_once(store: Path) -> None:
    asked: Counter[str] = Counter()

    def slow(received: Received) -> Reply:
        asked[received.prompt] += 1
        return Reply(respond(received).text, delay=0.01)

    count = 200
    expected = [n % 2 == 0 for n in range(count)]
    with StubServer(slow) as server:
        both = [another_process(server.url, count) for _ in range(2)]
        for process in both:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in both:
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert "locked" not in errors
            assert output.strip() == str(expected)
    assert len(asked) == count
    assert max(asked.values()) <= 2
    assert Counter(text for text, _ in kept(store)).total() == asked.total()
    with StubServer(slow, port=int(server.origin.rpartition(":")[2])) as again:
        with judge_at(again.url) as judge:
            assert verdicts(ask(judge, calls(count))) == expected
        assert again.received == []


CRITERIA = sum(len(case.items) for case in CASES)


def test_a_run_that_is_killed_while_judging_pays_only_for_what_was_in_flight(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=CASES)))
    path = write_answers(tmp_path / "answers.json", {c.id: f"Answer to {c.id}." for c in CASES})
    world, in_flight = World(CASES), 4

    def slow(received: Received) -> Reply:
        return Reply(world.respond(received).text, delay=0.1)

    with StubServer(slow) as server:
        arguments = [
            "run", "--model", "prefilled", "--model_args", f"path={path}",
            "--tasks", "prbench_finance", "--output_path", str(tmp_path / "out"),
            *judge_arguments(server.url, prompt="builtin", concurrency=in_flight),
        ]  # fmt: skip
        with running("lm-eval-rubrics", *arguments, log=tmp_path / "log") as run:
            wait_until(lambda: len(server.received) >= 20 or run.ended())
            run.send(signal.SIGKILL)
            assert run.code() == -signal.SIGKILL, run.text
        time.sleep(0.2)  # what was in flight when the run died
        before = len(server.received)
        there = len(kept(store))
        assert before - in_flight <= there <= before < CRITERIA
        server.reset()
        server.responder = world.respond
        assert main(arguments) == 0
        assert len(server.received) == CRITERIA - there
    found = metrics(results(tmp_path / "out"), "prbench_finance")
    assert found["clipped_score"] == pytest.approx(clipped_mean(CASES))
    assert found["judge_coverage"] == 1


# --- the command ---------------------------------------------------------------------------------


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_cache_shows_what_is_kept_and_prunes_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(capsys) == [f"{store}: nothing is kept yet"]
    with StubServer(respond) as server:
        with judge_at(server.url, model="one") as judge:
            ask(judge, calls(3))
        with judge_at(server.url, model="two") as judge:
            ask(judge, calls(4))
        server.responder = lambda _: Reply("prose")
        with judge_at(server.url, model="two") as judge:
            ask(judge, [call("unread")])
        url = server.url
        size, one, two = lines_of(capsys)
        assert size == f"{store}: {store.stat().st_size / 1e6:.1f} MB"
        assert one.startswith(f"one at {url}: 3 verdicts, 0 replies without one, ")
        assert two.startswith(f"two at {url}: 4 verdicts, 2 replies without one, ")
        assert time.strftime("%Y-%m-%d") in one

        assert lines_of(capsys, "--prune", "--older_than", "1")[0] == "0 replies removed"
        removed, _, left = lines_of(capsys, "--prune", "--model", "two")
        assert removed == "6 replies removed"
        assert left == one
        assert lines_of(capsys, "--prune", "--older_than", "0")[0] == "3 replies removed"
        assert kept(store) == []


def test_cache_prune_wants_to_be_told_what(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(respond) as server, judge_at(server.url) as judge:
        ask(judge, calls(3))
    assert main(["cache", "--prune"]) == 2
    assert "--older_than" in capsys.readouterr().err
    assert len(kept(store)) == 3


def test_cache_says_that_the_store_is_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", "off")
    assert lines_of(capsys) == ["RUBRIC_JUDGE_CACHE is off"]
