"""Several judges, or one asked several times, over HTTP; every value is computed here once more."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import signal
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from asking import forget_judges, wait_until
from background import running
from commands import metrics, results, samples
from in_process import evaluate
from rows import FINANCE, Case, clipped_mean, criterion_of, write_answers, write_data
from stub_server import (
    Received,
    Reply,
    StubServer,
    content_filtered,
    unauthorized,
    verdict,
)

import lm_eval_tasks
from custom_metrics import opinions
from custom_metrics.cli import main
from custom_metrics.judge.ledger import Budget, Ledger, PanelLedger

TAGS = [case.tag(n) for case in FINANCE for n in range(len(case.items))]
# What each judge finds met, by the criterion's place in TAGS.
MET = {
    "a": {0, 1, 2, 3, 5, 8, 9},
    "b": {0, 2, 4, 5, 7},
    "c": {1, 2, 4, 6, 8},
}


@dataclass
class Opinion:
    """A judge that finds ``met`` what is in it; ``script`` overrules it call by call."""

    met: set[int]
    script: Callable[[Received, int], Reply | None] = lambda _call, _number: None
    asked: Counter[str] = field(default_factory=Counter)

    def respond(self, call: Received) -> Reply:
        tag = criterion_of(call)
        reply = self.script(call, self.asked[tag])
        self.asked[tag] += 1
        return reply or Reply(verdict(TAGS.index(tag) in self.met, f"So says one of {tag}."))


@pytest.fixture
def judges() -> dict[str, Opinion]:
    return {name: Opinion(set(met)) for name, met in MET.items()}


@pytest.fixture
def servers(judges: dict[str, Opinion]) -> Iterator[dict[str, StubServer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(StubServer(opinion.respond, models=(name,)))
            for name, opinion in judges.items()
        }


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=FINANCE)))
    write_answers(tmp_path / "answers.json", {case.id: f"Answer {case.id}." for case in FINANCE})


def listed(servers: Mapping[str, StubServer], names: str = "abc", **own: Any) -> str:
    """``models=…`` for some of the servers; ``own`` are settings by judge."""
    each = [{"model": n, "base_url": servers[n].url, **own.get(n, {})} for n in names]
    return f"models={json.dumps(each)}"


def run(tmp_path: Path, out: str, *judge: str, task: str = "prbench_finance") -> int:
    path = tmp_path / "answers.json"
    code: int = main([
        "run", "--model", "prefilled", "--model_args", f"path={path}", "--tasks", task,
        "--log_samples", "--output_path", str(tmp_path / out),
        "--judge", "prompt=builtin", "max_retries=0", *judge,
    ])  # fmt: skip
    forget_judges()
    return code


def calls(servers: Mapping[str, StubServer]) -> dict[str, int]:
    return {name: len(server.received) for name, server in servers.items()}


def reset(servers: Mapping[str, StubServer]) -> None:
    for server in servers.values():
        server.reset()


def judged(met: Callable[[int], bool]) -> list[Case]:
    """The cases with the verdicts of ``met``."""
    numbers = iter(range(len(TAGS)))
    return [
        dataclasses.replace(
            case, items=tuple(dataclasses.replace(i, met=met(next(numbers))) for i in case.items)
        )
        for case in FINANCE
    ]


def majority(names: str = "abc") -> list[Case]:
    return judged(lambda n: 2 * sum(n in MET[name] for name in names) > len(names))


def alpha(units: Sequence[Sequence[float]]) -> float:
    """Krippendorff's α for intervals, by the definition: 1 − observed / expected disagreement."""
    units = [unit for unit in units if len(unit) > 1]
    every = [value for unit in units for value in unit]
    observed = sum(
        (x - y) ** 2 / (len(unit) - 1)
        for unit in units
        for i, x in enumerate(unit)
        for j, y in enumerate(unit)
        if i != j
    ) / len(every)
    expected = sum((x - y) ** 2 for x in every for y in every) / (len(every) * (len(every) - 1))
    return 1 - observed / expected


def row(folder: Path, name: str = "prbench_finance") -> dict[str, Any]:
    return metrics(results(folder), name)


def votes_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        criterion["id"]: criterion["votes"]
        for line in samples(folder, "prbench_finance")
        for criterion in line["doc"]["criteria"]
    }


# --- the majority --------------------------------------------------------------------------------


