"""When calls go out: rate limits, outages, budgets; and the line that says what it all was."""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from asking import CASES, PATIENCE, ask, call, calls, forget_judges, judge_at, verdicts, wait_until
from commands import judge_arguments, metrics, results, samples
from rows import (
    FINANCE,
    LEGAL,
    World,
    clipped,
    clipped_mean,
    criterion_of,
    write_answers,
    write_data,
)
from stub_server import (
    Received,
    Reply,
    StubServer,
    content_filtered,
    no_such_route,
    server_error,
    tokens_of,
    unauthorized,
    verdict,
)

from custom_metrics.cli import main
from custom_metrics.errors import JudgeError

CRITERIA = [case.tag(number) for case in FINANCE for number in range(len(case.items))]


@pytest.fixture(autouse=True)
def _own_judges() -> Iterator[None]:
    """Runs in this process share their judges."""
    yield
    forget_judges()


class Outage:
    """A judge that is down from its first call on, for ``seconds``; ``then`` it says only that."""

    def __init__(self, reply: Reply, seconds: float, then: Reply | None = None) -> None:
        self._reply, self._seconds, self._then = reply, seconds, then
        self._began = 0.0
        self.while_down: list[float] = []

    def respond(self, received: Received) -> Reply:
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began < self._seconds:
            self.while_down.append(now - self._began)
            return self._reply
        return self._then or up(received)


def up(received: Received) -> Reply:
    number = int(received.prompt.removeprefix("Question ").rstrip("?"))
    return Reply(verdict(number % 2 == 0), delay=0.01)


def even(count: int) -> list[bool]:
    return [number % 2 == 0 for number in range(count)]


DOWN = {"reset": Reply(fault="reset"), "503": server_error(503)}


