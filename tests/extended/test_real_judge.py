"""The judge inside the process with real models: the tiny Llama through hf and through vllm.

Run by ``.ci/run`` in an environment with torch and vLLM; elsewhere it is skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extended tests need torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from asking import call, kept
from commands import command

import lm_eval_tasks
from custom_metrics.judge import Judge, JudgeConfig


def test_a_hugging_face_model_generates_and_another_judges_in_two_steps(
    model: Path, tmp_path: Path
) -> None:
    generated = command(
        "lm-eval-rubrics", "run", "--model", "hf", "--model_args",
        f"pretrained={model},dtype=float32", "--device", "cpu", "--batch_size", "4",
        "--gen_kwargs", "max_gen_toks=8", "--tasks", "prbench_sample", "--predict_only",
        "--output_path", str(tmp_path / "answers"), "--log_samples",
    )  # fmt: skip
    assert generated.code == 0, generated.text
    (answers,) = (tmp_path / "answers").rglob("samples_*.jsonl")
    arguments = f"pretrained={model},dtype=float32,device=cpu,batch_size=8"
    judged = command(
        "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={answers}",
        "--tasks", "prbench_sample", "--limit", "2", "--judge", "backend=lm_eval",
        "judge_model=hf", f"judge_model_args={arguments}", "prompt=builtin", "max_tokens=12",
        "max_retries=0", "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    # A random model gives no verdict, and a run without any is no run.
    assert judged.code == 3, judged.text
    assert "no call of prbench_sample got a verdict" in judged.errors
    assert "unread: " in judged.errors
    store = kept(tmp_path / "cache" / "judge.sqlite")
    assert len({text for text, _ in store}) > 1  # noise, and another for another prompt
    assert not any(usable for _, usable in store)


@pytest.mark.parametrize("kind", ["hf", "vllm"])
def test_long_prompts_fail_and_the_replies_are_the_models_own(
    kind: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "vllm":
        pytest.importorskip("vllm", reason="the extended tests need vLLM")
    for name, value in (
        ("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    own = {
        "hf": {"dtype": "float32", "device": "cpu", "batch_size": 4, "max_length": 2048},
        "vllm": {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048},
    }
    judge = Judge(
        JudgeConfig(
            backend="lm_eval", judge_model=kind, max_tokens=6, max_retries=0,
            judge_model_args={"pretrained": str(model), **own[kind]},
        )
    )  # fmt: skip
    try:
        long, *short = [f.result(300) for f in judge.submit(
            [call("word " * 4000), *(call(f"Question {n}?") for n in range(5))]
        )]  # fmt: skip
        assert long.refused
        assert "do not fit the judge's context of 2048" in str(long.failure)
        assert all(str(outcome.failure).startswith("unread: ") for outcome in short)
        assert judge.ledger.usage.prompt > 0
        assert judge.ledger.usage.completion > 0
    finally:
        judge.close()


def test_a_folder_without_weights_is_said_in_one_line(tmp_path: Path) -> None:
    answers = Path(lm_eval_tasks.path()) / "prbench" / "sample_answers" / "strong.json"
    settings = json.dumps({"pretrained": str(tmp_path / "nothing"), "device": "cpu"})
    done = command(
        "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={answers}",
        "--tasks", "prbench_sample", "--judge", "backend=lm_eval", "judge_model=hf",
        f"judge_model_args={settings}", "prompt=builtin",
    )  # fmt: skip
    assert done.code == 3
    assert "could not be loaded" in done.errors
    assert "The 9 answers are kept in" in done.errors
