"""The ways into the harness: Python, stock ``lm_eval`` after ``link``, the demo; and models whose
context is too small."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from commands import command, judge_metadata, metrics, model_arguments, results
from in_process import Results, chat_model, evaluate, judge_at
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from plain_server import PlainServer, Route
from rows import ACCURACY, Case, Item, clipped, clipped_mean, mean, normalized, write_data
from stub_server import Received, Reply, StubServer, verdict

import lm_eval_tasks
from custom_metrics.cli import main
from custom_metrics.errors import ConfigError

SAMPLE = Path(lm_eval_tasks.path()) / "prbench" / "sample.jsonl"
STRONG = Path(lm_eval_tasks.path()) / "prbench" / "sample_answers" / "strong.json"


# --- the bundled sample, with verdicts chosen here -----------------------------------------------


class SampleJudge:
    """A judge of ``prbench_sample``: all but each third criterion is met."""

    def __init__(self) -> None:
        rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
        self.rubrics = [self._items(row["rubric"]) for row in rows]
        self.titles = {
            criterion["title"]: item.met
            for row, items in zip(rows, self.rubrics, strict=True)
            for criterion, item in zip(row["rubric"], items, strict=True)
        }
        assert len(self.titles) == sum(len(items) for items in self.rubrics)

    @staticmethod
    def _items(rubric: Sequence[dict[str, Any]]) -> list[Item]:
        found = []
        for number, criterion in enumerate(rubric):
            notes = criterion["annotations"]
            weight = notes[notes["weight_class"].replace(" ", "_") + "_weight"]
            found.append(Item(weight, notes["criteria_category"], met=number % 3 != 0))
        return found

    def respond(self, call: Received) -> Reply:
        if call.model == "model":
            return Reply("An answer.")
        (met,) = {self.titles[title] for title in self.titles if title in call.prompt}
        return Reply(verdict(met))

    def check(self, found: dict[str, Any]) -> None:
        assert found["clipped_score"] == pytest.approx(
            max(0, mean(clipped(items) for items in self.rubrics))
        )
        assert found["normalized_score"] == pytest.approx(
            mean(normalized(items) for items in self.rubrics)
        )
        assert found["judge_coverage"] == 1
        assert found["empty_answers"] == 0
        law = [[i for i in items if i.category == "Legal Accuracy"] for items in self.rubrics]
        assert found["category_legal_accuracy"] == pytest.approx(
            mean(clipped(items) for items in law if any(i.weight > 0 for i in items))
        )

    @property
    def calls(self) -> int:
        return len(self.titles)


def bundled(url: str) -> Results:
    """The bundled answers, judged by the server at ``url``."""
    answers = {"path": str(STRONG)}
    return evaluate("prbench_sample", model="prefilled", model_args=answers, judge=judge_at(url))


def test_the_bundled_answers_get_the_values_of_the_formula() -> None:
    judge = SampleJudge()
    with StubServer(judge.respond) as server:
        judge.check(metrics(bundled(server.url), "prbench_sample"))
        assert len(server.received) == judge.calls


def test_a_script_may_evaluate_twice_with_one_task_manager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_CACHE", "off")  # or the second run would ask nothing
    judge = SampleJudge()
    with StubServer(judge.respond) as server:
        # Without include_defaults=False it works as well, after indexing the harness's own files.
        manager = TaskManager(
            include_path=lm_eval_tasks.path(),
            include_defaults=False,
            metadata={"judge": judge_at(server.url)},
        )
        for run in (1, 2):
            found = lm_eval.simple_evaluate(
                model="prefilled",
                model_args={"path": str(STRONG)},
                tasks=["prbench_sample"],
                task_manager=manager,
                apply_chat_template=True,
            )
            assert found is not None
            judge.check(metrics(dict(found), "prbench_sample"))
            assert len(server.received) == run * judge.calls


def test_a_script_may_evaluate_inside_a_running_event_loop() -> None:
    judge = SampleJudge()

    async def main(url: str) -> Results:
        return bundled(url)

    with StubServer(judge.respond) as server:
        judge.check(metrics(asyncio.run(main(server.url)), "prbench_sample"))


def test_two_runs_in_one_process_may_have_different_judges() -> None:
    judge = SampleJudge()
    with StubServer(judge.respond) as one, StubServer(lambda _: Reply(verdict(False))) as two:
        judge.check(metrics(bundled(one.url), "prbench_sample"))
        assert metrics(bundled(two.url), "prbench_sample")["clipped_score"] == 0
        assert len(one.received) == len(two.received) == judge.calls


# --- the commands --------------------------------------------------------------------------------


def harness_files() -> set[str]:
    folder = Path(lm_eval.__file__).parent / "tasks"
    return {str(path.relative_to(folder)) for path in folder.iterdir()} - {"__pycache__"}


def test_after_link_stock_lm_eval_knows_the_tasks_and_unlink_leaves_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = harness_files()
    judge = SampleJudge()
    try:
        assert main(["link"]) == 0
        linked = capsys.readouterr().out
        with StubServer(judge.respond, models=("model", "judge")) as server:
            done = command(
                "lm_eval", "--tasks", "prbench_sample", "--apply_chat_template",
                *model_arguments(server.url), *judge_metadata(server.url, prompt="builtin"),
                "--output_path", str(tmp_path / "out"),
            )  # fmt: skip
    finally:
        assert main(["unlink"]) == 0
    assert capsys.readouterr().out == "unlinked\n"
    assert "prbench_sample" in linked
    assert "prbench_hard" in linked
    assert done.code == 0, done.text
    judge.check(metrics(results(tmp_path / "out"), "prbench_sample"))
    assert harness_files() == before
    assert main(["unlink"]) == 0
    assert capsys.readouterr().out == "nothing was linked\n"


def test_path_prints_the_folder_of_the_tasks() -> None:
    done = command("lm-eval-rubrics", "path")
    assert (done.code, done.output, done.errors) == (0, lm_eval_tasks.path() + "\n", "")


def test_the_demo_needs_no_key_and_no_network_and_its_scores_fall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # what goes out goes nowhere
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    done = command("lm-eval-rubrics", "demo")
    assert done.code == 0, done.text
    scores = [float(s) for s in re.findall(r"\|clipped_score +\|\S* *\| *(-?[\d.]+)", done.output)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    titles = [line for line in done.output.splitlines() if line.startswith("prbench_sample: ")]
    assert [title.split()[1] for title in titles] == ["strong", "middling", "weak"]
    assert all("these scores mean nothing" in title for title in titles)
    rows = [line for line in done.output.splitlines() if line.startswith("|prbench_sample")]
    assert len(rows) == 3
    assert all("lexical smoke test: scores mean nothing" in row for row in rows)


@pytest.mark.slow
def test_an_unknown_task_is_one_line_that_names_what_there_is() -> None:
    done = command("lm-eval-rubrics", "run", "--model", "dummy", "--tasks", "prbench_finanze",
                   "--judge", "backend=lexical")  # fmt: skip
    assert done.code == 2
    assert "Traceback" not in done.text
    last = done.errors.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "prbench_finanze" in last
    assert "prbench_finance_hard" in last


# --- models whose context is too small -----------------------------------------------------------


def words(count: int, word: str) -> str:
    return " ".join([word] * count)


SHORT = Case("finance-1", (Item(10, ACCURACY, True),), prompts=(words(90, "short"),))
LONG = Case(
    "finance-2",
    (Item(10, ACCURACY, True),),
    prompts=(words(3000, "oldest"), words(400, "latest")),
    responses=(words(500, "reply"),),
)
READING = Case(
    "finance-3",
    (Item(10, ACCURACY, True),),
    prompts=("What does it say?",),
    references={0: (words(5000, "page"), words(200, "end"))},
)
CASES = (SHORT, LONG, READING)


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(write_data(tmp_path / "data", finance=CASES)))


class WordModel(LM):  # type: ignore[misc]
    """A model with one token a word; it records what it was asked."""

    tokenizer_name = "words"

    def __init__(self, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.asked: dict[str, tuple[str, int]] = {}

    def tok_encode(self, text: str) -> list[str]:
        return text.split()

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        lines = [f"<{message['role']}> {message['content']}" for message in chat_history]
        return "\n".join([*lines, "<assistant>"] if add_generation_prompt else lines)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        for request in requests:
            prompt, kwargs = request.args
            self.asked[request.doc["id"]] = (prompt, kwargs["max_gen_toks"])
        return ["An answer."] * len(requests)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise AssertionError(requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise AssertionError(requests)


def noted(found: Results, what: str) -> list[str]:
    """The documents that the results name under ``what``."""
    note = found["configs"]["prbench_finance"]["metadata"][what]
    assert note["count"] == len(note["ids"])
    return list(note["ids"])


def fitted(model: WordModel, **options: Any) -> Results:
    found = evaluate("prbench_finance", model=model, predict_only=True, **options)
    assert model.asked.keys() == {case.id for case in CASES}
    for prompt, room in model.asked.values():
        assert room >= 1
        assert len(model.tok_encode(prompt)) + room <= model.max_length
    return found


def whole(case: Case) -> str:
    return WordModel(0).apply_chat_template(case.messages)


def test_in_a_large_context_nothing_is_cut_and_nothing_shortened() -> None:
    model = WordModel(20_000)
    found = fitted(model)
    assert model.asked == {case.id: (whole(case), 8192) for case in CASES}
    assert noted(found, "prompts_cut") == noted(found, "answers_shortened") == []


def test_the_room_for_the_answer_shrinks_before_a_prompt_is_cut() -> None:
    model = WordModel(9_000)
    found = fitted(model)
    assert {name: prompt for name, (prompt, _) in model.asked.items()} == {
        case.id: whole(case) for case in CASES
    }
    assert model.asked["finance-1"][1] == 8192
    assert 1024 <= model.asked["finance-2"][1] < 8192
    assert noted(found, "prompts_cut") == []
    assert noted(found, "answers_shortened") == ["finance-2", "finance-3"]


@pytest.mark.parametrize("template", [True, False])
def test_then_the_oldest_text_goes(template: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = WordModel(4_000)
    found = fitted(model, apply_chat_template=template)
    assert noted(found, "prompts_cut") == ["finance-2", "finance-3"]
    assert noted(found, "answers_shortened") == ["finance-1", "finance-2", "finance-3"]
    long, room = model.asked["finance-2"]
    assert room >= 1024
    assert long.count("latest") == 400  # the last question is whole
    assert long.count("oldest") < 3000
    reading, _ = model.asked["finance-3"]
    assert "(task finance-3) What does it say?" in reading
    assert reading.count("end") == 200
    assert 0 < reading.count("page") < 5000
    # Not much more is cut than has to be.
    assert len(reading.split()) + 1024 > 0.9 * model.max_length
    if template:
        assert model.asked["finance-1"][0] == whole(SHORT)
    assert "2 prompts do not fit the model's context" in caplog.text
    assert "finance-2, finance-3" in caplog.text


def test_a_system_instruction_is_not_cut() -> None:
    model = WordModel(4_000)
    fitted(model, system_instruction="Speak like a pirate.")
    assert all(p.startswith("<system> Speak like a pirate.\n") for p, _ in model.asked.values())


def test_a_context_without_room_for_anything_is_an_error_before_generation() -> None:
    model = WordModel(500)
    with pytest.raises(ConfigError, match="context of 500 tokens has no room"):
        evaluate("prbench_finance", model=model, predict_only=True)
    assert model.asked == {}


def test_a_smaller_answer_makes_a_small_context_do() -> None:
    model = WordModel(500)
    found = evaluate(
        "prbench_finance", model=model, predict_only=True, gen_kwargs="max_gen_toks=100", limit=1
    )
    assert model.asked["finance-1"] == (whole(SHORT), 100)
    assert noted(found, "answers_shortened") == []


# --- servers that say how large their context is -------------------------------------------------


def count(messages: Sequence[dict[str, str]]) -> int:
    return len(WordModel(0).apply_chat_template(list(messages)).split())


def vllm(max_model_len: int, *, tokenize: bool = True) -> PlainServer:
    """What vLLM serves beside completions: its context's length, and a count of a chat's tokens."""

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        if count(body["messages"]) + body["max_tokens"] > max_model_len and tokenize:
            raise AssertionError("does not fit")
        message = {"role": "assistant", "content": "An answer."}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    routes: dict[str, Route] = {
        "GET /v1/models": lambda _: {"data": [{"id": "model", "max_model_len": max_model_len}]},
        "POST /v1/chat/completions": complete,
    }
    if tokenize:
        routes["POST /tokenize"] = lambda body: {"count": count(body["messages"])}
    return PlainServer(routes)


def asked_of(server: PlainServer) -> dict[str, dict[str, Any]]:
    found = {}
    for body in server.bodies("POST /v1/chat/completions"):
        (identifier,) = re.findall(r"\(task (\S+)\)", body["messages"][-1]["content"])
        found[identifier] = body
    return found


def test_the_context_of_a_vllm_server_is_kept_to() -> None:
    with vllm(4_000) as server:
        found = evaluate("prbench_finance", **chat_model(f"{server.origin}/v1"), predict_only=True)
    asked = asked_of(server)
    assert asked.keys() == {case.id for case in CASES}
    for body in asked.values():
        assert count(body["messages"]) + body["max_tokens"] <= 4_000
        assert body["max_tokens"] >= 1024
    assert asked["finance-1"]["messages"] == SHORT.messages
    assert asked["finance-2"]["messages"][-1] == LONG.messages[-1]
    assert noted(found, "prompts_cut") == ["finance-2", "finance-3"]
    assert noted(found, "answers_shortened") == ["finance-1", "finance-2", "finance-3"]


def test_a_server_that_cannot_count_is_sent_everything() -> None:
    with vllm(4_000, tokenize=False) as server:
        evaluate("prbench_finance", **chat_model(f"{server.origin}/v1"), predict_only=True)
    asked = asked_of(server)
    assert {name: body["messages"] for name, body in asked.items()} == {
        case.id: case.messages for case in CASES
    }
    assert {body["max_tokens"] for body in asked.values()} == {8192}


def test_a_vllm_server_s_answers_are_not_shortened_where_they_fit() -> None:
    with vllm(9_000) as server:
        found = evaluate(
            "prbench_finance", **chat_model(f"{server.origin}/v1"), predict_only=True, limit=1
        )
    assert count(SHORT.messages) + 8192 <= 9_000
    assert asked_of(server)["finance-1"]["max_tokens"] == 8192
    assert noted(found, "answers_shortened") == []


# --- completions APIs ----------------------------------------------------------------------------


def completions(*, tokenizer: bool) -> PlainServer:
    """A completions API, with vLLM's remote tokenizer if asked for."""

    def complete(_: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "text": "An answer.", "finish_reason": "stop"}]}

    routes: dict[str, Route] = {"POST /v1/completions": complete}
    if tokenizer:
        routes["GET /tokenizer_info"] = lambda _: {"eos_token": "</s>", "bos_token": "<s>"}
        routes["POST /tokenize"] = lambda body: {"tokens": list(range(len(body["prompt"].split())))}
    return PlainServer(routes)