# --- outages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seconds"), [("reset", 0.6), ("503", 1.5)])
def test_an_outage_in_the_middle_pauses_the_run_and_uses_up_no_retries(
    name: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(DOWN[name], seconds)
    with (
        StubServer(up) as server,
        judge_at(server.url, concurrency=16, max_retries=1) as judge,
        caplog.at_level(logging.WARNING),
    ):
        before = ask(judge, calls(30))
        server.responder = outage.respond
        after = ask(judge, calls(60, first=30))
        line = judge.settle()
    assert verdicts(before + after) == even(90)
    assert len(server.received) == 90 + len(outage.while_down)
    assert f"{len(outage.while_down)} retried, 0 failed" in line
    # All 16 in flight have met it; then only one call at a time tries.
    assert len(outage.while_down) == (16 if name == "reset" else 17)
    assert len([m for m in caplog.messages if "is down for" in m]) == 1
    assert len([m for m in caplog.messages if "is back" in m]) == 1


def test_many_calls_in_flight_do_not_make_an_outage_longer() -> None:
    outage = Outage(DOWN["reset"], 0.6)
    with StubServer(outage.respond) as server, judge_at(server.url, concurrency=32) as judge:
        assert not wait(judge.submit(calls(60)), timeout=3).not_done
        assert len(outage.while_down) == 32


def test_an_outage_fails_no_call_of_a_judge_with_few_calls_in_flight() -> None:
    outage = Outage(DOWN["reset"], 1.5)
    with StubServer(up) as server, judge_at(server.url, concurrency=4, max_retries=1) as judge:
        before = ask(judge, calls(6))
        server.responder = outage.respond
        assert verdicts(before + ask(judge, calls(34, first=6))) == even(40)


def test_a_few_calls_that_always_get_a_500_do_not_stop_the_others() -> None:
    def respond(received: Received) -> Reply:
        return server_error() if "3" in received.prompt else Reply(verdict(True))

    with (
        StubServer(respond) as server,
        judge_at(server.url, concurrency=16, max_retries=3, max_outage=1) as judge,
    ):
        futures = judge.submit(calls(40))
        assert not wait(futures, timeout=6).not_done
        outcomes = [future.result() for future in futures]
    assert [o.failed for o in outcomes] == ["3" in str(n) for n in range(40)]


# What an endpoint may say to every call when it is down, and what some say to single calls.
FAULTY = {
    "500": server_error(500),
    "404": no_such_route(),
    "301": Reply(status=301, raw=b"Moved", content_type="text/plain"),
    "no choices": Reply(raw=b'{"choices": []}'),
}


def sane(received: Received) -> Reply:
    """Like :func:`up`, and answers any other question too."""
    return up(received) if received.prompt.startswith("Question") else Reply("ok")


@pytest.mark.parametrize("name", FAULTY)
def test_an_endpoint_that_answers_every_call_with_a_fault_is_waited_for(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    down = threading.Event()

    def respond(received: Received) -> Reply:
        return FAULTY[name] if down.is_set() else sane(received)

    with (
        StubServer(respond) as server,
        judge_at(server.url, concurrency=8, max_retries=1) as judge,
        caplog.at_level(logging.WARNING),
    ):
        before = ask(judge, calls(20))
        down.set()
        futures = judge.submit(calls(60, first=20))
        wait_until(lambda: "is down for" in caplog.text)
        time.sleep(0.5)  # what was in flight comes back
        server.reset()
        time.sleep(2)
        assert len(server.received) < 8  # one call at a time tries
        assert not any(future.done() for future in futures)
        down.clear()
        after = [future.result(PATIENCE) for future in futures]
    assert verdicts(before + after) == even(80)
    assert "is back" in caplog.text


def test_an_endpoint_that_answers_with_faults_for_too_long_is_given_up_and_all_is_kept() -> None:
    def respond(received: Received) -> Reply:
        return sane(received) if received.number < 20 else server_error()

    with StubServer(respond) as server:
        with judge_at(server.url, concurrency=8, max_retries=6, max_outage=1) as judge:
            ask(judge, calls(20))
            for future in judge.submit(calls(60, first=20)):
                with pytest.raises(JudgeError, match=r"has been down for .*500.*same command"):
                    future.result(PATIENCE)
        server.reset()
        server.responder = sane
        with judge_at(server.url, concurrency=8) as judge:
            assert verdicts(ask(judge, calls(80))) == even(80)
        assert len(server.received) == 60


@pytest.mark.parametrize(
    ("fault", "concurrency", "broken"),
    [("500", 16, 40), ("500", 2, 6), ("503", 2, 1), ("reset", 1, 1), ("reset", 4, 6)],
)
def test_calls_that_always_break_the_server_fail_alone_when_nothing_else_is_left(
    fault: str, concurrency: int, broken: int
) -> None:
    faults = {"500": server_error(), **DOWN}

    def respond(received: Received) -> Reply:
        return faults[fault] if received.prompt.startswith("Broken") else sane(received)

    with (
        StubServer(respond) as server,
        judge_at(server.url, concurrency=concurrency, max_retries=3, max_outage=30) as judge,
    ):
        asked = [*calls(10), *(call(f"Broken {n}", str(n)) for n in range(broken))]
        outcomes = [future.result(60) for future in judge.submit(asked)]
        assert not judge.stopped
    assert verdicts(outcomes) == [*even(10), *[None] * broken]


def test_faults_at_three_tenths_of_all_attempts_are_no_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def respond(received: Received) -> Reply:
        digest = hashlib.sha256(f"{received.number}".encode()).digest()
        return server_error() if digest[0] % 10 < 3 else sane(received)

    with (
        StubServer(respond) as server,
        judge_at(server.url, concurrency=16, max_retries=6) as judge,
        caplog.at_level(logging.WARNING),
    ):
        assert verdicts(ask(judge, calls(120))) == even(120)
    assert "is down" not in caplog.text


STOPS: dict[str, tuple[dict[str, Any], Reply | None]] = {
    # why a run stops during an outage: settings, and what the server says after it
    "a refused key": ({}, unauthorized()),
    "a budget": ({"max_calls": 17}, None),
    "max_outage": ({"max_outage": 0.5}, None),
}


@pytest.mark.parametrize("why", STOPS)
def test_no_call_is_left_waiting_when_a_run_stops_during_an_outage(why: str) -> None:
    settings, then = STOPS[why]
    outage = Outage(DOWN["reset"], 0.6 if then else 60, then)
    with (
        StubServer(outage.respond) as server,
        judge_at(server.url, concurrency=16, max_retries=3, **settings) as judge,
    ):
        waiting = wait(judge.submit(calls(40)), timeout=3).not_done
        assert not waiting, f"{len(waiting)} calls wait for nothing"


# --- rates ---------------------------------------------------------------------------------------


def arrivals_of(count: int, text: str = "", **settings: Any) -> list[float]:
    """When the calls of a judge with these settings came, counted from the first."""
    times: list[float] = []

    def respond(_: Received) -> Reply:
        times.append(time.monotonic())
        return Reply(verdict(True))

    with StubServer(respond) as server, judge_at(server.url, **settings) as judge:
        ask(judge, [call(f"{text}{number}", str(number)) for number in range(count)])
    return [when - times[0] for when in times]


def test_requests_a_minute_are_kept_to() -> None:
    arrivals = arrivals_of(20, rpm=1200)
    assert 19 * 0.05 * 0.9 <= arrivals[-1] < 4
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert sum(gap > 0.02 for gap in gaps) >= 15  # spread, not in bursts


def test_tokens_a_minute_are_kept_to() -> None:
    arrivals = arrivals_of(10, text="x" * 400, tpm=60_000)  # 100 tokens at 1,000 a second
    assert 9 * 0.1 * 0.9 <= arrivals[-1] < 4


def test_without_limits_nothing_waits() -> None:
    assert arrivals_of(20)[-1] < 0.9


def test_calls_that_a_budget_leaves_out_do_not_wait_for_their_turn() -> None:
    with (
        StubServer(lambda _: Reply(verdict(True))) as server,
        judge_at(server.url, rpm=240, max_calls=1) as judge,
    ):
        futures = judge.submit(calls(12))
        assert not wait(futures, timeout=1.5).not_done


# --- budgets and the line, in a run --------------------------------------------------------------


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=FINANCE, legal=LEGAL))
    )
    return write_answers(
        tmp_path / "answers.json", {c.id: f"Answer to {c.id}." for c in FINANCE + LEGAL}
    )


