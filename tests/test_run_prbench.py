"""PRBench from end to end on a small data set of the tests' own, every value computed by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Finished, command, judge_arguments, metrics, model_arguments, results, samples
from in_process import Results, chat_model, evaluate, judge_at
from lm_eval.models import api_models
from lm_eval.utils import make_table
from plain_server import PlainServer
from rows import (
    ACCURACY,
    FINANCE,
    LAW,
    LEGAL,
    RISK,
    UTILITY,
    Case,
    Item,
    World,
    case_of,
    category_mean,
    clipped,
    clipped_mean,
    criterion_of,
    mean,
    normalized,
    normalized_mean,
    write_answers,
    write_data,
)
from stub_server import Received, Reply, StubServer, openai_error, unauthorized, unknown_model

from custom_metrics.cli import main
from custom_metrics.errors import ConfigError, JudgeError
from custom_metrics.run import MaskedArgs

CRITERIA = sum(len(case.items) for case in FINANCE)
SECRET = "sk-a-secret-that-nobody-may-see"


pytestmark = pytest.mark.usefixtures("small_data")


def judge_calls(server: StubServer) -> list[Received]:
    return [call for call in server.received if call.model == "judge"]


def model_calls(server: StubServer) -> list[Received]:
    return [call for call in server.received if call.model == "model"]


def ours(
    server: StubServer, *arguments: str, tasks: str = "prbench_finance", **settings: Any
) -> Finished:
    """``lm-eval-rubrics run`` with the server as model and judge."""
    return command(
        "lm-eval-rubrics", "run", "--tasks", tasks,
        *model_arguments(server.url, concurrent=4),
        *judge_arguments(server.url, **{"prompt": "builtin", "max_retries": 0, **settings}),
        *arguments,
    )  # fmt: skip


def ours_here(server: StubServer, *arguments: str) -> int:
    """The exit code of :func:`ours`, run in this process."""
    prompt = {} if any(a.startswith("prompt=") for a in arguments) else {"prompt": "builtin"}
    judge = judge_arguments(server.url, max_retries=0, **prompt)
    model = [] if "--model" in arguments else model_arguments(server.url)
    code: int = main(["run", "--tasks", "prbench_finance", *model, *judge, *arguments])
    return code


def row_of(found: Results, name: str = "prbench_finance") -> dict[str, Any]:
    return metrics(found, name)


def changed(case: Case, **met: bool) -> Case:
    """``case`` with other verdicts for the criteria ``c0``, ``c1``, …"""
    items = [
        dataclasses.replace(item, met=met.get(f"c{number}", item.met))
        for number, item in enumerate(case.items)
    ]
    return dataclasses.replace(case, items=tuple(items))


def unanswered(case: Case) -> Case:
    """``case`` as an empty answer is scored: nothing is met."""
    return changed(case, **{f"c{number}": False for number in range(len(case.items))})


# --- scores --------------------------------------------------------------------------------------


def test_every_metric_equals_the_formula_over_weights_and_verdicts(server: StubServer) -> None:
    found = row_of(
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))
    )
    assert found["clipped_score"] == pytest.approx(clipped_mean(FINANCE))
    assert found["normalized_score"] == pytest.approx(normalized_mean(FINANCE))
    for name, category in (
        ("category_financial_accuracy", ACCURACY),
        ("category_practical_utility", UTILITY),
        ("category_risk_regulatory_disclosure", RISK),
    ):
        assert found[name] == pytest.approx(category_mean(FINANCE, category))
    assert found["judge_coverage"] == 1
    assert found["empty_answers"] == 0
    assert len(judge_calls(server)) == CRITERIA
    values = [normalized(case.items) for case in FINANCE]
    variance = sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)
    assert found["normalized_score_stderr"] == pytest.approx(math.sqrt(variance / len(values)))


def test_the_model_gets_the_chat_of_the_data_turn_by_turn(server: StubServer) -> None:
    evaluate("prbench_finance", **chat_model(server.url), predict_only=True)
    received = {case_of(call): call.messages for call in model_calls(server)}
    assert received == {case.id: case.messages for case in FINANCE}


def test_the_judge_sees_the_whole_conversation_and_one_criterion(server: StubServer) -> None:
    evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))
    prompts = {criterion_of(call): call.prompt for call in judge_calls(server)}
    assert len(prompts) == CRITERIA
    for case in FINANCE:
        chat = [*case.messages, {"role": "assistant", "content": f"An answer to {case.id}."}]
        transcript = "\n".join(f"{m['role']}: {m['content']}" for m in chat)
        for number in range(len(case.items)):
            prompt = prompts[case.tag(number)]
            assert transcript in prompt
            assert prompt.count("The response does what [") == 1


# --- calls that fail for good --------------------------------------------------------------------

# Of finance-1, one criterion that the judge would find met, and one that costs points.
FAILING = {"finance-1-c0", "finance-1-c2"}
WORST = (changed(FINANCE[0], c0=False, c2=True), *FINANCE[1:])
BEST = (changed(FINANCE[0], c0=True, c2=False), *FINANCE[1:])


def test_on_failure_exclude_leaves_the_document_out_and_says_so(
    server: StubServer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.failing = FAILING
    found = row_of(
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))
    )
    rest = FINANCE[1:]
    assert found["clipped_score"] == pytest.approx(clipped_mean(rest))
    assert found["normalized_score"] == pytest.approx(normalized_mean(rest))
    assert found["category_financial_accuracy"] == pytest.approx(category_mean(rest, ACCURACY))
    assert math.isnan(found["category_risk_regulatory_disclosure"])  # finance-1 alone has it
    assert found["judge_coverage"] == pytest.approx(2 / 3)
    assert found["clipped_score_low"] == pytest.approx(clipped_mean(WORST))
    assert found["clipped_score_high"] == pytest.approx(clipped_mean(BEST))
    (warning,) = [message for message in caplog.messages if "left out of the means" in message]
    assert "prbench_finance: 1 of 3 documents" in warning
    assert f"between {clipped_mean(WORST):.4f} and {clipped_mean(BEST):.4f}" in warning


def test_on_failure_unmet_counts_the_failed_calls_as_not_met(
    server: StubServer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.failing = FAILING
    judge = judge_at(server.url, on_failure="unmet")
    found = row_of(evaluate("prbench_finance", **chat_model(server.url), judge=judge))
    counted = (changed(FINANCE[0], c0=False, c2=False), *FINANCE[1:])
    assert found["clipped_score"] == pytest.approx(clipped_mean(counted))
    assert found["normalized_score"] == pytest.approx(normalized_mean(counted))
    assert found["category_financial_accuracy"] == pytest.approx(category_mean(counted, ACCURACY))
    assert found["judge_coverage"] == 1
    assert "left out of the means" not in caplog.text


def test_on_failure_raise_ends_the_run_and_keeps_the_answers(
    server: StubServer, world: World
) -> None:
    world.failing = FAILING
    judge = judge_at(server.url, on_failure="raise")
    with pytest.raises(JudgeError, match="on_failure is raise") as caught:
        evaluate("prbench_finance", **chat_model(server.url), judge=judge)
    assert kept_answers(str(caught.value)) == {c.id: f"An answer to {c.id}." for c in FINANCE}


def test_calls_that_all_fail_do_not_end_well(server: StubServer, world: World) -> None:
    error = openai_error("No such field.", "invalid_request_error", code=None)
    world.judge_reply = Reply(status=400, error=error)
    with pytest.raises(JudgeError, match="No such field"):
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))


def kept_path(text: str) -> Path:
    """The file or folder of answers that an error names."""
    found = re.search(r"are kept in (\S+);", text)
    assert found, text
    return Path(found[1])


def kept_answers(text: str) -> dict[str, str]:
    """Answers by id; of several tasks together."""
    path = kept_path(text)
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    return {i: a for file in files for i, a in json.loads(file.read_text("utf-8")).items()}


def test_an_unknown_judge_model_ends_the_run_and_the_kept_answers_can_be_judged_later(
    server: StubServer, world: World
) -> None:
    world.judge_reply = unknown_model("judge")
    with pytest.raises(JudgeError, match="does not know the model 'judge'") as caught:
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))
    world.judge_reply = None
    server.reset()
    kept = {"path": str(kept_path(str(caught.value)))}
    found = row_of(
        evaluate("prbench_finance", model="prefilled", model_args=kept, judge=judge_at(server.url))
    )
    assert found["clipped_score"] == pytest.approx(clipped_mean(FINANCE))
    assert model_calls(server) == []


def test_a_refused_key_ends_the_run_with_code_3_and_keeps_the_answers(
    server: StubServer, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.judge_reply = unauthorized()
    assert ours_here(server) == 3
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert "refuses the API key" in errors.strip().splitlines()[-1]
    assert kept_answers(errors) == {case.id: f"An answer to {case.id}." for case in FINANCE}


def test_the_answers_of_all_tasks_are_kept_when_the_judge_gives_up(
    server: StubServer, world: World
) -> None:
    world.judge_reply = unauthorized()
    with pytest.raises(JudgeError) as caught:
        evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url))
    assert kept_answers(str(caught.value)).keys() == {case.id for case in FINANCE + LEGAL}


def test_answers_are_kept_by_task_and_judged_later_from_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: StubServer, world: World
) -> None:
    # A hard subset has the ids of the full one.
    both = write_data(tmp_path / "both", finance=FINANCE, finance_hard=FINANCE[:2])
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(both))
    tasks = ["prbench_finance", "prbench_finance_hard"]
    world.judge_reply = unauthorized()
    folders = []
    for _ in range(2):  # within a second
        with pytest.raises(JudgeError) as caught:
            evaluate(*tasks, **chat_model(server.url), judge=judge_at(server.url))
        folders.append(kept_path(str(caught.value)))
    assert folders[0] != folders[1]
    sizes = {f.stem: len(json.loads(f.read_text("utf-8"))) for f in folders[0].glob("*.json")}
    assert sizes == {"prbench_finance": len(FINANCE), "prbench_finance_hard": 2}
    world.judge_reply = None
    found = evaluate(
        *tasks, model="prefilled", model_args={"path": str(folders[0])}, judge=judge_at(server.url)
    )
    score = found["results"]["prbench_finance_hard"]["clipped_score,none"]
    assert score == pytest.approx(clipped_mean(FINANCE[:2]))


def test_a_judge_that_gave_up_is_not_asked_about_later_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: StubServer, world: World
) -> None:
    many = [Case(f"finance-{n}", (Item(10, ACCURACY, True),) * 3) for n in range(1, 201)]
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "many", finance=many)))
    # Long ones, so that the first calls are back before the last document's are made.
    answers = write_answers(tmp_path / "answers.json", {c.id: "<b>Yes</b>.\n" * 8000 for c in many})
    world.judge_reply = unauthorized()
    with pytest.raises(JudgeError):
        evaluate(
            "prbench_finance",
            model="prefilled",
            model_args={"path": str(answers)},
            judge=judge_at(server.url, concurrency=2),
        )
    assert len(judge_calls(server)) <= 2


# --- groups --------------------------------------------------------------------------------------


def test_a_group_pools_the_documents_and_then_clips(server: StubServer) -> None:
    found = evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url))
    both = FINANCE + LEGAL
    # What tells the two apart: a subset whose mean is below zero.
    assert mean(clipped(case.items) for case in LEGAL) < 0
    wrong = mean([clipped_mean(FINANCE), clipped_mean(LEGAL)])
    group = row_of(found, "prbench")
    assert row_of(found, "prbench_legal")["clipped_score"] == 0
    assert group["clipped_score"] == pytest.approx(clipped_mean(both))
    assert abs(group["clipped_score"] - wrong) > 0.05
    assert group["normalized_score"] == pytest.approx(normalized_mean(both))
    assert group["category_practical_utility"] == pytest.approx(category_mean(both, UTILITY))
    assert group["judge_coverage"] == 1
    assert found["results"]["prbench"]["sample_len"] == 6
    assert 0 < group["clipped_score_stderr"] < 1


def test_a_category_of_one_subset_only_is_in_that_subset_and_in_the_group(
    server: StubServer,
) -> None:
    found = evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url))
    assert "category_legal_accuracy" not in row_of(found, "prbench_finance")
    assert "category_financial_accuracy" not in row_of(found, "prbench_legal")
    group = row_of(found, "prbench")
    assert group["category_legal_accuracy"] == pytest.approx(category_mean(LEGAL, LAW))
    assert group["category_financial_accuracy"] == pytest.approx(category_mean(FINANCE, ACCURACY))


def test_a_group_of_one_document_each_has_a_value_and_the_subsets_no_error(
    server: StubServer,
) -> None:
    found = evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url), limit=1)
    first = (FINANCE[0], LEGAL[0])
    assert row_of(found, "prbench")["clipped_score"] == pytest.approx(clipped_mean(first))
    assert row_of(found, "prbench")["normalized_score"] == pytest.approx(normalized_mean(first))
    for name in ("prbench_finance", "prbench_legal"):
        leaf = row_of(found, name)
        assert {v for k, v in leaf.items() if k.endswith("_stderr")} == {"N/A"}
    values = [normalized(case.items) for case in first]
    spread = abs(values[0] - values[1]) / 2  # s / √n of two values
    assert row_of(found, "prbench")["normalized_score_stderr"] == pytest.approx(spread)


def test_documents_left_out_of_one_subset_are_left_out_of_the_group(
    server: StubServer, world: World
) -> None:
    world.failing = {"legal-1-c0"}
    found = evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url))
    group = row_of(found, "prbench")
    rest = [case for case in FINANCE + LEGAL if case.id != "legal-1"]
    assert group["clipped_score"] == pytest.approx(clipped_mean(rest))
    assert group["judge_coverage"] == pytest.approx(5 / 6)


def test_the_table_of_a_group_with_one_document_each_can_be_printed(server: StubServer) -> None:
    found = evaluate("prbench", **chat_model(server.url), judge=judge_at(server.url), limit=1)
    table = make_table(found, "groups")
    (row,) = [line for line in table.splitlines() if "|clipped_score " in line]
    assert f"{clipped_mean([FINANCE[0], LEGAL[0]]):.4f}" in row
    (lowest,) = [line for line in table.splitlines() if "|clipped_score_low " in line]
    assert "N/A" in lowest


# --- answers that are none -----------------------------------------------------------------------


def test_an_empty_or_cut_off_answer_costs_no_call_and_meets_nothing(
    server: StubServer, world: World
) -> None:
    world.answers = {"finance-1": " \n", "finance-2": "<think>First, the client"}
    found = evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))
    counted = (unanswered(FINANCE[0]), unanswered(FINANCE[1]), FINANCE[2])
    row = row_of(found)
    assert row["clipped_score"] == pytest.approx(clipped_mean(counted))
    assert row["normalized_score"] == pytest.approx(normalized_mean(counted))
    assert row["empty_answers"] == 2
    assert row["judge_coverage"] == 1
    assert {criterion_of(call) for call in judge_calls(server)} == {
        FINANCE[2].tag(number) for number in range(len(FINANCE[2].items))
    }
    docs = {line["doc"]["id"]: line["doc"] for line in found["samples"]["prbench_finance"]}
    assert {name: doc["answer_status"] for name, doc in docs.items()} == {
        "finance-1": "empty",
        "finance-2": "cut_in_reasoning",
        "finance-3": "answered",
    }
    assert [c["met"] for c in docs["finance-2"]["criteria"]] == [False] * 3
    assert [c["attempts"] for c in docs["finance-2"]["criteria"]] == [0] * 3


def test_all_answers_empty_is_a_score_of_zero_and_no_error(
    server: StubServer, world: World
) -> None:
    world.answers = {case.id: "" for case in FINANCE}
    row = row_of(evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url)))
    assert row["clipped_score"] == 0
    assert row["normalized_score"] == pytest.approx(
        normalized_mean(unanswered(case) for case in FINANCE)
    )
    assert row["empty_answers"] == 3
    assert judge_calls(server) == []


@pytest.mark.parametrize("concurrent", [1, 4])
def test_an_answer_without_content_is_an_empty_one(
    concurrent: int, server: StubServer, world: World
) -> None:
    world.answers = {"finance-1": None}
    model = chat_model(server.url, concurrent)
    row = row_of(evaluate("prbench_finance", **model, judge=judge_at(server.url)))
    assert row["empty_answers"] == 1
    assert row["clipped_score"] == pytest.approx(
        clipped_mean([unanswered(FINANCE[0]), *FINANCE[1:]])
    )
    assert len(judge_calls(server)) == CRITERIA - len(FINANCE[0].items)


def test_the_harness_s_placeholder_for_no_content_is_not_graded(
    server: StubServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER sets, which the harness reads when it is imported.
    name = "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"
    monkeypatch.setattr(api_models, name, "[the model gave no answer]")
    world.answers = {"finance-1": None}
    row = row_of(evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url)))
    assert row["empty_answers"] == 1
    assert len(judge_calls(server)) == CRITERIA - len(FINANCE[0].items)


# --- samples -------------------------------------------------------------------------------------


def test_the_samples_hold_what_decided_each_score(
    server: StubServer, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", SECRET)
    world.failing = {"finance-3-c1"}
    world.answers = {
        "finance-1": "<think>Let me see.</think>\n\n\n\nA lone \ud800 surrogate.",
        "finance-2": "A NUL \x00 in between.",
    }
    done = ours(server, "--log_samples", "--output_path", str(tmp_path / "out"), temperature=0)
    assert done.code == 0, done.text
    lines = {line["doc"]["id"]: line for line in samples(tmp_path / "out", "prbench_finance")}
    assert list(lines) == [case.id for case in FINANCE]
    assert lines["finance-1"]["doc"]["answer"] == "A lone \ufffd surrogate."
    assert lines["finance-2"]["doc"]["answer"].startswith("A NUL \ufffd in between")
    for case in FINANCE:
        doc = lines[case.id]["doc"]
        assert doc["messages"] == case.messages
        assert doc["task"] == case.id
        assert (doc["field"], doc["topic"], doc["expert"]) == ("Finance", "Tests", "Expert")
        assert doc["turns"] == len(case.prompts)
        assert doc["economic_pathway"] == "Other"
        assert "decision_type" in doc
        assert "canary" not in doc
        assert doc["task_version"] == 1.0
        assert doc["judge"] == {
            "backend": "openai", "model": "judge", "endpoint": server.url, "api": "chat",
            "temperature": 0.0, "concurrency": 64, "timeout": 600.0, "max_retries": 0,
            "prompt": "builtin", "on_failure": "exclude", "structured": "json_schema",
        }  # fmt: skip
        assert doc["judge_prompt"]["name"] == "builtin"
        assert re.fullmatch(r"[0-9a-f]{64}", doc["judge_prompt"]["user"]["sha256"])
        for number, (item, kept) in enumerate(zip(case.items, doc["criteria"], strict=True)):
            failed = case.tag(number) in world.failing
            assert kept["id"] == case.tag(number)
            assert kept["weight"] == item.weight
            assert kept["category"] == item.category
            assert kept["met"] == (None if failed else item.met)
            assert kept["attempts"] == 1
            assert kept["explanation"] == (None if failed else f"So it is with {kept['id']}.")
            assert bool(kept["failure"]) == failed
        if case.id == "finance-3":
            assert math.isnan(lines[case.id]["clipped_score"])
        else:
            assert lines[case.id]["clipped_score"] == pytest.approx(clipped(case.items))
    assert SECRET in judge_calls(server)[0].headers["authorization"]
    assert_hidden(SECRET, done, tmp_path / "out")


def assert_hidden(secret: str, done: Finished, folder: Path) -> None:
    """``secret`` is in no stream and in no file below ``folder``."""
    assert secret not in done.text
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


# --- options of the harness ----------------------------------------------------------------------


def test_a_system_instruction_reaches_the_model_and_not_the_judge(server: StubServer) -> None:
    evaluate(
        "prbench_finance", **chat_model(server.url), judge=judge_at(server.url),
        system_instruction="Speak like a pirate.",
    )  # fmt: skip
    system = {"role": "system", "content": "Speak like a pirate."}
    received = {case_of(call): call.messages for call in model_calls(server)}
    assert received == {case.id: [system, *case.messages] for case in FINANCE}
    assert len(judge_calls(server)) == CRITERIA
    assert not any("pirate" in call.prompt for call in judge_calls(server))


def test_fewshot_as_multiturn_false_changes_nothing(server: StubServer) -> None:
    options = chat_model(server.url)
    evaluate("prbench_finance", **options, predict_only=True, fewshot_as_multiturn=False)
    received = {case_of(call): call.messages for call in model_calls(server)}
    assert received == {case.id: case.messages for case in FINANCE}


def test_few_shot_examples_are_refused_before_generation(server: StubServer) -> None:
    with pytest.raises(ConfigError, match=r"few-shot examples are not defined.*--num_fewshot"):
        evaluate(
            "prbench_finance", **chat_model(server.url), judge=judge_at(server.url), num_fewshot=2
        )
    assert server.received == []


def test_the_model_is_asked_for_8192_tokens_and_sent_no_empty_stop_list(
    server: StubServer,
) -> None:
    evaluate("prbench_finance", **chat_model(server.url), predict_only=True)
    for call in model_calls(server):
        assert call.body["max_tokens"] == 8192
        assert call.body.get("stop") is None


@pytest.mark.parametrize("name", ["max_tokens", "max_new_tokens", "max_gen_toks"])
def test_each_name_of_the_token_limit_overrides_the_task_s(name: str, server: StubServer) -> None:
    options = chat_model(server.url)
    evaluate("prbench_finance", **options, predict_only=True, gen_kwargs=f"{name}=77")
    for call in model_calls(server):
        limits = {k: v for k, v in call.body.items() if k.startswith("max_")}
        assert limits == {"max_tokens": 77}


def test_other_generation_arguments_reach_the_model(server: StubServer) -> None:
    evaluate(
        "prbench_finance", **chat_model(server.url), predict_only=True,
        gen_kwargs={"temperature": 0.7, "top_p": 0.9, "until": ["END"]},
    )  # fmt: skip
    for call in model_calls(server):
        assert (call.body["temperature"], call.body["top_p"]) == (0.7, 0.9)
        assert call.body["stop"] == ["END"]


def test_a_judge_that_is_the_model_under_test_is_warned_of(
    server: StubServer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def respond(call: Received) -> Reply:
        is_judge = "Reply with a JSON object" in call.prompt
        call = dataclasses.replace(
            call, body={**call.body, "model": "judge" if is_judge else "model"}
        )
        return world.respond(call)

    server.responder = respond
    evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url, model="model"))
    assert "The judge model is the model under test as well" in caplog.text


def test_without_a_chat_template_the_model_gets_a_transcript_and_the_user_one_warning(
    server: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complete(_: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "text": "An answer.", "finish_reason": "stop"}]}

    with PlainServer({"POST /v1/completions": complete}) as plain:
        url = f"{plain.origin}/v1/completions"
        code = ours_here(
            server, "--apply_chat_template", "false", "--output_path", str(tmp_path / "out"),
            "--model", "local-completions",
            "--model_args", f"model=base,base_url={url},tokenizer_backend=None",
        )  # fmt: skip
        sent = plain.bodies("POST /v1/completions")
    assert code == 0
    assert {body["prompt"] for body in sent} == {
        "\n".join(f"{m['role']}: {m['content']}" for m in case.messages) + "\nassistant:"
        for case in FINANCE
    }
    assert [body.get("stop") for body in sent] == [None] * 3
    assert capsys.readouterr().err.count("no chat template is applied") == 1
    row = metrics(results(tmp_path / "out"), "prbench_finance")
    assert row["clipped_score"] == pytest.approx(clipped_mean(FINANCE))


# --- the command ---------------------------------------------------------------------------------


def test_predict_only_asks_no_judge_and_needs_no_key_and_no_prompt(
    server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")  # o4-mini at OpenAI is the default judge
    output = str(tmp_path / "out")
    model = model_arguments(server.url)
    assert (
        main(["run", "--tasks", "prbench", "--predict_only", "--output_path", output, *model]) == 0
    )
    assert judge_calls(server) == []
    for task, cases in (("prbench_finance", FINANCE), ("prbench_legal", LEGAL)):
        lines = samples(tmp_path / "out", task)
        assert [line["doc"]["id"] for line in lines] == [case.id for case in cases]
        assert [line["resps"] for line in lines] == [[[f"An answer to {c.id}."]] for c in cases]


WRONG: dict[str, tuple[Sequence[str], int, str]] = {
    "an unknown setting": (["--judge", "modle=x"], 2, "the judge has no setting 'modle'"),
    "a value out of range": (["--judge", "concurrency=0"], 2, "concurrency takes calls in flight"),
    "a key on the command line": (["--judge", f"api_key={SECRET}"], 2, "a key is not taken here"),
    "the official prompt out of reach": (["--judge", "prompt=official"], 2, "could not be had"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_one_line_before_the_model_is_asked_for(
    name: str, server: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, code, said = WRONG[name]
    assert ours_here(server, *arguments) == code
    output, errors = capsys.readouterr()
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert said in errors
    assert output == ""
    assert SECRET not in errors
    assert server.received == []


def test_a_key_that_the_judge_refuses_is_found_out_before_the_model_is_asked(
    monkeypatch: pytest.MonkeyPatch, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", SECRET)
    with StubServer(world.respond, api_key="another") as server:
        assert ours_here(server) == 3
    errors = capsys.readouterr().err
    assert "refuses the API key (401)" in errors
    assert SECRET not in errors
    assert server.received == []


def test_secrets_of_model_and_judge_are_written_nowhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", f"{SECRET}-of-the-judge")
    with StubServer(world.respond, models=("model", "judge")) as server:
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "prbench", "--log_samples",
            "--model", "local-chat-completions", "--model_args",
            f"model=model,base_url={server.url}/chat/completions,auth_token={SECRET}-of-the-model",
            *judge_arguments(server.url, prompt="builtin", api_key_env="MY_JUDGE_KEY"),
            "--output_path", str(tmp_path / "out"),
        )  # fmt: skip
    assert done.code == 0, done.text
    assert judge_calls(server)[0].headers["authorization"] == f"Bearer {SECRET}-of-the-judge"
    assert_hidden(SECRET, done, tmp_path / "out")


CONFIG_FILE = """\
model: local-chat-completions
model_args: {model_args}
tasks: [prbench_finance]
limit: 2
log_samples: true
output_path: {output}
apply_chat_template: false
metadata:
  judge: {{model: judge, base_url: "{url}", prompt: builtin, temperature: 0.5, max_retries: 0}}
