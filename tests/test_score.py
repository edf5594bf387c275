"""``lm-eval-rubrics score``: saved answers, judged later, equal a run that did both at once."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from asking import CASES, forget_judges, wait_until
from background import running
from commands import judge_arguments, model_arguments, only, results, samples
from rows import FINANCE, LEGAL, World, write_data
from stub_server import Received, Reply, StubServer, verdict

from custom_metrics.cli import main

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


pytestmark = pytest.mark.usefixtures("small_data")


def generate(server: StubServer, out: Path, *more: str, tasks: str = "prbench") -> None:
    """``lm_eval``'s own way to save answers: --predict_only."""
    command = ["run", "--tasks", tasks, "--output_path", str(out), *model_arguments(server.url)]
    assert main([*command, "--no_answer_store", *more]) == 0


def one_step(server: StubServer, out: Path, tasks: str = "prbench") -> None:
    generate(server, out, "--log_samples", *judge_arguments(server.url, prompt="builtin"),
             tasks=tasks)  # fmt: skip


def scored(server: StubServer, out: Path, *given: str | Path) -> int:
    judge = judge_arguments(server.url, prompt="builtin")
    return main(["score", *map(str, given), "--output_path", str(out), *judge])


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    """What a results file says of scores and documents."""
    names = ("results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better",
             "n-samples", "task_hashes", "model_name", "config")  # fmt: skip
    return json.loads(json.dumps({name: found.get(name) for name in names}))


def lines_of(out: Path, task: str) -> list[dict[str, Any]]:
    lines = samples(out, task)
    for line in lines:
        for criterion in line["doc"].get("criteria", []):
            criterion.pop("attempts")
    return lines


# --- equalities ----------------------------------------------------------------------------------


def test_scoring_saved_answers_equals_a_run_that_does_both(
    server: StubServer, tmp_path: Path
) -> None:
    one_step(server, tmp_path / "one")
    generate(server, tmp_path / "saved", "--predict_only")
    server.reset()
    assert scored(server, tmp_path / "two", tmp_path / "saved") == 0
    assert {call.model for call in server.received} <= {"judge"}
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    assert without_times(one) == without_times(two)
    assert one["groups"]["prbench"] == two["groups"]["prbench"]
    for task in ("prbench_finance", "prbench_legal"):
        assert repr(lines_of(tmp_path / "one", task)) == repr(lines_of(tmp_path / "two", task))
        config = two["configs"][task]
        assert config["metadata"]["scored_from"] == [
            only(tmp_path / "saved", f"samples_{task}_*.jsonl").name
        ]
        assert set(one["configs"][task]) == set(config)
    assert only(tmp_path / "two", "results_*.json").parent.name == "model"
    assert not list((tmp_path / "two").rglob("*.part"))


def test_a_full_runs_samples_are_judged_anew_by_another_judge(
    server: StubServer, tmp_path: Path
) -> None:
    one_step(server, tmp_path / "one")
    server.reset()
    judge = [*judge_arguments(server.url, prompt="builtin"), "temperature=0"]
    out = ["--output_path", str(tmp_path / "two")]
    assert main(["score", str(tmp_path / "one"), *out, *judge]) == 0
    assert len(server.received) == sum(len(case.items) for case in FINANCE + LEGAL)
    assert results(tmp_path / "one")["results"] == results(tmp_path / "two")["results"]
    (line, *_) = samples(tmp_path / "two", "prbench_finance")
    assert line["doc"]["judge"]["temperature"] == 0


def test_one_task_alone_has_no_group_row(server: StubServer, tmp_path: Path) -> None:
    generate(server, tmp_path / "saved", "--predict_only")
    file = only(tmp_path / "saved", "samples_prbench_legal_*.jsonl")
    assert scored(server, tmp_path / "two", file) == 0
    assert set(results(tmp_path / "two")["results"]) == {"prbench_legal"}


