"""Several processes under a real launcher (torchrun) over gloo, beside one process.

The model is ``ranked_model.py``. Run by ``.ci/run`` in an environment with torch; the README's
test command has none and skips this file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extended tests need torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import Finished, command, judge_arguments, judge_metadata, metrics, results
from recorded import CATEGORIES, CLIPPED, JUDGE_CALLS, NORMALIZED, RecordedRun
from rows import FINANCE, LEGAL, World, write_answers, write_data
from stub_server import Received, Reply, StubServer, verdict

import lm_eval_tasks

MODEL = Path(__file__).with_name("ranked_model.py")
SAMPLES = Path(lm_eval_tasks.path())
CONCURRENCY = 7
# A launcher gives processes that do not end half a minute, and start-up takes its time here.
BOUND_S = 200
_OF_THE_CLOCK = ("date", "total_evaluation_time_seconds", "start_time", "end_time")
SECTIONS = ("结论", "案件事实", "推理过程", "法条依据")


def run(
    processes: int,
    *arguments: str,
    answers: Path,
    out: Path | None = None,
    program: str = "lm-eval-rubrics",
    model: str = "ranked",
    model_args: str = "",
    **environment: str,
) -> Finished:
    """``program run`` in so many processes, or in one without a launcher."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return command(
        "python", *(launcher if processes > 1 else []), str(MODEL), program, "run",
        "--model", model, "--model_args", model_args or f"path={answers}",
        *(["--output_path", str(out), "--log_samples"] if out else []), *arguments,
        environment={"OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def without_clock(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in _OF_THE_CLOCK}


def all_samples(folder: Path) -> dict[str, str]:
    """The samples files of a run by their names up to the date."""
    return {
        path.name.partition("_20")[0]: path.read_text(encoding="utf-8")
        for path in folder.rglob("samples_*.jsonl")
    }


def lines_with(done: Finished, text: str) -> list[str]:
    return [line for line in done.errors.splitlines() if text in line]


def by_hash(call: Received) -> Reply:
    """A verdict that depends on the prompt only, slow enough for calls to pile up."""
    first = hashlib.sha256(call.prompt.encode()).digest()[0]
    if "criteria_met" in call.prompt:
        return Reply(verdict(first % 2 == 0), delay=0.03)
    parts = {key: {"total_points": 1 + first % 3} for key in SECTIONS}
    graded = {"total_points": first % 7, "score_details": parts}
    return Reply(json.dumps(graded, ensure_ascii=False), delay=0.03)


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer(by_hash) as running:
        yield running


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three documents of finance and three of law, and the file of their answers."""
    data = write_data(tmp_path / "data", finance=FINANCE, legal=LEGAL)
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(data))
    answers = {case.id: f"An answer to {case.id}." for case in FINANCE + LEGAL}
    return write_answers(tmp_path / "answers.json", answers)


@pytest.mark.parametrize(("benchmark", "ranks"), [("prbench", 2), ("plawbench", 3)])
def test_ranks_give_what_one_process_gives(
    server: StubServer, tmp_path: Path, benchmark: str, ranks: int
) -> None:
    task = f"{benchmark}_sample"  # PLawBench's is a group of four tasks with a document each
    answers = SAMPLES / benchmark / "sample_answers" / "middling.json"
    found, lines, calls = {}, {}, {}
    for processes in (1, ranks):
        server.reset()
        out = tmp_path / f"out{processes}"
        done = run(
            processes, "--tasks", task, "--metadata", '{"task_prompt": "builtin"}',
            *judge_arguments(server.url, prompt="builtin", concurrency=CONCURRENCY),
            answers=answers, out=out, RUBRIC_CACHE_DIR=str(tmp_path / f"cache{processes}"),
        )  # fmt: skip
        assert done.code == 0, done.text
        found[processes], lines[processes] = results(out), all_samples(out)
        calls[processes] = sorted(call.prompt for call in server.received)
        assert server.peak <= CONCURRENCY
        assert server.model_lists == 1  # one check
        assert len(lines_with(done, "Judge: ")) == 1
        assert f"Judge: {len(server.received)} calls" in done.errors
    assert without_clock(found[ranks]) == without_clock(found[1])
    assert lines[ranks] == lines[1]
    assert calls[ranks] == calls[1]
    assert metrics(found[ranks], task)["judge_coverage"] == 1


def test_ranks_without_documents_and_groups(world: World, two_splits: Path, tmp_path: Path) -> None:
    world.failing = {"legal-3-c0", "finance-2-c1"}
    with StubServer(world.respond) as server:
        found, text = {}, {}
        for processes, limit in ((1, []), (4, []), (3, ["--limit", "1"]), (1, ["--limit", "1"])):
            out = tmp_path / f"out{processes}{''.join(limit)}"
            done = run(
                processes, "--tasks", "prbench", *limit,
                *judge_arguments(server.url, prompt="builtin", max_retries=0),
                answers=two_splits, out=out, RUBRIC_CACHE_DIR=str(tmp_path / f"cache{len(found)}"),
            )  # fmt: skip
            assert done.code == 0, done.text
            name = (processes > 1, *limit)
            found[name] = without_clock(results(out)), all_samples(out)
            text[name] = done
    assert found[True,] == found[False,]
    assert found[True, "--limit", "1"] == found[False, "--limit", "1"]
    judging = found[True,][0]["configs"]["prbench_legal"]["metadata"]["judging"]
    assert judging["failed"] == 2
    assert judging["calls"] == sum(len(case.items) for case in FINANCE + LEGAL)
    for name in ((True,), (False,)):
        for task, document in (("prbench_finance", "finance-2"), ("prbench_legal", "legal-3")):
            assert len(lines_with(text[name], f"{task}: without a score: {document}")) == 1
    assert metrics(found[True,][0], "prbench")["judge_coverage"] == pytest.approx(4 / 6)


def test_stock_lm_eval_has_ranks_too(world: World, two_splits: Path, tmp_path: Path) -> None:
    with StubServer(world.respond) as server:
        found = []
        for processes in (1, 2):
            out = tmp_path / f"out{processes}"
            done = run(
                processes, "--include_path", lm_eval_tasks.path(), "--tasks", "prbench",
                *judge_metadata(server.url, prompt="builtin"), "--apply_chat_template",
                answers=two_splits, out=out, program="lm_eval", RUBRIC_JUDGE_CACHE="off",
            )  # fmt: skip
            assert done.code == 0, done.text
            assert len(lines_with(done, "Judge: ")) == 1
            found.append((without_clock(results(out)), all_samples(out)))
    assert found[0] == found[1]


def test_two_steps_equal_one(world: World, two_splits: Path, tmp_path: Path) -> None:
    with StubServer(world.respond) as server:
        chosen = judge_arguments(server.url, prompt="builtin")
        one = run(1, "--tasks", "prbench", *chosen, answers=two_splits, out=tmp_path / "one")
        first = run(
            2, "--tasks", "prbench", "--predict_only",
            answers=two_splits, out=tmp_path / "answers",
        )  # fmt: skip
        assert (one.code, first.code) == (0, 0), one.text + first.text
        second = command(
            "python", "-m", "custom_metrics.cli", "score", str(tmp_path / "answers"), *chosen,
            "--output_path", str(tmp_path / "two"),
        )  # fmt: skip
        assert second.code == 0, second.text
    assert results(tmp_path / "two")["results"] == results(tmp_path / "one")["results"]


def test_a_budget_holds_for_all_ranks_and_the_same_command_goes_on(
    world: World, two_splits: Path, tmp_path: Path
) -> None:
    budget, calls = 11, sum(len(case.items) for case in FINANCE + LEGAL)
    with StubServer(world.respond) as server:
        for out, limits in ((tmp_path / "part", {"max_calls": budget}), (tmp_path / "all", {})):
            done = run(
                2, "--tasks", "prbench", *judge_arguments(server.url, prompt="builtin", **limits),
                answers=two_splits, out=out,
            )  # fmt: skip
            assert done.code == 0, done.text
            if limits:
                assert len(server.received) == budget
                assert len(lines_with(done, "share is spent")) == 1
                judging = results(out)["configs"]["prbench_legal"]["metadata"]["judging"]
                assert judging["calls"] == budget
        assert len(server.received) == calls  # and no call twice
    assert metrics(results(tmp_path / "all"), "prbench")["judge_coverage"] == 1


def bounded(runner: Callable[[], Finished]) -> Finished:
    begun = time.monotonic()
    done = runner()
    assert time.monotonic() - begun < BOUND_S, done.text
    assert done.code != 0, done.text
    return done


def kept_answers(cache: Path) -> dict[str, str]:
    """What is kept of a failed run, in one folder."""
    (folder,) = (cache / "answers").iterdir()
    return {
        identifier: answer
        for path in folder.glob("*.json")
        for identifier, answer in json.loads(path.read_text(encoding="utf-8")).items()
    }


@pytest.mark.parametrize("program", ["lm-eval-rubrics", "lm_eval"])
def test_a_judge_that_stops_on_one_rank_ends_all(
    world: World, two_splits: Path, tmp_path: Path, program: str
) -> None:
    """A call of the second rank's document fails for good, while the first one's take minutes."""
    world.failing = {"finance-2-c1"}

    def respond(call: Received) -> Reply:
        reply = world.respond(call)
        slow = "finance-1" in call.prompt or "legal-3" in call.prompt
        return Reply(reply.text, delay=300) if slow else reply

    settings = {"prompt": "builtin", "on_failure": "raise", "concurrency": CONCURRENCY}
    cache = tmp_path / "cache"
    with StubServer(respond) as server:
        chosen = (
            judge_arguments(server.url, **settings)
            if program == "lm-eval-rubrics"
            else [*judge_metadata(server.url, **settings), "--include_path", lm_eval_tasks.path()]
        )
        done = bounded(
            lambda: run(
                2, "--tasks", "prbench", *chosen, answers=two_splits, out=tmp_path / "out",
                program=program, RUBRIC_CACHE_DIR=str(cache),
            )
        )  # fmt: skip
    (line,) = lines_with(done, "on_failure is raise")
    assert line.startswith("error: ")
    assert "The 6 answers are kept in" in line
    assert kept_answers(cache) == json.loads(two_splits.read_text(encoding="utf-8"))
    assert not list(tmp_path.rglob("results_*.json"))


def test_a_refused_key_ends_all(world: World, two_splits: Path, tmp_path: Path) -> None:
    def respond(call: Received) -> Reply:
        return world.respond(call) if call.number < 4 else Reply(status=401)

    with StubServer(respond) as server:
        done = bounded(
            lambda: run(
                3, "--tasks", "prbench", *judge_arguments(server.url, prompt="builtin"),
                answers=two_splits, RUBRIC_CACHE_DIR=str(tmp_path / "cache"),
            )
        )  # fmt: skip
    (line,) = lines_with(done, "answers are kept in")
    assert "key" in line
    assert len(kept_answers(tmp_path / "cache")) == 6


@pytest.mark.parametrize("program", ["lm-eval-rubrics", "lm_eval"])
def test_a_judge_that_cannot_be_asked_ends_all_before_anything_is_generated(
    two_splits: Path, program: str
) -> None:
    nowhere = "http://127.0.0.1:9/v1"
    chosen: Sequence[str] = judge_arguments(nowhere, prompt="builtin")
    if program == "lm_eval":
        chosen = [*judge_metadata(nowhere, prompt="builtin"), "--include_path",
                  lm_eval_tasks.path()]  # fmt: skip
    done = bounded(
        lambda: run(2, "--tasks", "prbench", *chosen, answers=two_splits, program=program)
    )
    assert len(lines_with(done, "cannot be reached")) == 1
    assert "Running generate_until" not in done.errors


def test_what_cannot_be_shared_is_refused(world: World, two_splits: Path) -> None:
    with StubServer(world.respond) as server:
        for settings, model, model_args, message in (
            ({"concurrency": 1}, "ranked", "", "concurrency: 1 cannot be shared by 2 processes"),
            ({}, "prefilled", "", "a launcher started 2 processes"),
            (
                {},
                "ranked",
                f"path={two_splits},same_rank=True",
                "the model says that there are 2 ranks, and they are 0, 0",
            ),
        ):
            chosen = judge_arguments(server.url, prompt="builtin", **settings)
            done = bounded(
                lambda chosen=chosen, model=model, model_args=model_args: run(  # type: ignore[misc]
                    2, "--tasks", "prbench", *chosen,
                    answers=two_splits, model=model, model_args=model_args,
                )
            )  # fmt: skip
            assert f"error: {message}" in done.errors.replace("judge concurrency", "concurrency")
            assert "custom_metrics/" not in done.errors  # no traceback, but for torchrun's own
        assert server.received == []


def test_a_hugging_face_model_without_ranks_is_refused_before_it_generates(
    world: World, two_splits: Path, tmp_path: Path
) -> None:
    """On a CPU its every process has all documents, which is known once it is loaded."""
    pytest.importorskip("transformers", reason="the hf model needs transformers")
    tiny = tmp_path / "tiny"
    made = command("python", str(MODEL.with_name("tiny_llama.py")), str(tiny))
    assert made.code == 0, made.text
    with StubServer(world.respond) as server:
        done = bounded(
            lambda: run(
                2, "--tasks", "prbench", "--device", "cpu",
                *judge_arguments(server.url, prompt="builtin"), answers=two_splits,
                model="hf", model_args=f"pretrained={tiny},dtype=float32",
            )
        )  # fmt: skip
        assert server.received == []
    assert "error: a launcher started 2 processes" in done.errors
    assert "Running generate_until" not in done.errors


def test_the_recorded_run_in_two_processes(
    official_data: Path, official_prompts: Path, tmp_path: Path
) -> None:
    recorded = RecordedRun(official_data, official_prompts)
    import pyarrow.parquet as parquet

    rows = parquet.read_table(official_data / "prbench" / "finance_hard.parquet").to_pylist()
    lines = (official_data / "prbench" / "recorded_run.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in lines.splitlines()]
    assert len({rows[i]["task"] for i in recorded.indices}) == len(entries)
    answers = write_answers(
        tmp_path / "a.json", {entry["task"]: entry["response"] for entry in entries}
    )
    with StubServer(recorded.respond) as server:
        done = run(
            2, "--tasks", "prbench_finance_hard", "--samples", recorded.samples,
            *judge_arguments(server.url), answers=answers, out=tmp_path / "out",
        )  # fmt: skip
        assert done.code == 0, done.text
        assert len(server.received) == JUDGE_CALLS
    values = metrics(results(tmp_path / "out"), "prbench_finance_hard")
    assert round(values["clipped_score"], 6) == CLIPPED
    assert round(values["normalized_score"], 6) == NORMALIZED
    assert {k: round(v, 4) for k, v in values.items() if k in CATEGORIES} == CATEGORIES
    assert values["judge_coverage"] == 1
