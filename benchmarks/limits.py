"""What a run may take at most: start-up, memory, and what judging adds to generation.

    python benchmarks/limits.py --data FOLDER --prompts FOLDER

- seconds from ``lm-eval-rubrics run`` to the model's first request, the least of three;
- the most memory of a process with the harness loaded at 20,000 calls of 16 kB;
- the wall clock of 100 documents of ``finance_hard`` with a slow model and a slow judge, with
  judging beside generation and after it, and whether the scores are the same.

Prints a Markdown table.
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
from pathlib import Path

import pyarrow.parquet
from judge_speed import stub
from whole_run import CALLS, TASK, counts, measured

TIMES_THE_DATA = 4  # 1,200 conversations with 20,340 criteria, a little more than PRBench has
DOCUMENTS, MODEL_DELAY, MODEL_AT = 100, 0.5, 4
JUDGE_DELAY, JUDGE_AT = 0.11, 16


def command(
    model: str, judge: str, out: Path, *more: str, at: int = 64, task: str = TASK
) -> list[str]:
    """One run of this project's, model and judge being the addresses given."""
    return [
        str(Path(sys.executable).with_name("lm-eval-rubrics")), "run", "--tasks", task,
        "--model", "local-chat-completions", "--model_args",
        f"model=judge,base_url={model}/chat/completions,num_concurrent={at}",
        "--output_path", str(out), "--judge", "model=judge", f"base_url={judge}", *more,
    ]  # fmt: skip


def timed(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """When a command was started, on the monotonic clock, and how long it took."""
    begin = time.monotonic()
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return begin, time.monotonic() - begin


def start_up(folder: Path, environment: dict[str, str]) -> float:
    """Seconds to the first request, the least of three."""
    found = []
    with stub(0.05) as url:
        origin = url.removesuffix("/v1")
        for number in range(3):
            counts(origin)
            more = ["--limit", "1", "--predict_only", "--no_answer_store"]
            begin, _ = timed(command(url, url, folder / f"start-{number}", *more), environment)
            found.append(counts(origin)["first"] - begin)
    return min(found)


def many_calls(folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Peak memory in MB of a whole run over all that data, and seconds of its judging."""
    data = folder / "data" / "prbench"
    data.mkdir(parents=True)
    source = Path(environment["RUBRIC_DATA_DIR"]) / "prbench" / "finance_hard.parquet"
    rows = pyarrow.parquet.read_table(source).to_pylist()
    with (data / "finance.jsonl").open("w") as file:
        for number in range(TIMES_THE_DATA):
            for row in rows:
                # Of equal questions one is asked for all.
                own = {"task": f"{row['task']}-{number}", "prompt_0": f"{number} {row['prompt_0']}"}
                json.dump({**row, **own}, file)
                file.write("\n")
    there = {"RUBRIC_DATA_DIR": str(data.parent), "BENCHMARK_LOG": str(folder / "log")}
    with stub(0.05, until="# Rubric item") as url:
        origin = url.removesuffix("/v1")
        arguments = command(
            f"{origin}/model/v1", f"{origin}/judge/v1", folder / "many", "concurrency=256",
            "--log_samples", task="prbench_finance",
        )  # fmt: skip
        found = measured(arguments, origin, {**environment, **there})
    assert found.calls == TIMES_THE_DATA * CALLS, found
    return found.memory_mb, found.judging


def overlap(folder: Path, environment: dict[str, str]) -> tuple[dict[str, float], bool]:
    """Seconds of generation alone and of whole runs, and whether the scores are the same."""
    seconds: dict[str, float] = {}
    scores = []
    with stub(MODEL_DELAY) as model, stub(JUDGE_DELAY) as judge:
        for name, more in {
            "generation alone": ["--predict_only"],
            "judging after it": ["--no_overlap"],
            "judging beside it": [],
        }.items():
            out = folder / name.replace(" ", "-")
            shutil.rmtree(environment["RUBRIC_CACHE_DIR"], ignore_errors=True)
            limits = ["--limit", str(DOCUMENTS), f"concurrency={JUDGE_AT}"]
            arguments = command(model, judge, out, limits[2], *limits[:2], *more, at=MODEL_AT)
            _, seconds[name] = timed(arguments, environment)
            if "--predict_only" not in more:
                (path,) = out.rglob("results_*.json")
                scores.append(json.loads(path.read_text())["results"])
    return seconds, scores[0] == scores[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="a folder with prbench/")
    parser.add_argument("--prompts", required=True, type=Path, help="a folder with the prompts")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    environment = {
        **os.environ, "RUBRIC_DATA_DIR": str(chosen.data.resolve()),
        "RUBRIC_PROMPTS_DIR": str(chosen.prompts.resolve()),
        "RUBRIC_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    print("| what | figure | aim |\n|---|---|---|")
    try:
        print(
            f"| start to first request | {start_up(folder, environment):.1f} s | 4 s |", flush=True
        )
        memory, judging = many_calls(folder, environment)
        print(f"| peak memory of a whole run, 20,340 calls | {memory:.0f} MB | 500 MB |")
        print(f"| … and its judging | {judging:.1f} s | |", flush=True)
        seconds, same = overlap(folder, environment)
        for name, value in seconds.items():
            print(f"| {name} | {value:.1f} s | |")
        ratio = seconds["judging beside it"] / seconds["generation alone"]
        print(f"| beside / alone | {ratio:.2f} | 1.1 |")
        print(f"| scores the same | {'yes' if same else 'NO'} | yes |")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
