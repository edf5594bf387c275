"""Memory and time of ``lm-eval-rubrics score`` for a samples file of a gigabyte.

    python benchmarks/big_samples.py [--lines 7000] [--kilobytes 150]

Writes rows and a samples file of its own making, one criterion a row, each line prompt and answer
in equal parts and the answer once more, as the harness has it; and scores it with a stub judge that
answers at once. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judge_speed import stub

TASK = "prbench_finance"
NAME = f"samples_{TASK}_2026-01-01T00-00-00.000000.jsonl"
WORDS = "The client asks about the terms of a loan and its risks. "


def write_rows(path: Path, lines: int) -> None:
    """PRBench's raw rows, one criterion each."""
    weights = {"important_weight": 5}
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for number in range(lines):
            rubric = [{"id": f"c{number}", "title": "Names the rate.",
                       "annotations": {"criteria_category": "Financial Accuracy",
                                       "weight_class": "important", **weights}}]  # fmt: skip
            row = {
                "task": f"row-{number}", "turns": 1, "field": "Finance", "topic": "Loans",
                "expert": "Expert", "rubric": rubric, "prompt_0": f"{number}: what now?",
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")


def write_samples(path: Path, kilobytes: int) -> None:
    """What the harness would have saved; run in a process of its own, which has the data."""
    from lm_eval.tasks import TaskManager

    import lm_eval_tasks
    from custom_metrics.score import _doc_hash

    manager = TaskManager(include_path=lm_eval_tasks.path(), include_defaults=False)
    task = manager.load([TASK])["tasks"][TASK]
    text = (WORDS * (kilobytes * 1000))[: kilobytes * 333]
    with path.open("w") as file:
        for number, doc in enumerate(task.test_docs()):
            answer = f"{number} {text}"
            line = {
                "doc_id": number, "doc": doc, "target": "", "resps": [[answer]],
                "arguments": {"gen_args_0": {"arg_0": f"{number} {text}", "arg_1": {}}},
                "filtered_resps": [answer], "filter": "none", "doc_hash": _doc_hash(doc),
                "prompt_hash": "0" * 64, "target_hash": "0" * 64,
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=7_000)
    parser.add_argument("--kilobytes", type=int, default=150, help="of a line")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.write:
        write_samples(chosen.write, chosen.kilobytes)
        return
    folder = Path(tempfile.mkdtemp())
    environment = {**os.environ, "RUBRIC_DATA_DIR": str(folder / "data"),
                   "RUBRIC_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}  # fmt: skip
    try:
        write_rows(folder / "data" / "prbench" / "finance.jsonl", chosen.lines)
        samples = folder / NAME
        subprocess.run(
            [sys.executable, __file__, "--write", str(samples), "--kilobytes",
             str(chosen.kilobytes)], env=environment, check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with stub(0.0) as url:
            command = [
                str(Path(sys.executable).with_name("lm-eval-rubrics")), "score", str(samples),
                "--output_path", str(folder / "out"), "--judge", "model=judge", f"base_url={url}",
                "prompt=builtin",
            ]  # fmt: skip
            begin = time.monotonic()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            seconds = time.monotonic() - begin
        megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print("| samples file | documents | seconds | peak memory | aim |\n|---|---|---|---|---|")
        print(f"| {samples.stat().st_size / 1e6:.0f} MB | {chosen.lines} | {seconds:.0f} | "
              f"{megabytes:.0f} MB | 400 MB |")  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