def test_three_judges_decide_by_majority_and_their_disagreement_is_measured(
    servers: dict[str, StubServer], tmp_path: Path
) -> None:
    assert run(tmp_path, "out", listed(servers)) == 0
    assert calls(servers) == dict.fromkeys("abc", len(TAGS))
    found, cases = row(tmp_path / "out"), majority()
    assert found["clipped_score"] == pytest.approx(clipped_mean(cases))
    # The three alone.
    alone = {name: judged(lambda n, met=met: n in met) for name, met in MET.items()}
    scores = [clipped_mean(of_one) for of_one in alone.values()]
    assert found["judge_sd"] == pytest.approx(statistics.stdev(scores))
    units = [[float(n in met) for met in MET.values()] for n in range(len(TAGS))]
    assert found["judge_alpha"] == pytest.approx(alpha(units))
    numbers = iter(units)
    shares = []
    for case in FINANCE:
        own = [next(numbers) for _ in case.items]
        shares.append(sum(len(set(unit)) > 1 for unit in own) / len(own))
    assert found["judge_split"] == pytest.approx(sum(shares) / len(shares))
    metadata = results(tmp_path / "out")["configs"]["prbench_finance"]["metadata"]
    record = metadata["judge_opinions"]
    assert record["documents"] == len(FINANCE)
    assert record["scores"] == [
        {"judge": name, "repeat": 0, "score": pytest.approx(score)}
        for name, score in zip("abc", scores, strict=True)
    ]
    assert record["min"] == pytest.approx(min(scores))
    assert record["max"] == pytest.approx(max(scores))
    assert record["sd"] == pytest.approx(found["judge_sd"])
    assert metadata["judge"]["model"] == "a + b + c"
    assert metadata["judging"]["calls"] == 3 * len(TAGS)
    assert metadata["judging"]["judges"]["b"]["calls"] == len(TAGS)


def test_the_samples_hold_every_opinion(servers: dict[str, StubServer], tmp_path: Path) -> None:
    assert run(tmp_path, "out", listed(servers)) == 0
    for number, tag in enumerate(TAGS):
        assert votes_of(tmp_path / "out")[tag] == [
            {"judge": name, "repeat": 0, "met": number in MET[name],
             "explanation": f"So says one of {tag}.", "contradicts_explanation": False,
             "failure": None}
            for name in "abc"
        ]  # fmt: skip
    (line, *_) = samples(tmp_path / "out", "prbench_finance")
    assert line["doc"]["criteria"][0]["met"] is True
    assert line["doc"]["criteria"][0]["attempts"] == 3
    assert isinstance(line["judge_alpha"], float)


def test_a_tie_is_not_met(servers: dict[str, StubServer], tmp_path: Path) -> None:
    assert run(tmp_path, "out", listed(servers, "ab")) == 0
    both = judged(lambda n: n in MET["a"] & MET["b"])
    assert row(tmp_path / "out")["clipped_score"] == pytest.approx(clipped_mean(both))


