"""What ``lm-eval-rubrics run`` adds to a run: answers kept as they come, and judged meanwhile."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import CASES, wait_until
from background import running
from commands import judge_arguments, metrics, model_arguments, results, samples
from lm_eval.api.instance import Instance
from rows import World, case_of, clipped_mean, write_data
from stub_server import Received, Reply, StubServer

from custom_metrics.cli import main
from custom_metrics.session import Session

IDS = [case.id for case in CASES]
SAMPLED = ["--gen_kwargs", "temperature=0.7"]


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=CASES)))


class Endpoint:
    """A model and its judge. Every generation is another text, as of a model that samples.

    ``broken`` are the cases whose generation fails.
    """

    def __init__(self, delay: float = 0.0, judge_delay: float = 0.0) -> None:
        self.delay, self.judge_delay = delay, judge_delay
        self.broken: set[str] = set()
        self.generated: list[str] = []
        self.order: list[str] = []
        self.sampled = False
        self._world = World(CASES)

    def respond(self, received: Received) -> Reply:
        self.order.append(received.model)
        if received.model == "judge":
            return Reply(self._world.respond(received).text, delay=self.judge_delay)
        identifier = case_of(received)
        if identifier in self.broken:
            return Reply(status=500)
        self.generated.append(identifier)
        number = self.generated.count(identifier) if self.sampled else ""
        return Reply(f"Answer {number} to {identifier}.", delay=self.delay)

    def forget(self) -> None:
        self.generated.clear()
        self.order.clear()


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def server(endpoint: Endpoint) -> Iterator[StubServer]:
    with StubServer(endpoint.respond, models=("model", "judge")) as started:
        yield started


def arguments(
    server: StubServer, out: Path, *more: str, model: Sequence[str] | None = None
) -> list[str]:
    return [
        "run", "--tasks", "prbench_finance", "--output_path", str(out), "--log_samples",
        *(model or model_arguments(server.url, concurrent=2)),
        *judge_arguments(server.url, prompt="builtin"), *more,
    ]  # fmt: skip


def answers_of(out: Path) -> dict[str, str]:
    return {s["doc"]["id"]: s["resps"][0][0] for s in samples(out, "prbench_finance")}


def score(out: Path) -> Any:
    return metrics(results(out), "prbench_finance")["clipped_score"]


def interrupted(
    server: StubServer, endpoint: Endpoint, out: Path, broken: set[str], *more: str
) -> None:
    """A run that ends in an error since the model fails for ``broken``."""
    endpoint.broken = broken
    with pytest.raises(Exception):  # noqa: B017, PT011 (the harness's own)
        main(arguments(server, out, *more))
    endpoint.broken = set()


# --- kept ----------------------------------------------------------------------------------------


def test_a_run_that_is_killed_while_generating_loses_only_what_was_in_flight(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.delay = 0.3
    command = arguments(server, tmp_path / "out")
    with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
        wait_until(lambda: len(endpoint.generated) >= 5 or run.ended())
        run.send(signal.SIGKILL)
        assert run.code() == -signal.SIGKILL, run.text
    time.sleep(0.4)
    before = list(endpoint.generated)
    endpoint.forget()
    endpoint.delay = 0
    assert main(command) == 0
    assert set(before) | set(endpoint.generated) == set(IDS)
    assert len(endpoint.generated) <= len(IDS) - (len(before) - 2)  # two were in flight
    assert len(endpoint.generated) < len(IDS)
    assert score(tmp_path / "out") == pytest.approx(clipped_mean(CASES))
    assert answers_of(tmp_path / "out") == {i: f"Answer  to {i}." for i in IDS}


@pytest.mark.parametrize("concurrent", [1, 3])
def test_only_what_is_missing_is_generated_after_an_error(
    concurrent: int, server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    model = model_arguments(server.url, concurrent=concurrent)
    endpoint.broken = {IDS[-1]}
    with pytest.raises(Exception):  # noqa: B017, PT011 (the harness's own)
        main(arguments(server, tmp_path / "1", model=model))
    endpoint.broken = set()
    first = Counter(endpoint.generated)
    endpoint.forget()
    assert main(arguments(server, tmp_path / "2", model=model)) == 0
    assert IDS[-1] in endpoint.generated
    assert first + Counter(endpoint.generated) == Counter(IDS)
    assert score(tmp_path / "2") == pytest.approx(clipped_mean(CASES))


def test_a_finished_run_is_repeated_without_a_request_where_that_is_asked_for(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    for name, more in (("1", []), ("2", ["--reuse_answers"])):
        assert main(arguments(server, tmp_path / name, *more)) == 0
    assert Counter(endpoint.order) == {"model": len(IDS), "judge": 6 * len(IDS)}
    assert answers_of(tmp_path / "1") == answers_of(tmp_path / "2")
    assert results(tmp_path / "1")["results"] == results(tmp_path / "2")["results"]
    config = results(tmp_path / "2")["configs"]["prbench_finance"]
    assert config["metadata"]["answers_of_earlier_runs"] == len(IDS)


def test_a_finished_runs_answers_are_not_taken_for_those_of_a_model_that_changed_since(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.sampled = True  # the endpoint answers differently each time, under the same name
    for name in ("1", "2"):
        assert main(arguments(server, tmp_path / "out" / name)) == 0
    assert Counter(endpoint.generated) == Counter(2 * IDS)
    assert answers_of(tmp_path / "out" / "2") == {i: f"Answer 2 to {i}." for i in IDS}
    config = results(tmp_path / "out" / "2")["configs"]["prbench_finance"]
    assert "answers_of_earlier_runs" not in config["metadata"]


def test_another_judge_uses_the_answers_of_an_interrupted_run_and_they_end_with_it(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    interrupted(server, endpoint, tmp_path / "1", {IDS[-1]})
    first = Counter(endpoint.generated)
    other_judge = ["--judge", "temperature=0"]
    assert main(arguments(server, tmp_path / "2", *other_judge)) == 0
    assert Counter(endpoint.generated) == Counter(IDS)
    config = results(tmp_path / "2")["configs"]["prbench_finance"]
    assert config["metadata"]["answers_of_earlier_runs"] == first.total()
    assert main(arguments(server, tmp_path / "3")) == 0
    assert Counter(endpoint.generated) == Counter(2 * IDS)


def test_a_run_with_verdicts_missing_is_finished_with_the_same_answers(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    short = ["--judge", "max_calls=10"]
    assert main(arguments(server, tmp_path / "1", *short)) == 0
    assert main(arguments(server, tmp_path / "1", "--judge", "max_calls=1000")) == 0
    assert Counter(endpoint.order) == {"model": len(IDS), "judge": 6 * len(IDS)}


def test_a_checkpoint_that_was_overwritten_is_another_model(tmp_path: Path) -> None:
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    request = Instance("generate_until", {}, ("A question?", {}), 0)

    def key() -> str:
        arguments = {"pretrained": str(weights.parent)}
        session = Session("hf", arguments, ["run"], store=False, overlap=False)
        return session._keys([request])[0]

    weights.write_bytes(b"one")
    first = key()
    assert key() == first
    weights.write_bytes(b"another")
    assert key() != first


def test_no_answer_store_keeps_nothing_and_uses_nothing(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    for name in ("1", "2"):
        assert main(arguments(server, tmp_path / name, "--no_answer_store")) == 0
    assert Counter(endpoint.generated) == Counter(2 * IDS)
    assert not (tmp_path / "cache" / "answers.sqlite").exists()


@pytest.mark.parametrize(
    "change",
    ["model arguments", "generation arguments", "prompt", "model"],
)
def test_another_run_does_not_get_this_ones_answers(
    change: str, server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    assert main(arguments(server, tmp_path / "1")) == 0
    url = f"base_url={server.url}/chat/completions"
    more, model = {
        "model arguments": ([], ["--model", "local-chat-completions", "--model_args",
                                 f"model=model,{url},num_concurrent=2,max_retries=1,seed=7"]),
        "generation arguments": (["--gen_kwargs", "max_gen_toks=100"], None),
        "prompt": (["--system_instruction", "Be brief."], None),
        "model": ([], ["--model", "openai-chat-completions", "--model_args",
                       f"model=model,{url},num_concurrent=2,max_retries=1"]),
    }[change]  # fmt: skip
    assert main(arguments(server, tmp_path / "2", "--reuse_answers", *more, model=model)) == 0
    assert Counter(endpoint.generated) == Counter(2 * IDS)


def test_use_cache_works_beside_it(server: StubServer, endpoint: Endpoint, tmp_path: Path) -> None:
    cached = ["--use_cache", str(tmp_path / "lm_cache")]
    interrupted(server, endpoint, tmp_path / "1", {IDS[-1]}, *cached)
    first = Counter(endpoint.generated)
    endpoint.forget()
    assert main(arguments(server, tmp_path / "2", *cached)) == 0
    assert first + Counter(endpoint.generated) == Counter(IDS)
    endpoint.forget()
    # The harness's own cache alone serves the whole run.
    assert main(arguments(server, tmp_path / "3", "--no_answer_store", *cached)) == 0
    assert endpoint.generated == []
    assert answers_of(tmp_path / "2") == answers_of(tmp_path / "3")
    assert results(tmp_path / "2")["results"] == results(tmp_path / "3")["results"]


def test_an_answer_that_did_not_come_is_asked_for_again(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    first = True

    def null_once(received: Received) -> Reply:
        reply = endpoint.respond(received)
        null = first and received.model == "model" and case_of(received) == IDS[0]
        return Reply(None) if null else reply

    server.responder = null_once
    assert main(arguments(server, tmp_path / "1")) == 0
    first = False
    assert main(arguments(server, tmp_path / "2", "--reuse_answers")) == 0
    assert Counter(endpoint.generated) == Counter([*IDS, IDS[0]])


# --- sampled -------------------------------------------------------------------------------------


def test_sampled_answers_are_used_again_by_the_same_run_until_it_has_finished(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.sampled = True
    out = tmp_path / "out"
    interrupted(server, endpoint, out, {IDS[-1]}, *SAMPLED)
    first = Counter(endpoint.generated)
    assert first
    assert main(arguments(server, out, *SAMPLED)) == 0
    assert Counter(endpoint.generated) == Counter(IDS)
    for file in out.rglob("*.json*"):
        file.unlink()
    assert main(arguments(server, out, *SAMPLED)) == 0
    assert Counter(endpoint.generated) == Counter(2 * IDS)
    assert answers_of(out) == {i: f"Answer 2 to {i}." for i in IDS}


def test_sampled_answers_of_an_interrupted_run_are_not_used_by_another(
    server: StubServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.sampled = True
    interrupted(server, endpoint, tmp_path / "1", {IDS[-1]}, *SAMPLED)
    endpoint.forget()
    assert main(arguments(server, tmp_path / "2", *SAMPLED)) == 0
    assert Counter(endpoint.generated) == Counter(IDS)


# --- judged meanwhile ----------------------------------------------------------------------------


@pytest.mark.parametrize("concurrent", [1, 2])
def test_judging_begins_before_the_last_answer_is_there_and_changes_nothing(
    concurrent: int,
    server: StubServer,
    endpoint: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", "off")
    endpoint.delay = 0.1
    model = model_arguments(server.url, concurrent=concurrent)
    orders = []
    for name, flags in (("1", []), ("2", ["--no_overlap"])):
        out = tmp_path / name
        assert main(arguments(server, out, "--no_answer_store", *flags, model=model)) == 0
        orders.append(list(endpoint.order))
        endpoint.forget()
    expected = Counter({"model": len(IDS), "judge": 6 * len(IDS)})
    assert [Counter(order) for order in orders] == [expected, expected]
    early = [order[: len(order) - order[::-1].index("model")].count("judge") for order in orders]
    assert early[0] >= 6  # a document at least
    assert early[1] == 0
    assert compared(tmp_path / "1") == compared(tmp_path / "2")


def compared(out: Path) -> Any:
    """What a run wrote, apart from when and how long."""
    found = results(out)
    for name in ("date", "start_time", "end_time", "total_evaluation_time_seconds", "git_hash"):
        found.pop(name, None)
    return json.dumps([found, samples(out, "prbench_finance")], sort_keys=True)
