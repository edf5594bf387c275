"""The judge's engine over real HTTP: how calls are kept in flight, asked again and given up."""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from stub_server import (
    Received,
    Reply,
    StubServer,
    content_filtered,
    openai_error,
    rate_limited,
    rate_limited_inside_200,
    server_error,
    unauthorized,
    unknown_model,
    unsupported_parameter,
    verdict,
)

from custom_metrics.errors import JudgeError
from custom_metrics.judge import Judge, JudgeCall, JudgeConfig, Met, Outcome, read_met, write_met

KEY = "sk-the-secret-of-the-judge"
PATIENCE = 20.0  # seconds until a test gives up waiting

Respond = Callable[[Received], Reply]
Start = Callable[..., tuple[StubServer, Judge]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server that answers as told, and a judge that asks it."""
    opened: list[Any] = []

    def open_both(respond: Respond | Reply, **settings: Any) -> tuple[StubServer, Judge]:
        responder = respond if callable(respond) else lambda _: respond
        server = StubServer(responder).__enter__()
        opened.append(server)
        settings = {"model": "judge", "base_url": server.url, "max_retries": 1, **settings}
        judge = Judge(JudgeConfig(**settings))
        opened.append(judge)
        return server, judge

    yield open_both
    for running in reversed(opened):
        if isinstance(running, Judge):
            running.close()
        else:
            running.__exit__(None, None, None)


def call(text: str = "Is it met?") -> JudgeCall[Met]:
    return JudgeCall(
        messages=lambda: [{"role": "user", "content": text}],
        read=read_met,
        conversation="document",
        label=text,
        answer="an answer",
        criteria=("a criterion",),
        write=write_met,
    )


def calls(count: int, first: int = 0) -> list[JudgeCall[Met]]:
    return [call(f"Question {number}?") for number in range(first, first + count)]


def ask(judge: Judge, text: str = "Is it met?") -> Outcome[Met]:
    (future,) = judge.submit([call(text)])
    return future.result(PATIENCE)


def failing_first(fault: Reply, times: int = 1) -> Respond:
    """Each question gets ``fault`` that often before it gets a verdict."""
    asked: Counter[str] = Counter()

    def respond(received: Received) -> Reply:
        asked[received.prompt] += 1
        return fault if asked[received.prompt] <= times else Reply(verdict(True))

    return respond


# --- calls in flight -----------------------------------------------------------------------------


def test_several_submits_together_reach_the_concurrency_and_never_exceed_it(start: Start) -> None:
    server, judge = start(Reply(verdict(True), delay=0.02), concurrency=8)
    futures = [future for n in range(5) for future in judge.submit(calls(16, 16 * n))]
    assert all(future.result(PATIENCE).value == Met(True, met_text()) for future in futures)
    assert server.peak == 8
    assert len(server.received) == 80


def met_text() -> str:
    """The explanation that the stub's verdicts carry."""
    return str(json.loads(verdict(True).strip("`").removeprefix("json"))["explanation"])


def test_the_judge_works_inside_a_running_event_loop(start: Start) -> None:
    _, judge = start(lambda received: Reply(verdict("3" in received.prompt)))

    async def main() -> list[bool]:
        futures = judge.submit(calls(5))
        outcomes = await asyncio.gather(*map(asyncio.wrap_future, futures))
        blocking = judge.submit([call("Question 3?")])[0].result(PATIENCE)  # waits in the loop
        return [bool(o.value and o.value.met) for o in [*outcomes, blocking]]

    assert asyncio.run(main()) == [False, False, False, True, False, True]


def test_several_threads_share_one_judge_and_its_concurrency(start: Start) -> None:
    server, judge = start(Reply(verdict(True), delay=0.01), concurrency=4)

    def work(_: int) -> int:
        return sum(not f.result(PATIENCE).failed for f in judge.submit(calls(10)))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 80
    assert server.peak == 4


def test_each_outcome_belongs_to_its_call_whatever_the_order_of_the_replies(start: Start) -> None:
    def respond(received: Received) -> Reply:
        odd = int(received.prompt.split()[1].rstrip("?")) % 2 == 1
        return Reply(verdict(odd), delay=0 if odd else 0.05)

    _, judge = start(respond, concurrency=20)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(20))]
    assert [o.value is not None and o.value.met for o in outcomes] == [False, True] * 10


