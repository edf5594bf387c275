"""The faults of real endpoints, at a tenth and at three tenths of the calls: nothing changes."""

from __future__ import annotations

import hashlib
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asking import CASES, ask, call, judge_at, kept, verdicts, wait_until
from background import running
from commands import judge_arguments, judge_metadata, model_arguments
from rows import World, write_answers, write_data
from stub_server import (
    Received,
    Reply,
    StubServer,
    rate_limited,
    rate_limited_inside_200,
    server_error,
    verdict,
)

import lm_eval_tasks

HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
FAULTS = {
    "429": rate_limited(),
    "429 with Retry-After": rate_limited("0.3"),
    "500": server_error(500),
    "502": server_error(502),
    "503": server_error(503),
    "reset": Reply(fault="reset"),
    "hang": Reply(fault="hang"),
    "empty body": Reply(raw=b""),
    "HTML": Reply(raw=HTML, content_type="text/html"),
    "HTML called JSON": Reply(raw=HTML),
    "choices null and an error": rate_limited_inside_200(),
    "content null": Reply(None),
    "truncated": Reply(verdict(False)[:40], finish_reason="length"),
    "prose": Reply("The criterion is not met: criteria_met would be false."),
}
QUESTIONS = 60
CONVERSATIONS = 12


def is_faulty(prompt: str, share: int) -> bool:
    """Whether this call is among the ``share`` percent that get a fault."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") % 100 < share


def is_met(prompt: str) -> bool:
    return int(prompt.split()[1]) % 3 == 0


TEXTS = [f"Question {n} of these tests, please" for n in range(QUESTIONS)]


def judged_with(fault: Reply, share: int) -> tuple[list[bool | None], list[int], str]:
    """Verdicts, attempts and the run's line where ``share`` percent of the calls get ``fault``."""
    asked: Counter[str] = Counter()

    def respond(received: Received) -> Reply:
        asked[received.prompt] += 1
        if asked[received.prompt] == 1 and is_faulty(received.prompt, share):
            return fault
        return Reply(verdict(is_met(received.prompt)), delay=0.01)

    questions = [call(text, str(n % CONVERSATIONS)) for n, text in enumerate(TEXTS)]
    timeout = 3 if fault.fault == "hang" else 60
    with (
        StubServer(respond) as server,
        judge_at(server.url, concurrency=24, timeout=timeout, max_retries=3) as judge,
    ):
        outcomes = ask(judge, questions)
        line = judge.settle()
    assert len(server.received) == sum(o.attempts for o in outcomes)
    return verdicts(outcomes), [o.attempts for o in outcomes], line


@pytest.mark.parametrize("share", [10, 30])
def test_a_fault_at_some_of_the_calls_changes_no_verdict(share: int) -> None:
    faulty = [is_faulty(text, share) for text in TEXTS]
    assert 0.5 * share < 100 * sum(faulty) / QUESTIONS < 1.5 * share
    with ThreadPoolExecutor(4) as pool:  # they mostly wait
        started = {name: pool.submit(judged_with, FAULTS[name], share) for name in FAULTS}
        found = {name: future.result() for name, future in started.items()}
    said = f"{QUESTIONS + sum(faulty)} calls, 0 from the store, {sum(faulty)} retried, 0 failed"
    right = [is_met(text) for text in TEXTS]
    assert {n: v for n, (v, _, _) in found.items()} == dict.fromkeys(FAULTS, right)
    attempts = [1 + fault for fault in faulty]
    assert {n: a for n, (_, a, _) in found.items()} == dict.fromkeys(FAULTS, attempts)
    assert {n: s.split(", 0 failed")[0] + ", 0 failed" for n, (_, _, s) in found.items()} == (
        dict.fromkeys(FAULTS, said)
    )


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=CASES)))
    return write_answers(tmp_path / "answers.json", {c.id: f"Answer to {c.id}." for c in CASES})


SIGNALS = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143)}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_ends_a_run_and_keeps_everything_received(
    name: str, answers: Path, tmp_path: Path
) -> None:
    number, code = SIGNALS[name]
    world, delay, in_flight = World(CASES), 0.4, 8
    arrivals: list[float] = []

    def slow(received: Received) -> Reply:
        arrivals.append(time.monotonic())
        return Reply(world.respond(received).text, delay=delay)

    with StubServer(slow) as server:
        command = [
            "run", "--model", "prefilled", "--model_args", f"path={answers}",
            "--tasks", "prbench_finance", "--output_path", str(tmp_path / "out"),
            *judge_arguments(server.url, prompt="builtin", concurrency=in_flight),
        ]  # fmt: skip
        with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
            wait_until(lambda: len(arrivals) >= 20 or run.ended())
            interrupted = time.monotonic()
            run.send(number)
            assert run.code() == code, run.text
            took = time.monotonic() - interrupted
    assert took < 15, "two seconds on an idle machine"
    there = kept(tmp_path / "cache" / "judge.sqlite")
    received = sum(when + delay + 0.3 < interrupted for when in arrivals)
    assert 0 < received <= len(there) <= len(arrivals)
    assert all(usable for _, usable in there)
    assert "Traceback" not in run.text
    assert f"The {len(CASES)} answers are kept" in run.text
    assert not (tmp_path / "out").exists()


HANGING = Reply(fault="hang")


def test_ctrl_c_ends_a_run_whose_judge_hangs(answers: Path, tmp_path: Path) -> None:
    with StubServer(lambda _: HANGING) as server:
        command = [
            "run", "--model", "prefilled", "--model_args", f"path={answers}",
            "--tasks", "prbench_finance", *judge_arguments(server.url, prompt="builtin"),
        ]  # fmt: skip
        with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
            wait_until(lambda: bool(server.received) or run.ended())
            interrupted = time.monotonic()
            run.send(signal.SIGINT)
            assert run.code() == 130, run.text
            assert time.monotonic() - interrupted < 15, "two seconds on an idle machine"
    assert "Traceback" not in run.text


def test_ctrl_c_ends_the_stock_command_on_one_line(answers: Path, tmp_path: Path) -> None:
    """The stock command knows no prefilled model; the server is model and judge."""
    world = World(CASES)

    def respond(received: Received) -> Reply:
        judge = received.model == "judge"
        return HANGING if judge else world.respond(received)

    assert answers.exists()
    with StubServer(respond, models=("model", "judge")) as server:
        command = [
            "run", "--include_path", lm_eval_tasks.path(), "--apply_chat_template",
            "--tasks", "prbench_finance", *model_arguments(server.url),
            *judge_metadata(server.url, prompt="builtin"),
        ]  # fmt: skip
        with running("lm_eval", *command, log=tmp_path / "log") as run:
            asked = lambda: any(call.model == "judge" for call in server.received)  # noqa: E731
            wait_until(lambda: asked() or run.ended(), patience=90)
            run.send(signal.SIGINT)
            assert run.code() == 130, run.text
    assert "Traceback" not in run.text
    assert f"The {len(CASES)} answers are kept" in run.text
    assert run.text.strip().splitlines()[-1] == "interrupted"
