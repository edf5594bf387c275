"""The harness's loggers: what they logged of our runs, since it swallows what goes wrong there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import command, only
from upload_hub import serve_upload_hub

import lm_eval_tasks

ANSWERS = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / "middling.json"
RUN = (
    "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={ANSWERS}",
    "--tasks", "plawbench_sample", "--metadata", '{"task_prompt": "builtin"}',
    "--judge", "backend=lexical", "prompt=builtin", "--log_samples", "--output_path",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("public", [False, True])
def test_results_and_samples_go_to_the_hub(tmp_path: Path, public: bool) -> None:
    with serve_upload_hub() as hub:
        done = command(
            *RUN, str(tmp_path / "out"), "--hf_hub_log_args",
            "hub_results_org=org,push_results_to_hub=True,push_samples_to_hub=True,"
            f"public_repo={public}",
            environment={"HF_ENDPOINT": hub.origin, "HF_TOKEN": "hf_a", "HF_HUB_OFFLINE": "0"},
        )  # fmt: skip
    assert "Successfully pushed aggregated results" in done.text, done.text
    results = only(tmp_path / "out", "results_*.json")
    sent = {Path(path).name: content for files in hub.files.values() for path, content in
            files.items()}  # fmt: skip
    assert sent[results.name] == results.read_bytes()
    samples = list(results.parent.glob("samples_*.jsonl"))
    assert len(samples) == 4
    for path in samples:
        assert sent[path.name] == path.read_bytes(), path
    assert set(hub.private.values()) == {not public}
    assert json.loads(sent[results.name])["results"]["plawbench_sample"]["overall,none"] > 0
    assert b"hf_a" not in b"".join(sent.values())