def run(answers: Path, url: str, out: Path, tasks: str = "prbench_finance", **settings: Any) -> int:
    """The exit code of a run in this process that judges one call at a time."""
    code: int = main([
        "run", "--model", "prefilled", "--model_args", f"path={answers}", "--tasks", tasks,
        "--output_path", str(out), "--log_samples",
        *judge_arguments(url, **{"prompt": "builtin", "concurrency": 1, **settings}),
    ])  # fmt: skip
    return code


LINE = re.compile(
    r"Judge: (?P<calls>\d+) calls, (?P<stored>\d+) from the store, (?P<retried>\d+) retried, "
    r"(?P<failed>\d+) failed, (?P<prompt>\d+) tokens in \((?P<cached>\d+) cached\), "
    r"(?P<completion>\d+) out, [\d.]+ s(?: \(\d+ calls/s\))?(?:, cost (?P<cost>[\d.]+))?"
)


def lines(errors: str) -> list[Mapping[str, str | None]]:
    return [found.groupdict() for found in LINE.finditer(errors)]


def row(out: Path) -> dict[str, Any]:
    return metrics(results(out), "prbench_finance")


def test_a_run_that_gives_up_an_outage_keeps_everything_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=CASES)))
    path = write_answers(tmp_path / "answers.json", {c.id: f"Answer to {c.id}." for c in CASES})
    world, good = World(CASES), 14

    def down_after_some(received: Received) -> Reply:
        if received.number >= good:
            return Reply(fault="reset")
        return world.respond(received)  # at once, so that only failures are left afterwards

    with StubServer(down_after_some) as server:
        settings = {"max_retries": 0, "max_outage": 0, "concurrency": 24}
        assert run(path, server.url, tmp_path / "1", **settings) == 3
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        assert "has been down for" in errors
        assert "run the same command again" in errors
        assert not (tmp_path / "1").exists()
        server.reset()
        server.responder = world.respond
        assert run(path, server.url, tmp_path / "2") == 0
        assert len(server.received) == sum(len(case.items) for case in CASES) - good
    assert row(tmp_path / "2")["clipped_score"] == pytest.approx(clipped_mean(CASES))


