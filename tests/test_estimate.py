"""``lm-eval-rubrics estimate``: calls, tokens and cost before anything is spent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import judge_arguments
from rows import FINANCE, World, write_answers, write_data
from stub_server import StubServer

import lm_eval_tasks
from custom_metrics.cli import main

NOBODY = "http://127.0.0.1:9/v1"  # nothing may be sent
BUNDLED = Path(lm_eval_tasks.path())


@pytest.fixture(autouse=True)
def _builtin_task_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_TASK_PROMPT", "builtin")


def estimated(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines that ``estimate`` prints."""
    judge = judge_arguments(NOBODY, prompt="builtin")
    assert main(["estimate", *arguments, *judge]) == 0
    return capsys.readouterr().out.splitlines()


def numbers(line: str) -> list[int]:
    """Documents, calls, and tokens in, cached and out."""
    return [int(number.replace(",", "")) for number in line.split()[1:]]


def bundled(benchmark: str) -> list[dict[str, Any]]:
    text = (BUNDLED / benchmark / "sample.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def test_the_calls_of_the_bundled_samples_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    rows = bundled("prbench")
    criteria = [len(row["rubric"]) for row in rows]
    cases = len(bundled("plawbench"))
    found = estimated(capsys, "--tasks", "prbench_sample", "plawbench_sample")
    assert found[1].split()[0] == "prbench_sample"
    assert numbers(found[1])[:2] == [len(rows), sum(criteria)]
    of_plawbench = [numbers(line)[:2] for line in found[2:6]]
    assert of_plawbench == [[1, 1]] * cases
    assert found[6].split()[0] == "total"
    assert numbers(found[6])[:2] == [len(rows) + cases, sum(criteria) + cases]
    every = [numbers(line) for line in found[1:6]]
    assert numbers(found[6]) == [sum(column) for column in zip(*every, strict=True)]

    limited = estimated(capsys, "--tasks", "prbench_sample,plawbench_sample", "--limit", "2")
    assert numbers(limited[1])[:2] == [2, sum(criteria[:2])]


def test_the_tokens_are_those_of_the_requests_that_a_run_sends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = FINANCE[0]
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=[case])))
    # An answer of 3,000 tokens, at four characters each.
    answers = write_answers(tmp_path / "answers.json", {case.id: "abc " * 2999 + "abcd"})
    world = World([case])
    with StubServer(world.respond) as server:
        code = main([
            "run", "--model", "prefilled", "--model_args", f"path={answers}",
            "--tasks", "prbench_finance", *judge_arguments(server.url, prompt="builtin"),
        ])  # fmt: skip
        assert code == 0
        texts = ["".join(m["content"] for m in r.messages) for r in server.received]
    capsys.readouterr()
    found = estimated(
        capsys, "--tasks", "prbench_finance", "--answer_tokens", "3000", "--reply_tokens", "77"
    )
    documents, calls, prompt, cached, completion = numbers(found[1])
    assert (documents, calls, completion) == (1, len(texts), 77 * len(texts))
    # Beginnings and ends are counted apart, so each call may lose a token or two to rounding.
    assert prompt == pytest.approx(sum(len(text) / 4 for text in texts), abs=3 * len(texts))
    common = next(i for i, letters in enumerate(zip(*texts, strict=False)) if len({*letters}) > 1)
    hits = len(texts) - 1
    assert cached % (128 * hits) == 0
    assert common // 4 - 256 <= cached // hits <= common // 4 + 1
    assert "tokens by characters / 4" in found[3]


def test_a_prefix_too_short_for_a_cache_is_not_counted_as_cached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=FINANCE)))
    found = estimated(capsys, "--tasks", "prbench_finance", "--answer_tokens", "10")
    assert numbers(found[1])[2] < 10 * 1024
    assert numbers(found[1])[3] == 0


def test_a_guessed_token_of_an_answer_counts_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with_none, with_many = (
        numbers(estimated(capsys, "--tasks", "prbench_sample", "--answer_tokens", n)[1])
        for n in ("0", "4000")
    )
    calls = with_none[1]
    assert (with_many[2] - with_none[2]) / calls == pytest.approx(4000, rel=0.02)


def test_the_cost_is_tokens_times_prices(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimated(capsys, "--tasks", "prbench_sample", "--price", "110,27.5,440")
    _, _, prompt, cached, completion = numbers(found[2])
    cost = ((prompt - cached) * 110 + cached * 27.5 + completion * 440) / 1e6
    said = re.fullmatch(r"cost ([\d.,]+) at the prices given", found[-1])
    assert said
    assert float(said[1].replace(",", "")) == pytest.approx(cost, abs=0.005)


def test_without_prices_there_is_no_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("cost" in line for line in estimated(capsys, "--tasks", "prbench_sample"))


WRONG = {
    "an unknown task": (["--tasks", "prbench_finanse"], "no task prbench_finanse; there are"),
    "one unknown of two": (["--tasks", "prbench_sample", "nope"], "no task nope; there are"),
    "two prices": (["--tasks", "prbench_sample", "--price", "1,2"], "prices"),
    "words for prices": (["--tasks", "prbench_sample", "--price", "a,b,c"], "prices"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = WRONG[name]
    judge = judge_arguments(NOBODY, prompt="builtin")
    assert main(["estimate", *arguments, *judge]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: ")
    assert said in errors
    assert errors.count("\n") == 1