def test_calls_submitted_one_after_another_are_all_answered(start: Start) -> None:
    server, judge = start(Reply(verdict(True)), concurrency=1)
    assert all(not ask(judge, f"Question {number}").failed for number in range(50))
    assert len(server.received) == 50


def test_a_call_submitted_the_moment_the_last_one_is_done_is_answered(start: Start) -> None:
    _, judge = start(Reply(verdict(True)), concurrency=1)
    second: Future[Future[Outcome[Met]]] = Future()
    (first,) = judge.submit([call("first")])
    first.add_done_callback(lambda _: second.set_result(judge.submit([call("second")])[0]))
    assert not second.result(PATIENCE).result(2).failed


def test_a_cancelled_call_is_not_sent(start: Start) -> None:
    server, judge = start(Reply(verdict(True), delay=0.05), concurrency=1)
    first, second = judge.submit([call("first"), call("second")])
    assert second.cancel()
    first.result(PATIENCE)
    ask(judge, "third")
    assert [received.prompt for received in server.received] == ["first", "third"]


def test_calls_after_close_get_an_error_and_do_not_wait_for_ever(start: Start) -> None:
    _, judge = start(Reply(verdict(True)))
    judge.close()
    with pytest.raises(JudgeError):
        judge.submit([call()])[0].result(1)


# --- faults that pass ----------------------------------------------------------------------------

PASSING = {
    "429": rate_limited(),
    "429 with Retry-After: 0": rate_limited("0"),
    "429 inside a 200": rate_limited_inside_200(),
    "500": server_error(500),
    "502": server_error(502),
    "503": server_error(503),
    "reset": Reply(fault="reset"),
    "close": Reply(fault="close"),
    "hang": Reply(fault="hang"),
    "empty body": Reply(raw=b""),
    "HTML with 200": Reply(raw=b"<html>Bad gateway</html>", content_type="text/html"),
    "JSON that is no object": Reply(raw=b"[1, 2]"),
    "JSON cut off": Reply(raw=b'{"choices": ['),
    "no choices": Reply(raw=b'{"choices": []}'),
}
UNREADABLE = {
    "content null": (Reply(None), "empty"),
    "only reasoning": (Reply(None, reasoning="Thinking that it is true."), "empty"),
    "cut at the limit": (Reply(verdict(True), finish_reason="length"), "cut off"),
    "prose": (Reply("It is true that the criterion is met."), "criteria_met"),
}


def ask_with_each_fault(judge: Judge) -> dict[str, Outcome[Met]]:
    """One call for each of the faults that pass; the question is the fault's name."""
    futures = judge.submit([call(name) for name in PASSING])
    return {name: f.result(PATIENCE) for name, f in zip(PASSING, futures, strict=True)}


def test_a_fault_on_the_first_attempt_only_is_recovered_from(start: Start) -> None:
    asked: Counter[str] = Counter()

    def respond(received: Received) -> Reply:
        asked[received.prompt] += 1
        first = asked[received.prompt] == 1
        return PASSING[received.prompt] if first else Reply(verdict(True))

    _, judge = start(respond, timeout=2)
    outcomes = ask_with_each_fault(judge)
    assert {name: o.failure for name, o in outcomes.items()} == dict.fromkeys(PASSING)
    assert {name: o.attempts for name, o in outcomes.items()} == dict.fromkeys(PASSING, 2)
    assert asked == dict.fromkeys(PASSING, 2)


def test_a_fault_that_stays_is_a_failed_outcome_with_its_reason(start: Start) -> None:
    server, judge = start(lambda received: PASSING[received.prompt], timeout=2, max_retries=0)
    outcomes = ask_with_each_fault(judge)
    assert all(outcome.failed and outcome.value is None for outcome in outcomes.values())
    assert {name: o.attempts for name, o in outcomes.items()} == dict.fromkeys(PASSING, 1)
    assert len(server.received) == len(PASSING)
    for name, outcome in outcomes.items():
        assert outcome.failure
        assert not name[:3].isdigit() or name[:3] in outcome.failure