def test_what_the_store_has_needs_no_endpoint_and_no_key(
    server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(server, tmp_path / "saved", "--predict_only")
    monkeypatch.setenv("JUDGES_KEY", "a key of this test")
    assert scored(server, tmp_path / "two", tmp_path / "saved") == 0
    forget_judges()
    server.reset()
    assert scored(server, tmp_path / "three", f"{tmp_path}/saved/*/samples_*.jsonl") == 0
    assert not server.received
    assert not server.model_lists
    assert results(tmp_path / "two")["results"] == results(tmp_path / "three")["results"]


def test_the_bundled_chinese_items_are_scored_with_their_overall(tmp_path: Path) -> None:
    answers = Path(__file__).parents[1] / "lm_eval_tasks/plawbench/sample_answers/middling.json"
    builtin = ["--metadata", '{"task_prompt": "builtin"}']
    lexical = ["--judge", "backend=lexical", "prompt=builtin"]
    run = ["run", "--model", "prefilled", "--model_args", f"path={answers}", *builtin, "--tasks",
           "plawbench_sample", "--log_samples"]  # fmt: skip
    assert main([*run, "--output_path", str(tmp_path / "one"), *lexical]) == 0
    # The files say which task prompt the answers were given to.
    score = ["score", str(tmp_path / "one"), "--output_path", str(tmp_path / "two"), *lexical]
    assert main(score) == 0
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    assert without_times(one) == without_times(two)
    assert two["groups"]["plawbench_sample"]["overall,none"] > 0


def test_a_score_that_was_killed_is_finished_without_a_call_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_data(tmp_path / "eight", finance=CASES)
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(data))
    world = World(CASES)

    def slowly(call: Received) -> Reply:
        reply = world.respond(call)
        return reply if call.model == "model" else Reply(reply.text, delay=0.15)

    with StubServer(slowly, models=("model", "judge")) as server:
        generate(server, tmp_path / "saved", "--predict_only", tasks="prbench_finance")
        server.reset()
        judge = judge_arguments(server.url, prompt="builtin")
        command = ["score", str(tmp_path / "saved"), "--output_path", str(tmp_path / "two"),
                   *judge, "concurrency=2"]  # fmt: skip
        with running("lm-eval-rubrics", *command, log=tmp_path / "log") as run:
            wait_until(lambda: len(server.received) >= 12 or run.ended())
            run.send(signal.SIGKILL)
            assert run.code() == -signal.SIGKILL, run.text
        before = len(server.received)
        assert main(command) == 0
        calls = sum(len(case.items) for case in CASES)
        assert before < calls
        assert calls <= len(server.received) <= calls + 2  # two were in flight
        one_step(server, tmp_path / "one", tasks="prbench_finance")
    assert results(tmp_path / "one")["results"] == results(tmp_path / "two")["results"]
    # The model's folder, the results and the samples: the killed one left nothing.
    assert len(list((tmp_path / "two").rglob("*"))) == 3


# --- files that do not fit -----------------------------------------------------------------------


@pytest.fixture
def saved(server: StubServer, tmp_path: Path) -> Path:
    generate(server, tmp_path / "saved", "--predict_only", tasks="prbench_finance")
    server.reset()
    return only(tmp_path / "saved", "samples_*.jsonl")


