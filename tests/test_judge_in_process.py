"""A judge inside the process: a model of the harness's own, given all calls as one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import in_process
import pytest
from asking import PATIENCE, ask, call, calls, kept, verdicts, wait_until
from commands import command, metrics, results, samples
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from stub_server import Reply, StubServer, verdict

import lm_eval_tasks
from custom_metrics.errors import JudgeError
from custom_metrics.judge import (
    Judge,
    JudgeCall,
    JudgeConfig,
    Met,
    majority,
    resolve_config,
    shared_judge,
)


@register_model("word-judge")
class WordJudge(LM):  # type: ignore[misc]
    """A small model of the harness's: a token is a word, and it decides by the prompt's words."""

    loaded: list[WordJudge] = []  # noqa: RUF012
    tokenizer_name = "words"

    def __init__(
        self, max_length: int = 100_000, fault: str = "", hook: bool = True, template: str = "",
        **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if fault == "load":
            raise OSError("there are no such weights")
        self.max_length, self._fault, self._hook, self._template = max_length, fault, hook, template
        self.batches: list[list[Instance]] = []
        WordJudge.loaded.append(self)

    def tok_encode(self, text: str) -> list[str]:
        return text.split()

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        if self._template == "none":
            raise NotImplementedError
        assert add_generation_prompt
        shown = [m for m in chat_history if self._template != "no-system" or m["role"] != "system"]
        end = "assistant: <think>\n" if self._template == "thinks" else "assistant:"
        return "\n".join([*(f"{m['role']}: {m['content']}" for m in shown), end])

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        self.batches.append(list(requests))
        return [self._one(request, number) for number, request in enumerate(requests)]

    def _one(self, request: Instance, number: int) -> str:
        prompt, arguments = request.args
        if self._fault == "midway" and number == 3:
            raise RuntimeError("out of memory")
        text = "no verdict" if "unreadable" in prompt else verdict("1" in prompt)
        if "mumbles" in prompt and len(self.batches) == 1:
            text = "hm"
        if self._template == "thinks":
            text = f'I could say {{"criteria_met": true}}.</think>{text}'
        if "goes on" in prompt:
            text = " ".join(["word"] * arguments["max_gen_toks"])
        if self._hook:
            self.cache_hook.add_partial("generate_until", request.args, text)
        return text

    def loglikelihood(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


@pytest.fixture(autouse=True)
def _none_loaded() -> None:
    WordJudge.loaded.clear()


def config(arguments: dict[str, Any] | None = None, **settings: Any) -> JudgeConfig:
    return JudgeConfig(
        backend="lm_eval", judge_model="word-judge", judge_model_args=arguments, **settings
    )


@contextmanager
def judge(arguments: dict[str, Any] | None = None, **settings: Any) -> Iterator[Judge]:
    running = Judge(config(arguments, **settings))
    try:
        yield running
    finally:
        running.close()


def siblings(count: int) -> list[JudgeCall[Met]]:
    return [call(f"Question {n}?") for n in range(count)]


def batches() -> list[list[Instance]]:
    (model,) = WordJudge.loaded
    return model.batches


@pytest.mark.parametrize("hook", [True, False])
def test_all_calls_are_one_batch_siblings_and_more_than_any_concurrency(hook: bool) -> None:
    with judge({"hook": hook}) as asked:
        outcomes = ask(asked, [*siblings(200), *calls(100, 200)])
    assert [len(batch) for batch in batches()] == [300]
    assert verdicts(outcomes) == ["1" in str(n) for n in range(300)]
    arguments = batches()[0][0].args[1]
    assert arguments == {"until": [], "max_gen_toks": 1024, "do_sample": False}


def test_temperature_and_limit_are_given_to_the_model() -> None:
    with judge(temperature=0.5, max_tokens=50) as asked:
        ask(asked, calls(1))
    arguments = batches()[0][0].args[1]
    assert arguments["temperature"] == 0.5
    assert arguments["do_sample"] is True
    assert arguments["max_gen_toks"] == 50


def test_unreadable_replies_are_asked_for_again_in_the_next_batch() -> None:
    asked_for = [call("Question 1?"), call("mumbles 1"), call("unreadable 1")]
    with judge() as asked:
        outcomes = ask(asked, asked_for)
        line = asked.settle()
    assert [len(batch) for batch in batches()] == [3, 2, 1]
    assert [outcome.attempts for outcome in outcomes] == [1, 2, 3]
    assert verdicts(outcomes) == [True, True, None]
    assert line.startswith("6 calls, 0 from the store, 3 retried, 1 failed, ")


def test_a_prompt_that_does_not_fit_fails_and_the_others_do_not() -> None:
    long = call("word " * 90)
    with judge({"max_length": 100}, max_tokens=20) as asked:
        outcomes = ask(asked, [long, call("Question 1?")])
    assert outcomes[0].refused
    assert outcomes[0].failure == (
        "the prompt has 92 tokens and its reply may have 20, which do not fit the judge's context "
        "of 100"
    )
    assert outcomes[1].value
    assert [len(batch) for batch in batches()] == [1]


def test_a_reply_that_fills_its_room_is_asked_for_with_twice_as_much() -> None:
    with judge(max_tokens=20) as asked:
        (outcome,) = ask(asked, [call("goes on")])
    assert [batch[0].args[1]["max_gen_toks"] for batch in batches()][:2] == [20, 40]
    assert outcome.failure == "unread: the reply was cut off at the token limit"


def test_reasoning_that_the_template_opens_is_no_verdict() -> None:
    with judge({"template": "thinks"}) as asked:
        assert verdicts(ask(asked, calls(2))) == [False, True]


def test_a_template_that_leaves_out_the_instructions_is_noticed() -> None:
    instructed = [{"role": "system", "content": "Grade."}, {"role": "user", "content": "1?"}]
    one = JudgeCall(**{**call().__dict__, "messages": lambda: instructed})
    with judge({"template": "no-system"}) as asked:
        (outcome,) = ask(asked, [one])
    assert outcome.failure == "the judge's chat template leaves out the system message"


def test_the_store_serves_every_reply_without_loading_the_model(tmp_path: Path) -> None:
    with judge() as first:
        before = ask(first, calls(5))
    WordJudge.loaded.clear()
    with judge() as second:
        assert ask(second, calls(5)) == before
        assert second.ledger.from_store == 5
    assert not WordJudge.loaded
    with judge({"max_length": 5000}) as other:  # other arguments, another judge
        ask(other, calls(1))
    assert WordJudge.loaded
    assert len(kept(tmp_path / "cache" / "judge.sqlite")) == 6


def test_what_was_received_before_a_fault_is_kept(tmp_path: Path) -> None:
    with judge({"fault": "midway"}) as asked:
        futures = asked.submit(calls(8))
        with pytest.raises(JudgeError, match=r"RuntimeError: out of memory.*is kept"):
            futures[7].result(PATIENCE)
        assert [f.exception(PATIENCE) is None for f in futures] == [True] * 3 + [False] * 5
        assert asked.stopped
    assert len(kept(tmp_path / "cache" / "judge.sqlite")) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"judge_model_args": {"fault": "load"}}, "could not be loaded.*no such weights"),
        ({"judge_model_args": {"template": "none"}}, "no chat template"),
    ],
)
def test_a_model_that_cannot_be_used_stops_the_judge(settings: dict[str, Any], said: str) -> None:
    running = Judge(JudgeConfig(backend="lm_eval", judge_model="word-judge", **settings))
    with pytest.raises(JudgeError, match=said):
        ask(running, calls(30))
    running.close()


def test_an_unknown_model_is_named_before_anything_is_loaded() -> None:
    running = Judge(JudgeConfig(backend="lm_eval", judge_model="no-such-model"))
    with pytest.raises(JudgeError, match="judge_model: lm_eval has no model 'no-such-model'"):
        running.check()
    running.close()


def test_the_record_names_model_and_arguments() -> None:
    settings = {"backend": "lm_eval", "judge_model": "word-judge", "prompt": "builtin",
                "judge_model_args": {"max_length": 90_000}}  # fmt: skip
    answers = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / "strong.json"
    found = in_process.evaluate(
        "prbench_sample", model="prefilled", judge=settings,
        model_args={"path": str(answers.parents[2] / "prbench" / "sample_answers" / "strong.json")},
    )  # fmt: skip
    criteria = [c for s in found["samples"]["prbench_sample"] for c in s["doc"]["criteria"]]
    assert [len(batch) for batch in batches()] == [len(criteria)]
    record = found["configs"]["prbench_sample"]["metadata"]["judge"]
    assert record == {
        "backend": "lm_eval", "judge_model": "word-judge", "prompt": "builtin",
        "judge_model_args": {"max_length": 90_000}, "on_failure": "exclude",
    }  # fmt: skip
    assert found["results"]["prbench_sample"]["judge_coverage,none"] == 1


@pytest.mark.slow
def test_an_api_model_of_the_harness_is_a_judge_too(tmp_path: Path) -> None:
    """The whole job in two commands, with no key of ours and no server but the model's own."""
    with StubServer(lambda _: Reply(verdict(True)), models=("m",)) as server:
        generated = command(
            "lm-eval-rubrics", "run", "--model", "local-chat-completions", "--model_args",
            f"model=m,base_url={server.url}/chat/completions", "--tasks", "prbench_sample",
            "--predict_only", "--output_path", str(tmp_path / "answers"), "--log_samples",
        )  # fmt: skip
        assert generated.code == 0, generated.text
        (path,) = (tmp_path / "answers").rglob("samples_*.jsonl")
        arguments = f"model=judge,base_url={server.url}/chat/completions,num_concurrent=8"
        judged = command(
            "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={path}",
            "--tasks", "prbench_sample", "--judge", "backend=lm_eval", "prompt=builtin",
            "judge_model=local-chat-completions", f"judge_model_args={arguments}",
            "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
    assert judged.code == 0, judged.text
    calls_made = [call for call in server.received if call.model == "judge"]
    lines = samples(tmp_path / "out", "prbench_sample")
    assert len(calls_made) == sum(len(line["doc"]["criteria"]) for line in lines)
    assert all(len(call.messages) == 1 for call in calls_made)
    assert metrics(results(tmp_path / "out"), "prbench_sample")["judge_coverage"] == 1
    record = results(tmp_path / "out")["configs"]["prbench_sample"]["metadata"]["judge"]
    assert record["judge_model_args"]["num_concurrent"] == 8


def test_a_model_in_the_process_and_a_server_are_a_panel_and_repeats_are_one_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StubServer(lambda received: Reply(verdict("2" in received.prompt))) as server:
        local = {"backend": "lm_eval", "judge_model": "word-judge", "judge_model_args": {"x": 1}}
        config = resolve_config(
            {"models": [{**local, "repeats": 2}, {"model": "judge", "base_url": server.url}],
             "timeout": 5},
        )  # fmt: skip
        panel = shared_judge(config)
        asked = [replace(c, combine=majority) for c in calls(30)]
        outcomes = [future.result(PATIENCE) for future in panel.submit(asked)]
        wait_until(lambda: panel.holds(asked))  # the commit is a moment after the outcome
    assert [len(batch) for batch in batches()] == [60]
    assert verdicts(outcomes) == ["1" in str(n) for n in range(30)]  # two of three opinions
    assert [[v.outcome.value.met for v in o.votes] for o in outcomes if o.value] == [
        ["1" in str(n), "1" in str(n), "2" in str(n)] for n in range(30)
    ]
    assert "asked 2 times without chance" in caplog.text