def test_a_failed_call_is_asked_again_max_retries_times(start: Start) -> None:
    server, judge = start(server_error(), max_retries=2)
    assert ask(judge).attempts == len(server.received) == 3


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_reply_is_asked_again(name: str, start: Start) -> None:
    reply, _ = UNREADABLE[name]
    _, judge = start(failing_first(reply, times=2), max_retries=6)
    outcome = ask(judge)
    assert (outcome.failed, outcome.attempts) == (False, 3)


@pytest.mark.parametrize("name", UNREADABLE)
def test_replies_that_stay_unreadable_are_paid_for_three_times_at_most(
    name: str, start: Start
) -> None:
    reply, reason = UNREADABLE[name]
    server, judge = start(reply, max_retries=6)
    outcome = ask(judge)
    assert outcome.failed
    assert "unread" in str(outcome.failure)
    assert reason in str(outcome.failure)
    assert outcome.attempts == len(server.received) == 3


def test_a_reply_that_breaks_its_reader_costs_one_call_and_no_run(start: Start) -> None:
    def breaking(text: str) -> Met:
        raise OverflowError(f"in a reply of {len(text)} characters")

    _, judge = start(Reply(verdict(True)), max_retries=6)
    broken, well = judge.submit([replace(call("Broken?"), read=breaking), call("Well?")])
    outcome = broken.result(PATIENCE)
    assert outcome.failed
    assert "OverflowError" in str(outcome.failure)
    assert not well.result(PATIENCE).failed


def wait_between_attempts(fault: Callable[[], Reply], start: Start) -> float:
    """Seconds between the first attempt, which gets ``fault``, and the second."""
    arrivals: list[float] = []

    def respond(_: Received) -> Reply:
        arrivals.append(time.monotonic())
        return fault() if len(arrivals) == 1 else Reply(verdict(True))

    _, judge = start(respond)
    assert not ask(judge).failed
    return arrivals[1] - arrivals[0]


def test_retry_after_as_a_number_of_seconds_is_kept_to(start: Start) -> None:
    assert 1.0 <= wait_between_attempts(lambda: rate_limited("1"), start) < 3


def test_retry_after_as_a_date_is_kept_to(start: Start) -> None:
    def fault() -> Reply:  # dates have whole seconds
        return rate_limited(email.utils.formatdate(int(time.time()) + 2, usegmt=True))

    assert 0.9 <= wait_between_attempts(fault, start) < 4


@pytest.mark.parametrize(
    "value",
    [
        "soon",
        "-5",
        "nan",
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "1, 1",  # two headers, joined by a proxy
        "Someday, at noon",
    ],
)
def test_a_strange_retry_after_does_no_harm(value: str, start: Start) -> None:
    _, judge = start(failing_first(rate_limited(value)))
    assert not ask(judge).failed


# --- the last try --------------------------------------------------------------------------------


def test_the_last_try_of_a_call_waits_until_the_others_are_done(start: Start) -> None:
    """A bad minute of one call is over when all others have been asked."""
    asked: list[str] = []

    def respond(received: Received) -> Reply:
        asked.append(received.prompt)
        bad = received.prompt == "Question 0?" and len(set(asked)) < 8
        return Reply("Prose.") if bad else Reply(verdict(True))

    _, judge = start(respond, concurrency=1, max_retries=6)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(8))]
    assert [o.failed for o in outcomes] == [False] * 8
    assert [o.attempts for o in outcomes] == [3, *[1] * 7]
    assert asked == ["Question 0?"] * 2 + [f"Question {n}?" for n in [*range(1, 8), 0]]


def test_the_last_try_after_a_passing_failure_waits_too(start: Start) -> None:
    asked: list[str] = []

    def respond(received: Received) -> Reply:
        asked.append(received.prompt)
        bad = received.prompt == "Question 0?" and len(set(asked)) < 8
        return rate_limited("0") if bad else Reply(verdict(True))

    _, judge = start(respond, concurrency=1, max_retries=2)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(8))]
    assert [o.attempts for o in outcomes] == [3, *[1] * 7]
    assert not outcomes[0].failed
    assert asked[-1] == "Question 0?"


def test_a_last_try_keeps_to_the_budget(start: Start) -> None:
    def respond(received: Received) -> Reply:
        return Reply("Prose.") if received.prompt == "Question 0?" else Reply(verdict(True))

    server, judge = start(respond, concurrency=1, max_retries=6, max_calls=5)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(4))]
    assert [o.failed for o in outcomes] == [True, False, False, False]
    assert "max_calls (5) is reached" in str(outcomes[0].failure)
    assert outcomes[0].attempts == 2
    assert len(server.received) == 5


