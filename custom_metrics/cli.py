"""The command ``lm-eval-rubrics``.

Exit codes: 0 all done; 2 a wrong setting, file or row, or something that could not be fetched;
3 the judge could not go on; 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import lm_eval_tasks
from custom_metrics.errors import JudgeError, RubricError

_QUALITIES = ("strong", "middling", "weak")
_DEMOS = {"prbench_sample": "prbench", "plawbench_sample": "plawbench"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except JudgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except RubricError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:  # its flags are the harness's, and the harness parses them
        return _run(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="lm-eval-rubrics",
        description="Rubric-graded benchmarks for lm-evaluation-harness.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="lm_eval's own run, with --judge; run --help lists its flags")
    commands.add_parser("demo", help="score bundled answers with the lexical judge: no key needed")
    commands.add_parser("path", help="print the folder for lm_eval's --include_path")
    commands.add_parser("link", help="make the tasks known to the lm_eval of this environment")
    commands.add_parser("unlink", help="undo link")
    command = parser.parse_args(arguments).command
    if command == "path":
        print(lm_eval_tasks.path())
    elif command == "demo":
        _demo()
    else:
        _link(command)
    return 0


def _run(arguments: Sequence[str]) -> int:
    from custom_metrics.run import known_failure, run  # the harness takes a second to import

    try:
        run(arguments)
    except Exception as error:
        message = known_failure(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    return 0


def _demo() -> None:
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "ERROR")
    from custom_metrics.run import run

    for task, folder in _DEMOS.items():
        for quality in _QUALITIES:
            answers = Path(lm_eval_tasks.path()) / folder / "sample_answers" / f"{quality}.json"
            print(
                f"\n{task}: {quality} answers, lexical judge "
                "(a smoke test of the plumbing: these scores mean nothing)\n",
                flush=True,
            )
            model_args = json.dumps({"path": str(answers)})
            run(["--model", "prefilled", "--model_args", model_args, "--tasks", task,
                 "--metadata", '{"task_prompt": "builtin"}',
                 "--judge", "backend=lexical", "prompt=builtin"])  # fmt: skip


def _link(command: str) -> None:
    from custom_metrics.link import folder, link, unlink

    if command == "link":
        names = link()
        print(f"lm_eval knows {len(names)} tasks now: {', '.join(names)} (files in {folder()})")
    else:
        print("unlinked" if unlink() else "nothing was linked")


if __name__ == "__main__":
    sys.exit(main())