def completions_model(server: PlainServer, **more: Any) -> dict[str, Any]:
    url = f"{server.origin}/v1/completions"
    return {
        "model": "local-completions",
        "model_args": {"model": "base", "base_url": url, "max_retries": 1, **more},
    }


def test_a_completions_api_has_to_be_told_its_max_length() -> None:
    with (
        completions(tokenizer=True) as server,
        pytest.raises(ConfigError, match="--model_args max_length is needed"),
    ):
        evaluate(
            "prbench_finance", **completions_model(server), predict_only=True,
            apply_chat_template=False,
        )  # fmt: skip
    assert server.bodies("POST /v1/completions") == []


def test_prompts_for_a_completions_api_keep_to_its_max_length() -> None:
    with completions(tokenizer=True) as server:
        found = evaluate(
            "prbench_finance", **completions_model(server, max_length=4_000), predict_only=True,
            apply_chat_template=False,
        )  # fmt: skip
    asked = server.bodies("POST /v1/completions")
    assert len(asked) == 3
    for body in asked:
        (tokens,) = body["prompt"]
        assert len(tokens) + body["max_tokens"] <= 4_000
        assert tokens == list(range(len(tokens)))  # whole: the harness had nothing to cut
    assert noted(found, "prompts_cut") == ["finance-2", "finance-3"]


def test_a_chat_for_a_remote_tokenizer_is_refused() -> None:
    with (
        completions(tokenizer=True) as server,
        pytest.raises(ConfigError, match="a list of messages; use local-chat-completions"),
    ):
        evaluate(
            "prbench_finance", **completions_model(server, max_length=4_000), predict_only=True
        )
    assert server.bodies("POST /v1/completions") == []


def test_a_chat_for_a_completions_api_without_a_tokenizer_is_refused() -> None:
    with completions(tokenizer=False) as server, pytest.raises(ConfigError):
        evaluate(
            "prbench_finance", **completions_model(server, tokenizer_backend=None),
            predict_only=True,
        )  # fmt: skip
    assert server.bodies("POST /v1/completions") == []


def test_scores_of_a_fitted_run_are_those_of_the_formula() -> None:
    with StubServer(lambda _: Reply(verdict(True))) as server:
        model = WordModel(4_000)
        found = evaluate("prbench_finance", model=model, judge=judge_at(server.url))
    assert metrics(found, "prbench_finance")["clipped_score"] == clipped_mean(CASES)