def test_a_call_that_is_put_off_is_not_left_behind_when_the_run_stops(start: Start) -> None:
    def respond(received: Received) -> Reply:
        return Reply("Prose.") if received.number < 2 else unauthorized()

    _, judge = start(respond, concurrency=1, max_retries=6)
    for future in judge.submit(calls(4)):
        with pytest.raises(JudgeError, match=r"refuses the API key \(401\)"):
            future.result(PATIENCE)


def test_a_question_that_is_put_off_is_shared_by_who_asks_it_again(start: Start) -> None:
    second: Future[Future[Outcome[Met]]] = Future()

    def respond(received: Received) -> Reply:
        if received.prompt == "Question 1?" and not second.done():
            second.set_result(judge.submit([call("Question 0?")])[0])
            return Reply(verdict(True), delay=0.2)
        return Reply("Prose.") if not second.done() else Reply(verdict(True))

    server, judge = start(respond, concurrency=1, max_retries=6)
    first = [future.result(PATIENCE) for future in judge.submit(calls(2))]
    assert second.result(PATIENCE).result(PATIENCE) == first[0]
    assert len(server.received) == 4


# --- faults that stay ----------------------------------------------------------------------------


def test_a_filtered_prompt_fails_alone_and_is_not_asked_again(start: Start) -> None:
    def respond(received: Received) -> Reply:
        return content_filtered() if "7" in received.prompt else Reply(verdict(True))

    server, judge = start(respond, max_retries=5)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(10))]
    assert [o.failed for o in outcomes] == [number == 7 for number in range(10)]
    assert "content policy" in str(outcomes[7].failure)
    assert outcomes[7].attempts == 1
    assert len(server.received) == 10


def no_quota(message: str = "You exceeded your current quota.") -> Reply:
    error = openai_error(message, "insufficient_quota", code="insufficient_quota")
    return Reply(status=429, error=error)


def forbidden() -> Reply:
    return Reply(status=403, error=openai_error("Not for this key.", "forbidden", code=None))


