"""Export, vLLM's own batch runner, import, score: a judge without any server.

Run by ``.ci/run`` in an environment with torch and vLLM; elsewhere it is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extended tests need torch")
pytest.importorskip("vllm", reason="the extended tests need vLLM")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import command, metrics, results, samples

import lm_eval_tasks
from custom_metrics.prbench import clipped
from custom_metrics.rubric import Criterion

BATCH_LIMIT_S = 400
MET = '{"explanation": "The answer says so.", "criteria_met": true}'
UNMET = '{"explanation": "The answer does not say so.", "criteria_met": false}'


def test_vllms_batch_runner_judges_what_was_exported(model: Path, tmp_path: Path) -> None:
    answers = Path(lm_eval_tasks.path()) / "prbench" / "sample_answers" / "strong.json"
    generated = command(
        "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={answers}",
        "--tasks", "prbench_sample", "--predict_only", "--log_samples",
        "--output_path", str(tmp_path / "saved"),
    )  # fmt: skip
    assert generated.code == 0, generated.text
    # Nothing listens there: the address only says whose replies these are.
    form = json.dumps({"structured_outputs": {"choice": [MET, UNMET]}})
    judge = ["--judge", "model=tiny", "base_url=http://127.0.0.1:9/v1", "prompt=builtin",
             "temperature=0", "max_tokens=64", f"extra_body={form}"]  # fmt: skip
    saved, requests, replies = (tmp_path / n for n in ("saved", "requests.jsonl", "replies.jsonl"))
    exported = command("lm-eval-rubrics", "export", str(saved), "-o", str(requests), *judge)
    assert exported.code == 0, exported.text
    count = len(requests.read_text("utf-8").splitlines())
    done = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", str(requests), "-o",
         str(replies), "--model", str(model), "--served-model-name", "tiny", "--dtype", "float32",
         "--enforce-eager"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
             "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True, text=True, timeout=BATCH_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    imported = command("lm-eval-rubrics", "import", str(replies))
    assert imported.code == 0, imported.text
    assert f"{count} replies kept" in imported.output
    out = tmp_path / "out"
    scored = command("lm-eval-rubrics", "score", str(saved), "--output_path", str(out), *judge)
    assert scored.code == 0, scored.text
    assert f"0 calls, {count} from the store" in scored.text
    said = [json.loads(line)["response"]["body"] for line in replies.open(encoding="utf-8")]
    met = [body["choices"][0]["message"]["content"] == MET for body in said]
    lines = samples(out, "prbench_sample")
    found = [criterion["met"] for line in lines for criterion in line["doc"]["criteria"]]
    assert sorted(found) == sorted(met)
    assert len(found) == count
    scores = [
        clipped([Criterion(**c) for c in line["doc"]["rubric"]],
                [c["met"] for c in line["doc"]["criteria"]])
        for line in lines
    ]  # fmt: skip
    row = metrics(results(out), "prbench_sample")
    assert row["judge_coverage"] == 1
    assert row["clipped_score"] == pytest.approx(max(0, sum(scores) / len(scores)))