"""


def run_with_file(server: StubServer, tmp_path: Path, model_args: str, *more: str) -> Finished:
    path = tmp_path / "run.yaml"
    output = tmp_path / "out"
    text = CONFIG_FILE.format(model_args=model_args, url=server.url, output=output)
    path.write_text(text, encoding="utf-8")
    return command("lm-eval-rubrics", "run", "--config", str(path), *more)


def test_a_file_of_the_harness_s_can_hold_all_arguments_and_flags_win_over_it(
    server: StubServer, tmp_path: Path
) -> None:
    model_args = (
        f'{{model: model, base_url: "{server.url}/chat/completions", auth_token: {SECRET}}}'
    )
    done = run_with_file(server, tmp_path, model_args, "--judge", "temperature=0.25")
    assert done.code == 0, done.text
    row = metrics(results(tmp_path / "out"), "prbench_finance")
    assert row["clipped_score"] == pytest.approx(clipped_mean(FINANCE[:2]))
    assert {call.body["temperature"] for call in judge_calls(server)} == {0.25}
    # Chat APIs take nothing else, so the template is on all the same.
    received = {case_of(call): call.messages for call in model_calls(server)}
    assert received == {case.id: case.messages for case in FINANCE[:2]}
    assert_hidden(SECRET, done, tmp_path / "out")


def test_secrets_in_a_file_s_model_args_are_masked_when_they_are_one_string_too(
    server: StubServer, tmp_path: Path
) -> None:
    text = f"model=model,base_url={server.url}/chat/completions,auth_token={SECRET}"
    done = run_with_file(server, tmp_path, f'"{text}"')
    assert done.code == 0, done.text
    assert_hidden(SECRET, done, tmp_path / "out")


def test_a_key_in_the_extra_body_of_a_variable_is_refused(
    server: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_EXTRA_BODY", json.dumps({"api_key": SECRET}))
    with pytest.raises(ConfigError, match="a key is not taken here"):
        evaluate("prbench_finance", **chat_model(server.url), judge=judge_at(server.url))


@pytest.mark.parametrize("name", ["think_end_token", "add_bos_token", "custom_prefix_token_id"])
def test_a_model_argument_that_is_no_secret_is_recorded_as_it_is(name: str) -> None:
    assert dict(MaskedArgs({name: "</t>"}).items()) == {name: "</t>"}


def test_a_model_argument_that_is_a_secret_is_not_recorded() -> None:
    masked = MaskedArgs({"auth_token": SECRET, "header": {"Authorization": SECRET}, "model": "m"})
    for written in (json.dumps(masked), repr(masked), str(dict(masked.items()))):
        assert SECRET not in written
        assert "model" in written