HOPELESS = {
    "401": (unauthorized(), "Check RUBRIC_JUDGE_API_KEY"),
    "403": (forbidden(), "Check RUBRIC_JUDGE_API_KEY"),
    "404": (unknown_model("judge"), "Mend the judge's model, base_url or api"),
    "insufficient_quota": (no_quota(), "no credit left"),
    "401 inside a 200": (
        Reply(error={"message": "bad key", "code": 401}),
        "Check RUBRIC_JUDGE_API_KEY",
    ),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_no_call_can_get_past_stops_everything_at_once(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", KEY)
    reply, what_to_do = HOPELESS[name]
    server, judge = start(reply, concurrency=4, max_retries=6)
    for future in judge.submit(calls(200)):
        with pytest.raises(JudgeError) as caught:
            future.result(PATIENCE)
        assert what_to_do in str(caught.value)
        assert "\n" not in str(caught.value)
        assert KEY not in str(caught.value)
    assert len(server.received) <= 4
    assert judge.stopped
    with pytest.raises(JudgeError):
        ask(judge)


@pytest.mark.parametrize(
    "status",
    [
        401,
        403,
        400,
        404,
        429,
        500,
    ],
)
def test_a_server_that_quotes_the_key_cannot_bring_it_into_a_message(
    status: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", KEY)
    error = openai_error(f"Incorrect API key provided: {KEY}.", "error", code=None)
    _, judge = start(Reply(status=status, error=error), max_retries=0)
    try:
        said = str(ask(judge).failure)
    except JudgeError as caught:
        said = str(caught)
    assert said
    assert KEY not in said


def test_twenty_failed_calls_and_no_verdict_are_reason_to_stop(start: Start) -> None:
    error = openai_error("Bad request.", "invalid_request_error", code=None)
    server, judge = start(Reply(status=400, error=error), concurrency=4)
    caught = [future.exception(PATIENCE) for future in judge.submit(calls(500))]
    errors = [error for error in caught if error is not None]
    assert all(isinstance(error, JudgeError) for error in errors)
    assert "gave no verdict in 20 calls" in str(errors[0])
    assert "Bad request." in str(errors[0])
    assert len(caught) - len(errors) < 24
    assert 20 <= len(server.received) < 24


def test_a_judge_whose_replies_are_never_readable_is_stopped_early(start: Start) -> None:
    server, judge = start(Reply("Prose."), concurrency=4, max_retries=6)
    caught = [future.exception(PATIENCE) for future in judge.submit(calls(500))]
    assert "gave no verdict in 20 calls" in str(caught[-1])
    assert len(server.received) < 2 * 24


def bad_request() -> Reply:
    error = openai_error("No such field.", "invalid_request_error", code=None)
    return Reply(status=400, error=error)


def each_of_its_own(count: int) -> list[JudgeCall[Met]]:
    """Questions of one conversation each."""
    return [replace(asked, conversation=asked.label) for asked in calls(count)]


@pytest.mark.parametrize("name", ["400", "prose"])
def test_many_failed_calls_in_a_row_after_verdicts_are_reason_to_stop(
    name: str, start: Start
) -> None:
    fault = bad_request() if name == "400" else Reply("Prose.")

    def respond(received: Received) -> Reply:
        return Reply(verdict(True)) if received.number < 30 else fault

    server, judge = start(respond, concurrency=4, max_retries=6)
    asked = each_of_its_own(500)
    caught = [future.exception(PATIENCE) for future in judge.submit(asked)]
    assert caught[:30] == [None] * 30
    assert isinstance(caught[-1], JudgeError)
    assert "none in the last 50 calls" in str(caught[-1])
    assert "run the same command again" in str(caught[-1])
    assert len(server.received) < 30 + 2 * 54
    # All that is left then may be calls that fail for good: that is not a reason to stop.
    server.responder = lambda _: bad_request()
    again = Judge(judge.config)
    outcomes = [future.result(PATIENCE) for future in again.submit(asked)]
    again.close()
    assert [o.failed for o in outcomes] == [False] * 30 + [True] * 470


def test_many_failed_calls_about_a_few_conversations_are_no_reason_to_stop(start: Start) -> None:
    """All of a conversation that is too long for the judge fail, one after another."""

    def respond(received: Received) -> Reply:
        return Reply(verdict(True)) if received.number < 5 else bad_request()

    _, judge = start(respond, concurrency=1)
    asked = [replace(c, conversation=str(n % 9)) for n, c in enumerate(calls(100))]
    outcomes = [future.result(PATIENCE) for future in judge.submit(asked)]
    assert sum(o.failed for o in outcomes) == 95


def test_one_verdict_among_many_failed_calls_is_reason_to_go_on(start: Start) -> None:
    def respond(received: Received) -> Reply:
        return Reply(verdict(True)) if received.number == 5 else content_filtered()

    _, judge = start(respond, concurrency=1)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(60))]
    assert sum(outcome.failed for outcome in outcomes) == 59


@pytest.mark.parametrize("status", [404, 301])
def test_an_address_that_fails_once_after_verdicts_is_asked_again(
    status: int, start: Start
) -> None:
    def respond(received: Received) -> Reply:
        moved = Reply(status=status, raw=b"Not here", content_type="text/plain")
        return moved if received.number in (5, 9) else Reply(verdict(True))

    server, judge = start(respond, concurrency=1)
    outcomes = [future.result(PATIENCE) for future in judge.submit(calls(20))]
    assert not any(o.failed for o in outcomes)
    assert len(server.received) == 22
    assert not judge.stopped


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=301, raw=b"Moved", content_type="text/plain"),
        Reply(error={"message": "No such model.", "code": 404}),
    ],
)
def test_an_address_that_never_gave_a_verdict_stops_the_run(reply: Reply, start: Start) -> None:
    server, judge = start(reply, concurrency=1, max_retries=6)
    with pytest.raises(JudgeError, match="Mend the judge's model, base_url or api"):
        ask(judge)
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_status(status: int, start: Start) -> None:
    _, judge = start(Reply(status=status, error=openai_error("No.", "error", code=None)))
    with pytest.raises(JudgeError, match=rf"refuses the API key \({status}\)"):
        ask(judge)


