"""Several answers to each document: mean, worst and spread, from a run or from saved files."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import forget_judges
from commands import judge_arguments, metrics, model_arguments, only, results, samples
from in_process import evaluate, judge_at
from rows import FINANCE, Case, case_of, clipped, criterion_of, normalized, write_data
from stub_server import Received, Reply, StubServer, content_filtered, verdict

import lm_eval_tasks
from custom_metrics import answers
from custom_metrics.cli import main

K = 3
SAMPLED = ["--gen_kwargs", "do_sample=true,temperature=0.8"]
TAGS = [case.tag(n) for case in FINANCE for n in range(len(case.items))]
CRITERIA = len(TAGS)


def met(tag: str, answer: int) -> bool:
    """Whether the judge finds a criterion met in the answer of this number."""
    return (TAGS.index(tag) + answer) % (answer + 2) == 0


class World:
    """A model whose n-th answer to a case says its number, and a judge that goes by it."""

    def __init__(self) -> None:
        self.given: Counter[str] = Counter()
        self.refused: set[tuple[str, int]] = set()
        self.empty: set[tuple[str, int]] = set()

    def respond(self, call: Received) -> Reply:
        if call.model == "model":
            identifier = case_of(call)
            number = self.given[identifier] % K
            self.given[identifier] += 1
            return Reply("" if (identifier, number) in self.empty else f"(answer {number})")
        (number,) = [n for n in range(K) if f"(answer {n})" in call.prompt]
        tag = criterion_of(call)
        refused = (tag, number) in self.refused
        return content_filtered() if refused else Reply(verdict(met(tag, number)))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def server(world: World) -> Iterator[StubServer]:
    with StubServer(world.respond, models=("model", "judge")) as started:
        yield started


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=FINANCE)))


def run(server: StubServer, out: Path, *more: str, judge: Sequence[str] = ()) -> int:
    code: int = main([
        "run", "--tasks", "prbench_finance", "--log_samples", "--output_path", str(out),
        *model_arguments(server.url, concurrent=1),
        *judge_arguments(server.url, prompt="builtin", max_retries=0), *judge, *more,
    ])  # fmt: skip
    forget_judges()
    return code


def judged(case: Case, answer: int) -> Case:
    items = [dataclasses.replace(i, met=met(case.tag(n), answer)) for n, i in enumerate(case.items)]
    return dataclasses.replace(case, items=tuple(items))


# Of each case, the clipped scores of its answers.
SCORES = [[clipped(judged(case, k).items) for k in range(K)] for case in FINANCE]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def check(found: dict[str, Any], scores: list[list[float]]) -> None:
    assert found["clipped_score"] == pytest.approx(max(0, mean([mean(s) for s in scores])))
    assert found["clipped_score_worst"] == pytest.approx(max(0, mean([min(s) for s in scores])))
    spread = mean([statistics.stdev(s) for s in scores])
    assert found["clipped_score_spread"] == pytest.approx(spread)


def judge_calls(server: StubServer) -> int:
    return sum(call.model == "judge" for call in server.received)


def test_every_answer_is_judged_and_a_document_has_their_mean_worst_and_spread(
    server: StubServer, tmp_path: Path
) -> None:
    assert run(server, tmp_path / "out", "--answers", str(K), *SAMPLED) == 0
    assert judge_calls(server) == K * CRITERIA
    found = metrics(results(tmp_path / "out"), "prbench_finance")
    check(found, SCORES)
    assert len({round(score, 6) for of_one in SCORES for score in of_one}) > K
    each = [[normalized(judged(case, k).items) for k in range(K)] for case in FINANCE]
    assert found["normalized_score"] == pytest.approx(mean([mean(of_one) for of_one in each]))
    assert found["judge_coverage"] == 1
    assert found["empty_answers"] == 0
    assert results(tmp_path / "out")["n-samples"]["prbench_finance"]["effective"] == len(FINANCE)
    config = results(tmp_path / "out")["configs"]["prbench_finance"]
    assert config["repeats"] == config["metadata"]["answers"] == K


def test_the_samples_keep_every_answer_with_its_judgement(
    server: StubServer, tmp_path: Path
) -> None:
    assert run(server, tmp_path / "out", "--answers", str(K), *SAMPLED) == 0
    for line, case, scores in zip(
        samples(tmp_path / "out", "prbench_finance"), FINANCE, SCORES, strict=True
    ):
        assert line["resps"] == [[f"(answer {k})" for k in range(K)]]
        assert line["filtered_resps"] == line["resps"]
        doc = line["doc"]
        assert not {"answer", "answer_status", "criteria"} & doc.keys()
        for k, answer in enumerate(doc["answers"]):
            assert answer["answer"] == f"(answer {k})"
            assert answer["answer_status"] == "answered"
            assert [c["met"] for c in answer["criteria"]] == [
                met(case.tag(n), k) for n in range(len(case.items))
            ]
            assert answer["scores"]["clipped_score"] == pytest.approx(scores[k])
        assert line["clipped_score"] == pytest.approx(mean(scores))


def test_one_answer_is_what_it_was(server: StubServer, tmp_path: Path) -> None:
    assert run(server, tmp_path / "one") == 0
    assert run(server, tmp_path / "two", "--answers", "1") == 0
    one, two = (samples(tmp_path / name, "prbench_finance") for name in ("one", "two"))
    assert [line["doc_hash"] for line in one] == [line["doc_hash"] for line in two]
    assert {"answer", "answer_status", "criteria"} <= one[0]["doc"].keys()
    assert "answers" not in one[0]["doc"]
    found = metrics(results(tmp_path / "one"), "prbench_finance")
    assert not {"clipped_score_worst", "clipped_score_spread"} & found.keys()


def test_an_answer_without_a_verdict_leaves_its_document_out(
    server: StubServer, world: World, tmp_path: Path
) -> None:
    world.refused = {(TAGS[0], 1)}
    assert run(server, tmp_path / "out", "--answers", str(K), *SAMPLED) == 0
    found = metrics(results(tmp_path / "out"), "prbench_finance")
    check(found, SCORES[1:])
    assert found["judge_coverage"] == pytest.approx(2 / 3)
    (line, *_) = samples(tmp_path / "out", "prbench_finance")
    assert math.isnan(line["clipped_score"])
    assert math.isnan(line["clipped_score_worst"])
    # The bounds hold whatever that verdict would have been.
    case = FINANCE[0]
    bounds = []
    for verdict_ in (False, True):
        items = list(judged(case, 1).items)
        items[0] = dataclasses.replace(items[0], met=verdict_)
        bounds.append(mean([SCORES[0][0], clipped(items), SCORES[0][2]]))
    assert line["clipped_score_low"] == pytest.approx(bounds[0])
    assert line["clipped_score_high"] == pytest.approx(bounds[1])


def test_empty_answers_are_counted_one_by_one(
    server: StubServer, world: World, tmp_path: Path
) -> None:
    world.empty = {(FINANCE[0].id, 0), (FINANCE[0].id, 2), (FINANCE[2].id, 1)}
    assert run(server, tmp_path / "out", "--answers", str(K), *SAMPLED) == 0
    found = metrics(results(tmp_path / "out"), "prbench_finance")
    assert found["empty_answers"] == 3
    scores = [
        [0.0 if (case.id, k) in world.empty else score for k, score in enumerate(of_one)]
        for case, of_one in zip(FINANCE, SCORES, strict=True)
    ]
    check(found, scores)


def test_several_answers_and_several_opinions_go_together(
    server: StubServer, tmp_path: Path
) -> None:
    assert run(server, tmp_path / "out", "--answers", str(K), *SAMPLED, judge=["repeats=2"]) == 0
    assert judge_calls(server) == 2 * K * CRITERIA
    found = metrics(results(tmp_path / "out"), "prbench_finance")
    check(found, SCORES)
    assert found["judge_split"] == 0
    assert found["judge_alpha"] == 1
    assert found["judge_sd"] == 0
    (line, *_) = samples(tmp_path / "out", "prbench_finance")
    assert all(len(c["votes"]) == 2 for a in line["doc"]["answers"] for c in a["criteria"])


def test_equal_answers_are_warned_of(
    server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, tmp_path / "out", "--answers", "2") == 0
    assert "without chance they will be equal" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "-1", "101"])
def test_a_senseless_number_is_refused(
    given: str, server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, tmp_path / "out", "--answers", given) == 2
    assert "--answers: a number from 1 to 100" in capsys.readouterr().err


def test_the_harness_own_repeats_are_judged_too(
    server: StubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "tasks"
    own.mkdir()
    base = Path(lm_eval_tasks.path()) / "prbench" / "prbench_finance.yaml"
    config = {"include": str(base), "task": "mine", "repeats": K,
              "generation_kwargs": {"until": [], "max_gen_toks": 99, "do_sample": True,
                                    "temperature": 1.0}}  # fmt: skip
    (own / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    answers_file = tmp_path / "answers.json"
    given = {case.id: [f"(answer {k})" for k in range(K)] for case in FINANCE}
    answers_file.write_text(json.dumps(given), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        found = evaluate(
            str(own / "mine.yaml"), model="prefilled", model_args={"path": str(answers_file)},
            judge=judge_at(server.url),
        )  # fmt: skip
    check(metrics(found, "mine"), SCORES)
    assert "only the first" not in caplog.text


# --- saved answers -------------------------------------------------------------------------------


def score(server: StubServer, tmp_path: Path, *given: str | Path) -> int:
    judge = judge_arguments(server.url, prompt="builtin", max_retries=0)
    code: int = main(["score", *map(str, given), "--output_path", str(tmp_path / "scored"), *judge])
    forget_judges()
    return code


def test_saved_answers_are_scored_as_in_one_step(server: StubServer, tmp_path: Path) -> None:
    assert run(server, tmp_path / "one", "--answers", str(K), *SAMPLED) == 0
    command = ["run", "--tasks", "prbench_finance", "--predict_only", "--answers", str(K),
               "--output_path", str(tmp_path / "saved"), *SAMPLED,
               *model_arguments(server.url, concurrent=1)]  # fmt: skip
    assert main([*command, "--no_answer_store"]) == 0
    assert score(server, tmp_path, tmp_path / "saved") == 0
    one, two = results(tmp_path / "one"), results(tmp_path / "scored")
    assert one["results"] == two["results"]
    lines = [
        repr(samples(tmp_path / name, "prbench_finance")).replace("do_sample", "")
        for name in ("one", "scored")
    ]
    assert lines[0] == lines[1]


def test_lines_with_different_numbers_of_answers_are_refused(
    server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, tmp_path / "one", "--answers", str(K), *SAMPLED) == 0
    file = only(tmp_path / "one", "samples_*.jsonl")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    lines[1]["resps"] = [lines[1]["resps"][0][:2]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert score(server, tmp_path, file) == 2
    message = capsys.readouterr().err
    assert "line 2: 2 answers to" in message
    assert "3 are to be scored" in message


def test_kept_answers_are_used_again_all_of_them(
    server: StubServer, world: World, tmp_path: Path
) -> None:
    world.refused = {(TAGS[0], 1)}  # something is missing, so that the run stays open
    same = ["--answers", str(K), *SAMPLED]
    assert run(server, tmp_path / "out", *same) == 0
    world.refused.clear()
    server.reset()
    assert run(server, tmp_path / "out", *same) == 0
    assert [call.model for call in server.received] == ["judge"]
    newest = sorted((tmp_path / "out").rglob("results_*.json"))[-1]
    check(metrics(json.loads(newest.read_text("utf-8")), "prbench_finance"), SCORES)


def test_answers_of_a_run_that_failed_are_all_kept_and_can_be_judged(
    server: StubServer, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.refused = {(TAGS[0], 1)}
    same = ["--answers", str(K), *SAMPLED]
    assert run(server, tmp_path / "out", *same, judge=["on_failure=raise"]) == 3
    message = capsys.readouterr().err
    path = message.partition("path=")[2].split()[0]
    assert f"The {K * len(FINANCE)} answers are kept" in message
    assert f"--answers {K}" in message
    kept = answers.read(Path(path))
    assert kept == {case.id: [f"(answer {k})" for k in range(K)] for case in FINANCE}
    world.refused.clear()
    again = ["run", "--model", "prefilled", "--model_args", f"path={path}", "--tasks",
             "prbench_finance", "--answers", str(K), "--output_path", str(tmp_path / "again"),
             *judge_arguments(server.url, prompt="builtin")]  # fmt: skip
    assert main(again) == 0
    check(metrics(results(tmp_path / "again"), "prbench_finance"), SCORES)


def test_another_number_of_answers_than_the_file_has_is_refused(
    server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({case.id: ["(answer 0)", "(answer 1)"] for case in FINANCE}))
    command = ["run", "--model", "prefilled", "--model_args", f"path={path}", "--tasks",
               "prbench_finance", *judge_arguments(server.url, prompt="builtin")]  # fmt: skip
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "2 answers to 'finance-1', and prbench_finance wants 1" in message