def test_stock_metadata_and_variables_know_panels_too(
    servers: dict[str, StubServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = json.loads(listed(servers).removeprefix("models="))
    answers = {"path": str(tmp_path / "answers.json")}
    found = evaluate("prbench_finance", model="prefilled", model_args=answers,
                     judge={"prompt": "builtin", "models": models})  # fmt: skip
    expected = clipped_mean(majority())
    assert metrics(found, "prbench_finance")["clipped_score"] == pytest.approx(expected)
    forget_judges()
    monkeypatch.setenv("RUBRIC_JUDGE_MODELS", json.dumps(models))
    monkeypatch.setenv("RUBRIC_JUDGE_PROMPT", "builtin")
    found = evaluate("prbench_finance", model="prefilled", model_args=answers)
    again = metrics(found, "prbench_finance")
    assert again["clipped_score"] == pytest.approx(expected)
    assert "judge_split" in again
    assert calls(servers) == dict.fromkeys("abc", len(TAGS))  # the second time from the store


def test_a_single_judge_has_neither_votes_nor_their_metrics(
    servers: dict[str, StubServer], tmp_path: Path
) -> None:
    assert run(tmp_path, "out", "model=a", f"base_url={servers['a'].url}") == 0
    assert not {"judge_split", "judge_alpha", "judge_sd"} & row(tmp_path / "out").keys()
    metadata = results(tmp_path / "out")["configs"]["prbench_finance"]["metadata"]
    assert not {"repeats", "models", "min_judges"} & metadata["judge"].keys()
    assert not {"judge_opinions", "answers"} & metadata.keys()
    assert "judges" not in metadata["judging"]
    for line in samples(tmp_path / "out", "prbench_finance"):
        assert not any("votes" in criterion for criterion in line["doc"]["criteria"])
        assert "answers" not in line["doc"]


# --- judges that fail ----------------------------------------------------------------------------


def failing(tags: Sequence[str]) -> Callable[[Received, int], Reply | None]:
    return lambda call, _: content_filtered() if criterion_of(call) in tags else None


def test_a_judge_that_fails_leaves_the_others_to_decide(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path
) -> None:
    judges["c"].script = failing(TAGS[:2])
    assert run(tmp_path, "out", listed(servers)) == 0
    decided = judged(
        lambda n: n in MET["a"] & MET["b"] if n < 2 else sum(n in m for m in MET.values()) > 1
    )
    found = row(tmp_path / "out")
    assert found["clipped_score"] == pytest.approx(clipped_mean(decided))
    assert found["judge_coverage"] == 1
    vote = votes_of(tmp_path / "out")[TAGS[0]][2]
    assert vote["met"] is None
    assert "content policy" in vote["failure"]
    # The spread is over the documents that all three scored.
    record = results(tmp_path / "out")["configs"]["prbench_finance"]["metadata"]["judge_opinions"]
    assert record["documents"] == len(FINANCE) - 1
    alone = judged(lambda n: n in MET["c"])[1:]
    assert record["scores"][2]["score"] == pytest.approx(clipped_mean(alone))


@pytest.mark.parametrize(("least", "coverage"), [(2, 2 / 3), (1, 1.0)])
def test_min_judges_says_how_many_have_to_be_left(
    least: int, coverage: float, judges: dict[str, Opinion], servers: dict[str, StubServer],
    tmp_path: Path,
) -> None:  # fmt: skip
    judges["b"].script = judges["c"].script = failing(TAGS[:1])
    assert run(tmp_path, "out", listed(servers), f"min_judges={least}") == 0
    found = row(tmp_path / "out")
    assert found["judge_coverage"] == pytest.approx(coverage)
    cases = majority()
    if least == 1:
        cases = judged(lambda n: n in MET["a"] if n < 1 else sum(n in m for m in MET.values()) > 1)
        assert found["clipped_score"] == pytest.approx(clipped_mean(cases))
    else:
        assert found["clipped_score"] == pytest.approx(clipped_mean(cases[1:]))
        (line, *_) = samples(tmp_path / "out", "prbench_finance")
        failure = line["doc"]["criteria"][0]["failure"]
        assert failure.startswith("1 of 3 judges gave a verdict, 2 are needed (b: ")
        assert math.isnan(line["clipped_score"])


def test_on_failure_is_the_panels(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    judges["c"].script = failing(TAGS)
    # One that fails is none of its business while the others decide.
    assert run(tmp_path, "one", listed(servers), "on_failure=raise") == 0
    judges["b"].script = failing(TAGS[:1])
    judges["a"].met = judges["b"].met = set()
    out = run(tmp_path, "two", listed(servers, a={"temperature": 1}, b={"temperature": 1}),
              "on_failure=raise")  # fmt: skip
    assert out == 3
    assert "on_failure is raise" in capsys.readouterr().err
    judges["b"].script = failing(TAGS[:1])
    assert run(tmp_path, "three", listed(servers, b={"temperature": 0.5}), "on_failure=unmet") == 0
    unmet = judged(lambda _: False)
    assert row(tmp_path / "three")["judge_coverage"] == 1
    assert row(tmp_path / "three")["clipped_score"] == pytest.approx(clipped_mean(unmet))


def test_a_judge_whose_key_is_refused_midway_is_done_without(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    judges["c"].script = lambda _call, _number: (
        unauthorized() if sum(judges["c"].asked.values()) >= 3 else None
    )
    assert run(tmp_path, "out", listed(servers), "concurrency=1") == 0
    assert "The judge c has given up, and the others decide" in capsys.readouterr().err
    heard = {v[2]["met"] for v in votes_of(tmp_path / "out").values()}
    assert None in heard
    found = row(tmp_path / "out")
    assert found["judge_coverage"] == 1
    first = list(judges["c"].asked)[:3]  # the first three were answered

    def met(n: int) -> bool:
        names = "abc" if TAGS[n] in first else "ab"
        return 2 * sum(n in MET[name] for name in names) > len(names)

    assert found["clipped_score"] == pytest.approx(clipped_mean(judged(met)))


def test_too_few_judges_left_stop_the_run_with_the_answers_kept(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    judges["b"].script = judges["c"].script = lambda _call, _number: unauthorized()
    assert run(tmp_path, "out", listed(servers)) == 3
    message = capsys.readouterr().err
    assert "1 of 3 judges can go on, and 2 are needed" in message
    assert "answers are kept in" in message


def test_a_judge_that_is_down_at_the_start_is_named_at_once(
    servers: dict[str, StubServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = json.loads(listed(servers, "ab").removeprefix("models="))
    models.append({"model": "d", "base_url": "http://127.0.0.1:9/v1", "max_outage": 0})
    assert run(tmp_path, "out", f"models={json.dumps(models)}") == 3
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert calls(servers) == dict.fromkeys("abc", 0)
    # Unless it was said that so many do.
    assert run(tmp_path, "out", f"models={json.dumps(models)}", "min_judges=2") == 0
    assert "may have to be done without" in capsys.readouterr().err
    both = judged(lambda n: n in MET["a"] & MET["b"])
    assert row(tmp_path / "out")["clipped_score"] == pytest.approx(clipped_mean(both))


# --- repeats -------------------------------------------------------------------------------------


def wavering(number_met: int) -> Callable[[Received, int], Reply | None]:
    """Each criterion is found met the first ``number_met`` times that it is asked."""
    return lambda call, number: Reply(verdict(number < number_met, criterion_of(call)))


@pytest.mark.parametrize(
    ("repeats", "met", "decided"), [(3, 2, True), (3, 1, False), (2, 1, False)]
)
def test_one_judge_is_asked_several_times(
    repeats: int, met: int, decided: bool, judges: dict[str, Opinion],
    servers: dict[str, StubServer], tmp_path: Path,
) -> None:  # fmt: skip
    judges["a"].script = wavering(met)
    one = ["model=a", f"base_url={servers['a'].url}", f"repeats={repeats}"]
    assert run(tmp_path, "out", *one) == 0
    assert judges["a"].asked == Counter(dict.fromkeys(TAGS, repeats))
    found = row(tmp_path / "out")
    assert found["clipped_score"] == pytest.approx(clipped_mean(judged(lambda _: decided)))
    assert found["judge_split"] == 1
    votes = votes_of(tmp_path / "out")[TAGS[0]]
    assert [(vote["judge"], vote["repeat"]) for vote in votes] == [("a", n) for n in range(repeats)]
    assert sum(vote["met"] for vote in votes) == met
    metadata = results(tmp_path / "out")["configs"]["prbench_finance"]["metadata"]
    assert metadata["judge"]["repeats"] == repeats
    assert metadata["judging"]["calls"] == repeats * len(TAGS)


def test_the_first_call_of_a_conversation_is_alone_before_its_repeats(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path
) -> None:
    seen: list[str] = []
    done: set[str] = set()

    def script(call: Received, _: int) -> Reply | None:
        case = criterion_of(call).rpartition("-c")[0]
        assert case in done or case not in seen, "a sibling came before the first was back"
        seen.append(case)
        done.add(case)  # the reply goes out before the next call is taken
        return None

    judges["a"].script = script
    assert run(tmp_path, "out", "model=a", f"base_url={servers['a'].url}", "repeats=3") == 0
    per_case = {case.id: 3 * len(case.items) for case in FINANCE}
    assert Counter(seen) == per_case


# --- store, budgets ------------------------------------------------------------------------------


def test_nothing_is_asked_twice_and_a_new_judge_or_repeat_is_all_that_is_asked(
    servers: dict[str, StubServer], tmp_path: Path
) -> None:
    # What one judge said counts as its first opinion.
    assert run(tmp_path, "one", "model=a", f"base_url={servers['a'].url}") == 0
    reset(servers)
    assert run(tmp_path, "two", listed(servers, "ab")) == 0
    assert calls(servers) == {"a": 0, "b": len(TAGS), "c": 0}
    reset(servers)
    assert run(tmp_path, "three", listed(servers)) == 0
    assert calls(servers) == {"a": 0, "b": 0, "c": len(TAGS)}
    reset(servers)
    assert run(tmp_path, "four", listed(servers)) == 0
    assert calls(servers) == dict.fromkeys("abc", 0)
    assert row(tmp_path / "three") == row(tmp_path / "four")
    assert run(tmp_path, "five", listed(servers, b={"repeats": 3})) == 0
    assert calls(servers) == {"a": 0, "b": 2 * len(TAGS), "c": 0}


def test_a_budget_is_the_panels_and_the_same_command_goes_on(
    servers: dict[str, StubServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = 17
    assert run(tmp_path, "one", listed(servers), f"max_calls={budget}", "concurrency=4") == 0
    assert sum(calls(servers).values()) == budget
    first = row(tmp_path / "one")
    assert first["judge_coverage"] < 1
    assert f"max_calls ({budget}) is reached" in capsys.readouterr().err
    # A criterion that not all could be asked about is undecided, not decided by fewer.
    for tag, votes in votes_of(tmp_path / "one").items():
        left_out = any("not asked" in (vote["failure"] or "") for vote in votes)
        criterion = next(
            c
            for line in samples(tmp_path / "one", "prbench_finance")
            for c in line["doc"]["criteria"]
            if c["id"] == tag
        )
        assert (criterion["met"] is None) == left_out
    assert run(tmp_path, "two", listed(servers)) == 0
    assert calls(servers) == dict.fromkeys("abc", len(TAGS))
    assert row(tmp_path / "two")["clipped_score"] == pytest.approx(clipped_mean(majority()))


def test_a_judges_own_budget_and_the_cost_of_all(
    servers: dict[str, StubServer], tmp_path: Path
) -> None:
    priced = {n: {"prices": [1, 1, k]} for k, n in enumerate("abc", 1)}
    # The judges work side by side: perhaps no criterion was seen by all of them.
    assert run(tmp_path, "one", listed(servers, **priced), "max_cost=0.000001") in (0, 3)
    assert 1 <= sum(calls(servers).values()) < 3 * len(TAGS)
    reset(servers)
    own = {**priced, "b": {**priced["b"], "max_calls": 2}}
    assert run(tmp_path, "two", listed(servers, **own), "temperature=1") == 0
    assert calls(servers) == {"a": len(TAGS), "b": 2, "c": len(TAGS)}
    judging = results(tmp_path / "two")["configs"]["prbench_finance"]["metadata"]["judging"]
    each = judging["judges"]
    assert judging["cost"] == pytest.approx(sum(each[name]["cost"] for name in "abc"))
    for k, name in enumerate("abc", 1):
        tokens = each[name]["prompt_tokens"] + k * each[name]["completion_tokens"]
        assert each[name]["cost"] == pytest.approx(tokens / 1e6)


def test_a_panels_run_that_was_killed_is_finished_without_a_call_repeated(
    judges: dict[str, Opinion], servers: dict[str, StubServer], tmp_path: Path
) -> None:
    for name, opinion in judges.items():
        opinion.script = lambda call, _, met=MET[name]: Reply(
            verdict(TAGS.index(criterion_of(call)) in met), delay=0.2
        )
    own = {name: {"concurrency": 1, "repeats": 2} for name in "abc"}
    command = [
        "run", "--model", "prefilled", "--model_args", f"path={tmp_path / 'answers.json'}",
        "--tasks", "prbench_finance", "--output_path", str(tmp_path / "out"),
        "--judge", "prompt=builtin", listed(servers, **own),
    ]  # fmt: skip
    with running("lm-eval-rubrics", *command, log=tmp_path / "log") as started:
        wait_until(lambda: all(n >= 4 for n in calls(servers).values()) or started.ended())
        started.send(signal.SIGKILL)
        assert started.code() == -signal.SIGKILL, started.text
    before = calls(servers)
    assert all(n < 2 * len(TAGS) for n in before.values())
    for opinion in judges.values():
        opinion.script = lambda _call, _number: None
    assert main(command) == 0
    for number in calls(servers).values():
        assert 2 * len(TAGS) <= number <= 2 * len(TAGS) + 1  # one was in flight
    assert row(tmp_path / "out")["clipped_score"] == pytest.approx(clipped_mean(majority()))


def test_saved_answers_are_scored_by_a_panel_as_in_one_step(
    servers: dict[str, StubServer], tmp_path: Path
) -> None:
    assert run(tmp_path, "one", listed(servers)) == 0
    reset(servers)
    judge = ["--judge", "prompt=builtin", "max_retries=0", listed(servers)]
    out = ["--output_path", str(tmp_path / "two")]
    assert main(["score", str(tmp_path / "one"), *out, *judge]) == 0
    assert calls(servers) == dict.fromkeys("abc", 0)  # the store has all of it
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    assert one["results"] == two["results"]
    name = "prbench_finance"
    assert repr(samples(tmp_path / "one", name)) == repr(samples(tmp_path / "two", name))
    metadata = two["configs"][name]["metadata"]
    assert metadata["judge_opinions"] == one["configs"][name]["metadata"]["judge_opinions"]


def test_each_judges_key_goes_to_its_own_endpoint(
    judges: dict[str, Opinion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"a": "key-of-the-first-judge", "b": "key-of-the-second-judge"}
    for name, key in keys.items():
        monkeypatch.setenv(f"JUDGE_{name.upper()}", key)
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", "a-key-for-everybody-else")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                StubServer(judges[name].respond, models=(name,), api_key=keys.get(name))
            )
            for name in "abc"
        }
        own = {name: {"api_key_env": f"JUDGE_{name.upper()}"} for name in keys}
        assert run(tmp_path, "out", listed(servers, **own)) == 0
        seen = {n: {c.headers["authorization"] for c in s.received} for n, s in servers.items()}
    assert seen == {"a": {f"Bearer {keys['a']}"}, "b": {f"Bearer {keys['b']}"},
                    "c": {"Bearer a-key-for-everybody-else"}}  # fmt: skip
    written = "".join(p.read_text("utf-8") for p in (tmp_path / "out").rglob("*_20*.json*"))
    assert not any(key in written for key in keys.values())


def test_the_estimate_has_a_table_for_each_judge_and_their_cost(
    servers: dict[str, StubServer], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["estimate", "--tasks", "prbench_finance", "--judge", "prompt=builtin"]
    assert main([*base, "model=a", f"base_url={servers['a'].url}", "prices=1,1,1"]) == 0
    single = capsys.readouterr().out
    own = {"a": {"prices": [1, 1, 1]}, "b": {"prices": [2, 2, 2], "repeats": 3}}
    assert main([*base, listed(servers, "ab", **own)]) == 0
    both = capsys.readouterr().out
    assert calls(servers) == dict.fromkeys("abc", 0)
    assert single.strip() in both
    assert "b (" in both
    assert "3 times each" in both

    def total(text: str) -> list[int]:
        line = [line for line in text.splitlines() if line.startswith("total")][-1]
        return [int(number.replace(",", "")) for number in line.split()[1:]]

    (documents, once, prompt, _, reply), thrice = total(single), total(both)
    assert thrice[:3] == [documents, 3 * once, 3 * prompt]
    assert thrice[4] == 3 * reply
    cost = (prompt + reply) / 1e6 + 2 * (thrice[2] + thrice[4]) / 1e6
    assert f"cost of all judges {cost:,.2f}" in both


# --- points --------------------------------------------------------------------------------------


def graded(points: Sequence[float], items: Sequence[float] | None = None) -> str:
    keys = ("结论", "案件事实", "推理过程", "法条依据")
    details = {
        key: {"total_points": p, "max_points": 99,
              "breakdown": [{"rubric_item": key, "points_awarded": i, "rationale": "so"}]}
        for key, p, i in zip(keys, points, items or points, strict=True)
    }  # fmt: skip
    return json.dumps({"score_details": details}, ensure_ascii=False)


def test_points_are_combined_by_their_mean(tmp_path: Path) -> None:
    path = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / "middling.json"
    # More points than there are count as all of them.
    given = {"a": (1, 2, 3, 4), "b": (2, 4, 3, 0), "c": (1, 3, 1000, 1)}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                StubServer(lambda _, p=p, n=name: Reply(graded(p, (9, *p[1:]) if n == "b" else p)),
                           models=(name,))
            )
            for name, p in given.items()
        }  # fmt: skip
        code = main([
            "run", "--model", "prefilled", "--model_args", f"path={path}",
            "--tasks", "plawbench_sample_case_analysis", "--log_samples",
            "--output_path", str(tmp_path / "out"), "--metadata", '{"task_prompt": "builtin"}',
            "--judge", "prompt=builtin", listed(servers),
        ])  # fmt: skip
    assert code == 0
    (line,) = samples(tmp_path / "out", "plawbench_sample_case_analysis")
    sections = line["doc"]["grading"]["sections"]
    worth = [section["points"] for section in sections]
    clamped = {n: [min(x, w) for x, w in zip(p, worth, strict=True)] for n, p in given.items()}
    mean = [sum(c[i] for c in clamped.values()) / 3 for i in range(4)]
    found = metrics(results(tmp_path / "out"), "plawbench_sample_case_analysis")
    assert found["acc"] == pytest.approx(sum(mean) / sum(worth))
    assert [s["awarded"] for s in sections] == pytest.approx(mean)
    for name, i in (("conclusion", 0), ("fact", 1), ("reasoning", 2), ("law", 3)):
        assert found[f"{name}_acc"] == pytest.approx(mean[i] / worth[i])
    votes = line["doc"]["grading"]["votes"]
    assert [(v["judge"], v["repeat"], tuple(v["awarded"].values())) for v in votes] == [
        (name, 0, tuple(map(float, p))) for name, p in given.items()
    ]
    assert found["judge_split"] == 1
    scores = [sum(c) / sum(worth) for c in clamped.values()]
    assert found["judge_sd"] == pytest.approx(statistics.stdev(scores))
    units = [[round(c[i] / worth[i] * 50) / 50 for c in clamped.values()] for i in range(4)]
    assert found["judge_alpha"] == pytest.approx(alpha(units))
    # One section of b's has other points than its items add up to.
    assert found["judge_contradictions"] == 1
    assert [v["contradicts_breakdown"] for v in votes] == [[], ["conclusion"], []]


# --- the measures themselves ---------------------------------------------------------------------


def test_alpha_of_published_data_with_missing_values() -> None:
    # Krippendorff's example of three coders and fifteen units; α for intervals is 0.811.
    nan = math.nan
    coders = [[nan] * 5 + [3, 4, 1, 2, 1, 1, 3, 3, nan, 3],
              [1, nan, 2, 1, 3, 3, 4, 3] + [nan] * 7,
              [nan, nan, 2, 1, 3, 4, 4, nan, 2, 1, 1, 3, 3, nan, 4]]  # fmt: skip
    units = [tuple(of_one) for of_one in zip(*coders, strict=True)]
    known = [[value for value in unit if value == value] for unit in units]
    assert alpha(known) == pytest.approx(0.811, abs=5e-4)
    # Two documents, one with the first units and one with the rest.
    made = [opinions.Opinions(tuple(part), (nan,) * 3) for part in (units[:7], units[7:])]
    values = [opinions.metrics(of_one)["judge_alpha"] for of_one in made]
    assert opinions.alpha(values) == pytest.approx(alpha(known))
    several = [set(unit) for unit in known if len(unit) > 1]
    assert opinions.split(units) == sum(len(s) > 1 for s in several) / len(several)


def test_what_cannot_be_measured_is_nan() -> None:
    alike = opinions.Opinions(((1.0, 1.0), (1.0, 1.0)), (1.0, 1.0))
    assert math.isnan(opinions.alpha([opinions.metrics(alike)["judge_alpha"]]))
    nobody = opinions.Opinions((), (0.0, 0.0))
    assert math.isnan(opinions.split(nobody.votes))
    assert math.isnan(opinions.alpha([opinions.metrics(nobody)["judge_alpha"]]))
    assert math.isnan(opinions.mean_sd([opinions.metrics(nobody)["judge_sd"]]))
    # An empty answer beside one that was judged counts as it does in the score.
    both = [
        opinions.metrics(one)["judge_sd"]
        for one in (nobody, opinions.Opinions(((1.0, 0.0),), (1.0, 0.0)))
    ]
    assert opinions.mean_sd(both) == pytest.approx(math.sqrt(0.5) / 2)
    assert math.isnan(opinions.mean_sd([]))


def test_what_was_spent_and_said_survives_the_way_between_processes() -> None:
    ledger = Ledger(shared=Budget(5, None))
    assert ledger.reserve() is None
    ledger.sent(again=False)
    again = pickle.loads(pickle.dumps(PanelLedger({"a": ledger})))
    assert again.record() == PanelLedger({"a": ledger}).record()
    made = opinions.Opinions(((1.0, 0.0),), (0.5, 0.25))
    value = opinions.metrics(made)["judge_sd"]
    copy = pickle.loads(pickle.dumps(value))
    assert copy == value
    assert copy.opinions == made
    assert json.loads(json.dumps(value)) == value