def test_on_failure_raise_stops_at_the_first_failed_call(start: Start) -> None:
    def respond(received: Received) -> Reply:
        return content_filtered() if received.number == 3 else Reply(verdict(True))

    server, judge = start(respond, concurrency=1, on_failure="raise")
    caught = [future.exception(PATIENCE) for future in judge.submit(calls(50))]
    assert caught[:3] == [None] * 3
    assert all(isinstance(error, JudgeError) for error in caught[3:])
    assert "on_failure is raise" in str(caught[3])
    assert len(server.received) == 4


def test_check_finds_out_that_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", KEY)
    with StubServer(lambda _: Reply(verdict(True)), api_key="another") as server:
        judge = Judge(JudgeConfig(model="judge", base_url=server.url))
        with pytest.raises(JudgeError, match="refuses the API key") as caught:
            judge.check()
        judge.close()
    assert KEY not in str(caught.value)
    assert server.received == []


def test_check_finds_out_that_nobody_listens() -> None:
    judge = Judge(JudgeConfig(model="judge", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(JudgeError, match="cannot be reached") as caught:
        judge.check()
    judge.close()
    assert "--predict_only" in str(caught.value)


# --- what is sent --------------------------------------------------------------------------------


def test_nothing_is_sent_that_was_not_asked_for(start: Start) -> None:
    server, judge = start(Reply(verdict(True)))
    ask(judge)
    assert server.received[0].body == {
        "model": "judge",
        "messages": [{"role": "user", "content": "Is it met?"}],
    }


def test_settings_and_extra_body_are_sent_as_given(start: Start) -> None:
    extra = {"response_format": {"type": "json_object"}, "seed": 3}
    server, judge = start(
        Reply(verdict(True)),
        temperature=0.5, max_tokens=700, reasoning_effort="low", extra_body=extra,
    )  # fmt: skip
    ask(judge)
    sent = {k: v for k, v in server.received[0].body.items() if k not in ("model", "messages")}
    assert sent == {
        "temperature": 0.5,
        "max_completion_tokens": 700,
        "reasoning_effort": "low",
        **extra,
    }


def test_the_responses_api_is_sent_its_own_names(start: Start) -> None:
    server, judge = start(
        Reply(verdict(True)), api="responses", max_tokens=700, reasoning_effort="low"
    )
    assert not ask(judge).failed
    (received,) = server.received
    assert received.path == "/v1/responses"
    assert received.body == {
        "model": "judge",
        "input": [{"role": "user", "content": "Is it met?"}],
        "max_output_tokens": 700,
        "reasoning": {"effort": "low"},
    }


def refusing(*names: str) -> Respond:
    """A server that knows none of the parameters ``names``."""

    def respond(received: Received) -> Reply:
        refused = [name for name in names if name in received.body]
        return unsupported_parameter(refused[0]) if refused else Reply(verdict(True))

    return respond


UNSUPPORTED: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    # settings, what the server refuses, what it is sent in the end
    "temperature": ({"temperature": 0.0}, ("temperature",), {}),
    "reasoning_effort": ({"reasoning_effort": "low"}, ("reasoning_effort",), {}),
    "max_completion_tokens": (
        {"max_tokens": 9}, ("max_completion_tokens",), {"max_tokens": 9},
    ),
    "both names of the limit": (
        {"max_tokens": 9}, ("max_completion_tokens", "max_tokens"), {},
    ),
    "one of extra_body": ({"extra_body": {"seed": 1, "user": "me"}}, ("seed",), {"user": "me"}),
    "two at once": ({"temperature": 0.0, "reasoning_effort": "low"},
                    ("temperature", "reasoning_effort"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_parameter_is_dropped_once_with_one_warning(
    name: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    settings, refused, in_the_end = UNSUPPORTED[name]
    server, judge = start(refusing(*refused), concurrency=4, **settings)
    with caplog.at_level(logging.WARNING):
        assert all(not future.result(PATIENCE).failed for future in judge.submit(calls(12)))
    server.reset()
    assert all(not future.result(PATIENCE).failed for future in judge.submit(calls(12, 12)))
    assert len(server.received) == 12
    for received in server.received:
        assert {k: v for k, v in received.body.items() if k not in ("model", "messages")} == (
            in_the_end
        )
    warned = [message for message in caplog.messages if "does not support" in message]
    assert len(warned) == len(refused)
    assert all(f"'{parameter}'" in " ".join(warned) for parameter in refused)


def test_the_responses_api_may_refuse_a_nested_parameter(start: Start) -> None:
    def respond(received: Received) -> Reply:
        if "reasoning" in received.body:
            return unsupported_parameter("reasoning.effort")
        return Reply(verdict(True))

    _, judge = start(respond, api="responses", reasoning_effort="low")
    assert not ask(judge).failed


def test_a_server_that_goes_on_refusing_a_dropped_parameter_is_given_up(start: Start) -> None:
    def respond(received: Received) -> Reply:
        refuse = received.number < 50  # not for ever, or the test would not end
        return unsupported_parameter("temperature") if refuse else Reply(verdict(True))

    server, judge = start(respond, temperature=0.0)
    assert ask(judge).failed
    assert len(server.received) < 10


def test_the_attempts_count_the_request_whose_parameter_was_refused(start: Start) -> None:
    server, judge = start(refusing("temperature"), temperature=0.0)
    assert ask(judge).attempts == len(server.received) == 2


# --- keys and addresses --------------------------------------------------------------------------


def sent_headers(start: Start, **settings: Any) -> dict[str, str]:
    server, judge = start(Reply(verdict(True)), **settings)
    assert not ask(judge).failed
    return server.received[0].headers


def test_the_judges_own_key_goes_into_the_authorization_header(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", KEY)
    headers = sent_headers(start)
    assert headers["authorization"] == f"Bearer {KEY}"
    assert [name for name, value in headers.items() if KEY in value] == ["authorization"]


def test_the_key_is_taken_from_the_variable_that_api_key_env_names(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", "not this one")
    monkeypatch.setenv("MY_JUDGE", KEY)
    assert sent_headers(start, api_key_env="MY_JUDGE")["authorization"] == f"Bearer {KEY}"


def test_what_is_meant_for_openai_is_not_sent_to_a_foreign_server(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-mine")
    headers = sent_headers(start)
    everything = json.dumps(headers)
    for secret in (KEY, "org-of-mine", "project-of-mine"):
        assert secret not in everything
    assert not {"openai-organization", "openai-project"} & headers.keys()


def test_azure_is_asked_in_its_own_way(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "for OpenAI alone")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    server, _ = start(Reply(verdict(True)))
    judge = Judge(
        JudgeConfig(model="judge", azure_endpoint=server.origin, api_version="2024-10-21")
    )
    assert not ask(judge).failed
    judge.close()
    (received,) = server.received
    assert received.path == "/openai/deployments/judge/chat/completions"
    assert received.headers["api-key"] == KEY
    assert "for OpenAI alone" not in json.dumps(received.headers)
    assert "openai-organization" not in received.headers


def test_azure_knows_the_responses_api_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", KEY)
    server, _ = start(Reply(verdict(True)))
    judge = Judge(
        JudgeConfig(
            model="judge", azure_endpoint=server.origin, api_version="2025-03-01-preview",
            api="responses",
        )
    )  # fmt: skip
    assert not ask(judge).failed
    judge.close()
    (received,) = server.received
    assert received.path == "/openai/responses"
    assert received.headers["api-key"] == KEY
    assert received.body["model"] == "judge"


def test_openai_base_url_does_not_move_the_judge(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other, _ = start(Reply(verdict(False)))
    monkeypatch.setenv("OPENAI_BASE_URL", other.url)
    server, judge = start(Reply(verdict(True)))
    assert not ask(judge).failed
    assert (len(server.received), len(other.received)) == (1, 0)
    with caplog.at_level(logging.WARNING):
        Judge(JudgeConfig()).close()  # for OpenAI itself, where someone might expect it
    assert "does not follow OPENAI_BASE_URL" in caplog.text
    assert other.received == []


def test_no_thread_is_left_behind_by_a_closed_judge(start: Start) -> None:
    before = set(threading.enumerate())
    _, judge = start(Reply(fault="hang"), concurrency=4)
    futures = judge.submit(calls(10))
    time.sleep(0.1)
    judge.close()
    assert all(isinstance(future.exception(PATIENCE), JudgeError) for future in futures)
    assert "judge" not in {thread.name for thread in set(threading.enumerate()) - before}