def test_max_calls_stops_with_what_was_scored_and_the_next_run_completes_it(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    with StubServer(world.respond) as server:
        # One call at a time, so that the first document's four calls and one more are asked.
        assert run(answers, server.url, tmp_path / "1", max_calls=5) == 0
        errors = capsys.readouterr().err
        assert [criterion_of(r) for r in server.received] == CRITERIA[:5]
        found = row(tmp_path / "1")
        assert found["clipped_score"] == pytest.approx(clipped(FINANCE[0].items))
        assert found["judge_coverage"] == pytest.approx(1 / 3)
        assert "2 of 3 documents have a criterion without a verdict" in errors
        (line,) = lines(errors)
        assert (line["calls"], line["stored"], line["failed"]) == ("5", "0", "0")

        assert run(answers, server.url, tmp_path / "2", max_calls=100) == 0
        assert [criterion_of(r) for r in server.received] == CRITERIA
        (line,) = lines(capsys.readouterr().err)
        assert (line["calls"], line["stored"]) == ("5", "5")
    assert row(tmp_path / "2")["clipped_score"] == pytest.approx(clipped_mean(FINANCE))


def test_a_run_that_a_budget_stopped_says_so_and_how_to_go_on(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubServer(World().respond) as server:
        assert run(answers, server.url, tmp_path / "1", max_calls=5) == 0
    errors = capsys.readouterr().err
    assert "max_calls (5) is reached" in errors
    assert "finance-2" in errors
    assert "finance-3" in errors
    assert "again" in errors


def test_a_call_that_was_not_asked_is_not_unmet(answers: Path, tmp_path: Path) -> None:
    with StubServer(World().respond) as server:
        code = run(answers, server.url, tmp_path, max_calls=5, on_failure="unmet")
    assert code == 0
    found = row(tmp_path)
    assert found["clipped_score"] == pytest.approx(clipped(FINANCE[0].items))
    assert found["judge_coverage"] == pytest.approx(1 / 3)
    told = [sample["doc"] for sample in samples(tmp_path, "prbench_finance")]
    assert "not asked: max_calls (5) is reached" in str(told[1])


def test_max_cost_stops_once_it_is_spent(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()

    def respond(received: Received) -> Reply:
        reply = world.respond(received)
        return Reply(reply.text, prompt_tokens=1000, cached_tokens=400, completion_tokens=50)

    each = (600 * 3 + 400 * 1.5 + 50 * 12) / 1e6  # 0.003
    with StubServer(respond) as server:
        settings: dict[str, Any] = {"prices": "[3,1.5,12]", "max_cost": 5.5 * each}
        assert run(answers, server.url, tmp_path / "1", **settings) == 0
        assert len(server.received) == 6
        (line,) = lines(capsys.readouterr().err)
        assert float(line["cost"] or 0) == pytest.approx(6 * each)
        assert run(answers, server.url, tmp_path / "2", **settings) == 0
        assert len(server.received) == len(CRITERIA)
    assert row(tmp_path / "2")["clipped_score"] == pytest.approx(clipped_mean(FINANCE))


def test_prices_are_given_as_the_settings_describe_them(answers: Path, tmp_path: Path) -> None:
    with StubServer(World().respond) as server:
        assert run(answers, server.url, tmp_path, prices="1.1,0.275,4.4") == 0


def test_the_line_says_what_the_server_counted(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, asked = World(failing={CRITERIA[3]}), Counter[str]()
    counted = Counter[str]()

    def respond(received: Received) -> Reply:
        tag = criterion_of(received)
        asked[tag] += 1
        if tag == CRITERIA[1] and asked[tag] == 1:
            return server_error()
        if tag == CRITERIA[2] and asked[tag] == 1:
            reply = Reply("Prose is paid for too.")
        elif tag == CRITERIA[3]:
            return content_filtered()
        else:
            reply = Reply(world.respond(received).text, cached_tokens=64)
        tokens = tokens_of(received, reply)
        counted.update(prompt=tokens.prompt, cached=tokens.cached, completion=tokens.completion)
        return reply

    with StubServer(respond) as server:
        assert run(answers, server.url, tmp_path / "1", prices="[2,1,8]", max_retries=2) == 0
        (line,) = lines(capsys.readouterr().err)
        assert int(line["calls"] or 0) == len(server.received) == len(CRITERIA) + 2
        assert (line["stored"], line["retried"], line["failed"]) == ("0", "2", "1")
        assert {name: int(line[name] or 0) for name in counted} == counted
        cost = 2 * (counted["prompt"] - counted["cached"]) + counted["cached"]
        cost += 8 * counted["completion"]
        assert float(line["cost"] or 0) == pytest.approx(cost / 1e6, abs=0.00005)

        assert run(answers, server.url, tmp_path / "2", prices="[2,1,8]", max_retries=2) == 0
        (line,) = lines(capsys.readouterr().err)
        assert (line["calls"], line["stored"], line["failed"]) == ("1", str(len(CRITERIA) - 1), "1")


def test_a_run_of_two_tasks_ends_with_one_line(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = sum(len(case.items) for case in FINANCE + LEGAL)
    with StubServer(World().respond) as server:
        for number, (asked, stored) in enumerate(((count, 0), (0, count))):
            out = tmp_path / str(number)
            assert run(answers, server.url, out, tasks="prbench", concurrency=64) == 0
            found = lines(capsys.readouterr().err)
            assert [(line["calls"], line["stored"]) for line in found] == [
                (str(asked), str(stored))
            ]


def test_max_outage_nought_gives_up_at_once() -> None:
    with (
        StubServer(lambda _: Reply(fault="reset")) as server,
        judge_at(server.url, concurrency=16, max_outage=0) as judge,
    ):
        futures = judge.submit(calls(16))
        with pytest.raises(JudgeError, match="has been down for 0 s"):
            futures[15].result(PATIENCE)
        assert judge.stopped