def changed(line: str, **doc: Any) -> str:
    row = json.loads(line)
    row["doc"].update(doc)
    return json.dumps(row)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("cut off", "ends in the middle of a line"),
        ("twice", "a second answer to"),
        ("stranger", "no document 'nobody'"),
        ("other data", "other data or another version"),
        ("no response", "no response"),
        ("no samples", "not a line of a samples file"),
        ("empty", "no lines"),
        ("not JSON", "line 1: not JSON"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_anything_is_asked(
    what: str, named: str, saved: Path, server: StubServer, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    lines = saved.read_text("utf-8").splitlines(keepends=True)
    other = json.loads(lines[0])
    saved.write_text(
        {
            "cut off": "".join(lines)[:-40],
            "twice": "".join([*lines, lines[0]]),
            "stranger": changed(lines[0], id="nobody"),
            "other data": json.dumps({**other, "doc_hash": "0" * 64}),
            "no response": json.dumps({**other, "resps": [[None]]}),
            "no samples": '{"a": 1}\n',
            "empty": "",
            "not JSON": "nonsense\n" + "".join(lines),
        }[what],
        encoding="utf-8",
    )
    assert scored(server, tmp_path / "two", saved) == 2
    assert named in capsys.readouterr().err
    assert not server.received
    assert not list((tmp_path / "two").rglob("*.json*"))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("samples_mmlu_2026-01-01T00-00-00.000001.jsonl", "none of this project's tasks"),
        ("samples_prbench_2026-01-01T00-00-00.000001.jsonl", "none of this project's tasks"),
        ("answers.jsonl", "not the name of a samples file"),
    ],
)
def test_a_file_of_another_task_is_refused(
    name: str, named: str, saved: Path, server: StubServer, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = saved.with_name(name)
    shutil.copy(saved, other)
    assert scored(server, tmp_path / "two", other) == 2
    assert named in capsys.readouterr().err


def test_a_path_without_any_file_is_named(
    server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scored(server, tmp_path / "two", tmp_path / "nowhere") == 2
    assert "no samples file there" in capsys.readouterr().err


def test_fewer_documents_are_scored_with_a_warning_that_counts_them(
    saved: Path, server: StubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = saved.read_text("utf-8").splitlines(keepends=True)
    saved.write_text("".join(lines[:2]), encoding="utf-8")
    assert scored(server, tmp_path / "two", saved) == 0
    assert f"have 2 of its {len(FINANCE)} documents" in caplog.text
    found = results(tmp_path / "two")["n-samples"]["prbench_finance"]
    assert found == {"original": len(FINANCE), "effective": 2}


def test_another_task_prompt_than_the_answers_were_given_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = Path(__file__).parents[1] / "lm_eval_tasks/plawbench/sample_answers/middling.json"
    lexical = ["--judge", "backend=lexical", "prompt=builtin"]
    builtin = ["--metadata", '{"task_prompt": "builtin"}']
    run = ["run", "--model", "prefilled", "--model_args", f"path={answers}", *builtin, "--tasks",
           "plawbench_sample", "--log_samples"]  # fmt: skip
    assert main([*run, "--output_path", str(tmp_path / "one"), *lexical]) == 0
    score = ["score", str(tmp_path / "one"), "--metadata", '{"task_prompt": "official"}', *lexical]
    assert main(score) == 2
    assert "given to the task prompt builtin" in capsys.readouterr().err


def test_two_judges_at_the_same_time_may_write_to_one_folder(tmp_path: Path) -> None:
    """As one does it for ``agree``: each run's samples stay its own."""
    world = World()

    def judged(call: Received) -> Reply:
        if call.model == "model":
            return world.respond(call)
        return Reply(verdict(call.model == "yes"), delay=0.05)

    with StubServer(judged, models=("model", "yes", "no")) as server:
        generate(server, tmp_path / "saved", "--predict_only", tasks="prbench_finance")
        command = ["score", str(tmp_path / "saved"), "--output_path", str(tmp_path / "two")]
        names = ("yes", "no")
        with ExitStack() as stack:
            runs = [
                stack.enter_context(
                    running("lm-eval-rubrics", *command,
                            *judge_arguments(server.url, model=name, prompt="builtin"),
                            log=tmp_path / name)
                )
                for name in names
            ]  # fmt: skip
            for run in runs:
                assert run.code() == 0, run.text
    found = {}
    for path in (tmp_path / "two").rglob("results_*.json"):
        stamp = path.name.removeprefix("results_").removesuffix(".json")
        content = json.loads(path.read_text(encoding="utf-8"))
        (config,) = content["configs"].values()
        samples = path.with_name(f"samples_prbench_finance_{stamp}.jsonl")
        lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        met = {c["met"] for line in lines for c in line["doc"]["criteria"]}
        found[config["metadata"]["judge"]["model"]] = met
    assert found == {"yes": {True}, "no": {False}}
