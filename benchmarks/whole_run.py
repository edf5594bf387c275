"""A whole evaluation of PRBench's ``finance_hard``: this project's command beside evalscope.

    python benchmarks/whole_run.py --data FOLDER --prompts FOLDER [--at 64 256] [--evalscope PYTHON]

Both get the same model and the same judge, stubs on loopback that answer after ``--delay`` seconds,
the same data, ``prbench/finance_hard.parquet`` below ``--data``, and the benchmark's own prompt.
evalscope 1.14.1 is installed into an environment of its own, or taken from the one whose
interpreter ``--evalscope`` names. Both are measured by the stub: calls, prefix-cache misses (300
conversations: no fewer are possible), and seconds from the first judge call to the last. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from judge_speed import stub

TASK = "prbench_finance_hard"
CALLS = 5085
HUB_NAME = "finance_hard-00000-of-00001.parquet"
EVALSCOPE = "evalscope==1.14.1"

# What evalscope's own interpreter runs: its documented TaskConfig.
_EVALSCOPE_RUN = """
import sys
from evalscope import TaskConfig, run_task
url, data, work, at = sys.argv[1:]
run_task(TaskConfig(
    model="judge", api_url=url + "/model/v1", api_key="EMPTY", eval_type="openai_api",
    datasets=["prbench"],
    dataset_args={"prbench": {"dataset_id": data, "subset_list": ["finance_hard"]}},
    eval_batch_size=int(at), work_dir=work, generation_config={"max_tokens": 8192},
    judge={"strategy": "llm", "models": [
        {"model_id": "judge", "api_url": url + "/judge/v1", "api_key": "EMPTY"}]},
))
"""


@dataclass(frozen=True)
class Measured:
    """One evaluation; ``judging`` is from the first judge call to the last, as the stub saw it."""

    whole: float
    calls: int
    misses: int
    peak: int
    judging: float
    memory_mb: float

    def row(self, name: str, at: int, bound: float) -> str:
        rate = self.calls / self.judging if self.judging else 0.0
        share = bound / self.judging if self.judging else 0.0
        return (
            f"| {name} | {at} | {self.whole:.1f} | {self.judging:.1f} | {rate:.0f} | {share:.0%} | "
            f"{self.calls} | {self.misses} | {self.peak} | {self.memory_mb:.0f} |"
        )


def counts(origin: str) -> dict[str, float]:
    """What the stub has seen since it was last asked."""
    with urllib.request.urlopen(f"{origin}/counts", timeout=30) as response:
        return dict(json.load(response))


def measured(command: list[str], origin: str, environment: dict[str, str]) -> Measured:
    """Run ``command`` to its end; its memory is the most that any of its processes had."""
    counts(origin)
    log = Path(environment["BENCHMARK_LOG"])
    begin = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    whole = time.monotonic() - begin
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{command[0]}: {log.read_text()[-3000:]}")
    seen = counts(origin)
    return Measured(
        whole, int(seen["calls"]), int(seen["misses"]), int(seen["peak"]), seen["seconds"],
        usage.ru_maxrss / 1024,
    )  # fmt: skip


def our_command(origin: str, at: int, out: Path) -> list[str]:
    model = f"model=judge,base_url={origin}/model/v1/chat/completions,num_concurrent={at}"
    return [
        str(Path(sys.executable).with_name("lm-eval-rubrics")), "run", "--tasks", TASK,
        "--model", "local-chat-completions", "--model_args", model,
        "--output_path", str(out), "--log_samples", "--no_overlap",
        "--judge", "model=judge", f"base_url={origin}/judge/v1", f"concurrency={at}",
    ]  # fmt: skip


def evalscope_python(given: str | None, folder: Path) -> str:
    """An interpreter that has evalscope."""
    if given:
        return given
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", EVALSCOPE], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="a folder with prbench/")
    parser.add_argument("--prompts", required=True, type=Path, help="a folder with the prompts")
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--at", type=int, nargs="+", default=[64, 256], help="calls in flight")
    parser.add_argument("--evalscope", metavar="PYTHON", help="an interpreter that has evalscope")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        _measure_all(chosen, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure_all(chosen: argparse.Namespace, folder: Path) -> None:
    theirs = evalscope_python(chosen.evalscope, folder / "evalscope")
    script = folder / "evalscope_run.py"
    script.write_text(_EVALSCOPE_RUN)
    data = chosen.data.resolve()
    environment = {
        **os.environ,
        "RUBRIC_DATA_DIR": str(data), "RUBRIC_PROMPTS_DIR": str(chosen.prompts.resolve()),
        "RUBRIC_CACHE_DIR": str(folder / "cache"), "BENCHMARK_LOG": str(folder / "log"),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    print("| evaluation | in flight | whole, s | judging, s | calls/s | of the bound | calls | "
          "misses | most in flight | peak MB |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    # evalscope reads a folder as the Hub lays it out.
    hub = folder / "hub" / "data"
    hub.mkdir(parents=True)
    shutil.copy(data / "prbench" / "finance_hard.parquet", hub / HUB_NAME)
    with stub(chosen.delay, until="# Rubric item") as url:
        origin = url.removesuffix("/v1")
        for at in chosen.at:
            bound = CALLS * chosen.delay / at
            shutil.rmtree(folder / "cache", ignore_errors=True)
            ours = measured(our_command(origin, at, folder / f"ours-{at}"), origin, environment)
            print(ours.row("lm-eval-rubrics", at, bound), flush=True)
            again = measured(our_command(origin, at, folder / f"again-{at}"), origin, environment)
            print(again.row("… again, all from the store", at, bound), flush=True)
            command = [theirs, str(script), origin, str(hub.parent),
                       str(folder / f"theirs-{at}"), str(at)]  # fmt: skip
            print(measured(command, origin, environment).row("evalscope", at, bound), flush=True)


if __name__ == "__main__":
    main()
