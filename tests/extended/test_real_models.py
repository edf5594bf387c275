"""Real models: the tiny Llama through the harness's hf and vllm models, and a real vLLM server.

Run by ``.ci/run`` in an environment with torch and vLLM; the README's test command has neither
and skips this file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extended tests need torch")
pytest.importorskip("vllm", reason="the extended tests need vLLM")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import command, judge_arguments, judge_metadata, metrics, results, samples
from stub_server import Received, Reply, StubServer, verdict

import lm_eval_tasks

START_LIMIT_S = 400
SAMPLE_MULTI_TURN = 4
MET = '```json\n{"explanation": "The answer says so.", "criteria_met": true}\n```'
UNMET = '```json\n{"explanation": "The answer does not say so.", "criteria_met": false}\n```'


@pytest.fixture(autouse=True)
def _real_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a vLLM server with the tiny model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }  # fmt: skip
    arguments = [
        "--model", str(model), "--served-model-name", "tiny", "--dtype", "float32",
        "--enforce-eager", "--enable-prompt-tokens-details", "--host", "127.0.0.1",
        "--port", str(port),
    ]  # fmt: skip
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            stdout=file, stderr=file, env=environment,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _healthy(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def all_met(call: Received) -> Reply:  # noqa: ARG001
    return Reply(verdict(True))


def positive_share() -> float:
    """The clipped score of the sample if every criterion is met, good or bad."""
    ratios = []
    for row in rows():
        weights = [
            item["annotations"][item["annotations"]["weight_class"].replace(" ", "_") + "_weight"]
            for item in row["rubric"]
        ]
        ratios.append(sum(weights) / sum(w for w in weights if w > 0))
    return sum(ratios) / len(ratios)


def rows() -> Sequence[dict[str, object]]:
    path = Path(lm_eval_tasks.path()) / "prbench" / "sample.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_hugging_face_model_gets_the_whole_chat(model: Path, tmp_path: Path) -> None:
    with StubServer(all_met) as judge:
        done = command(
            "lm_eval", "run", "--include_path", lm_eval_tasks.path(),
            "--model", "hf", "--model_args", f"pretrained={model},dtype=float32",
            "--device", "cpu", "--batch_size", "2", "--apply_chat_template",
            "--system_instruction", "Be brief.", "--gen_kwargs", "max_new_tokens=12",
            "--tasks", "prbench_sample", *judge_metadata(judge.url, prompt="builtin"),
            "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
        calls = len(judge.received)
    assert done.code == 0, done.text
    lines = samples(tmp_path / "out", "prbench_sample")
    prompts = [line["arguments"]["gen_args_0"]["arg_0"] for line in lines]
    for row, prompt in zip(rows(), prompts, strict=True):
        assert "Be brief." in prompt
        for turn in range(int(str(row["turns"]))):
            assert str(row[f"prompt_{turn}"]) in prompt
        for text in [t for k, v in row.items() if k.startswith("reference_") for t in (v or [])]:  # type: ignore[attr-defined]
            assert str(text) in prompt
    multi = [p for p in prompts if p.count("<|user|>") > 1 or p.count("user") > 1]
    assert len(multi) >= SAMPLE_MULTI_TURN
    assert {line["arguments"]["gen_args_0"]["arg_1"]["max_gen_toks"] for line in lines} == {12}
    empty = sum(line["empty_answers"] for line in lines)
    if not empty:
        values = metrics(results(tmp_path / "out"), "prbench_sample")
        assert values["clipped_score"] == pytest.approx(positive_share())
        assert calls == sum(len(row["rubric"]) for row in rows())  # type: ignore[arg-type]


def test_a_small_context_shortens_answers_first_and_then_the_oldest_text(
    model: Path, tmp_path: Path
) -> None:
    done = command(
        "lm-eval-rubrics", "run", "--model", "hf",
        "--model_args", f"pretrained={model},dtype=float32,max_length=1200",
        "--device", "cpu", "--batch_size", "1", "--gen_kwargs", "max_gen_toks=400",
        "--tasks", "prbench_sample", "--predict_only", "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.code == 0, done.text
    metadata = results(tmp_path / "out")["configs"]["prbench_sample"]["metadata"]
    assert 0 < metadata["prompts_cut"]["count"] < len(rows())
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    cut = 0
    for line in samples(tmp_path / "out", "prbench_sample"):
        prompt, kwargs = line["arguments"]["gen_args_0"].values()
        tokens = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        assert tokens + kwargs["max_gen_toks"] <= 1200
        messages = line["doc"]["messages"]
        assert messages[-1]["content"][-40:] in prompt  # the question itself stays
        cut += messages[0]["content"][:40] not in prompt
    assert cut == metadata["prompts_cut"]["count"]


def test_vllm_serves_both_the_model_and_the_judge(vllm: str, tmp_path: Path) -> None:
    choice = json.dumps({"structured_outputs": {"choice": [MET, UNMET]}})
    done = command(
        "lm-eval-rubrics", "run", "--model", "local-chat-completions",
        "--model_args", f"model=tiny,base_url={vllm}/chat/completions,num_concurrent=4",
        "--gen_kwargs", "max_tokens=16", "--tasks", "prbench_sample",
        *judge_arguments(vllm, prompt="builtin", concurrency=8, temperature=1),
        "model=tiny", f"extra_body={choice}",
        "--output_path", str(tmp_path / "out"), "--log_samples",
    )  # fmt: skip
    assert done.code == 0, done.text
    found = results(tmp_path / "out")
    values = metrics(found, "prbench_sample")
    assert values["judge_coverage"] == 1
    assert "model under test as well" in done.errors
    criteria = [
        criterion
        for line in samples(tmp_path / "out", "prbench_sample")
        for criterion in line["doc"]["criteria"]
    ]
    judged = [criterion for criterion in criteria if criterion["attempts"]]
    assert {criterion["attempts"] for criterion in judged} == {1}
    assert {criterion["met"] for criterion in judged} == {True, False}
    assert {c["explanation"] for c in judged} == {
        "The answer says so.", "The answer does not say so.",
    }  # fmt: skip
    assert found["configs"]["prbench_sample"]["metadata"]["judge"]["extra_body"]


def test_a_vllm_server_tells_its_context_and_counts_its_tokens(vllm: str) -> None:
    from lm_eval.models.openai_completions import LocalChatCompletion

    from custom_metrics import generation

    served = LocalChatCompletion(base_url=f"{vllm}/chat/completions", model="tiny")
    context = generation.context_of(served, lambda messages: messages, {})
    assert context is not None
    assert context.length == 32768
    messages = [{"role": "user", "content": "word " * 30000}]
    used = context.count(messages)
    assert used > context.length
    fitted = generation.fit(messages, 8192, context)
    assert fitted.cut
    assert context.count(fitted.messages) + fitted.answer_tokens <= context.length


def test_vllm_inside_the_harness(model: Path, tmp_path: Path) -> None:
    with StubServer(all_met) as judge:
        done = command(
            "lm_eval", "run", "--include_path", lm_eval_tasks.path(), "--model", "vllm",
            "--model_args", f"pretrained={model},dtype=float32,enforce_eager=True",
            "--batch_size", "auto", "--apply_chat_template", "--gen_kwargs", "max_gen_toks=8",
            "--tasks", "prbench_sample", *judge_metadata(judge.url, prompt="builtin"),
            "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
    assert done.code == 0, done.text
    lines = samples(tmp_path / "out", "prbench_sample")
    for row, line in zip(rows(), lines, strict=True):
        prompt, kwargs = line["arguments"]["gen_args_0"].values()
        assert all(str(row[f"prompt_{turn}"]) in prompt for turn in range(int(str(row["turns"]))))
        assert kwargs["max_gen_toks"] == 8
    values = metrics(results(tmp_path / "out"), "prbench_sample")
    assert values["judge_coverage"] == 1
    if not values["empty_answers"]:
        assert values["clipped_score"] == pytest.approx(positive_share())
