"""The command ``lm-eval-rubrics``.

Exit codes: 0 all done; 2 a wrong setting, file or row, or something that could not be fetched;
3 the judge could not go on; 130 and 143 Ctrl-C and SIGTERM; 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval_tasks
from custom_metrics.arguments import parse, read_json, read_pairs
from custom_metrics.errors import (
    INTERRUPTED_CODE,
    TERMINATED_CODE,
    ConfigError,
    JudgeError,
    RubricError,
    Terminated,
    termination_as_interrupt,
)
from custom_metrics.masking import masked_streams

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 140  # of a table that goes into a file
_QUALITIES = ("strong", "middling", "weak")
_DEMOS = {"prbench_sample": "prbench", "plawbench_sample": "plawbench"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code. No secret is printed, not even in a traceback."""
    with masked_streams():
        return _outcome(list(sys.argv[1:] if argv is None else argv))


def _outcome(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except JudgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except RubricError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED_CODE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED_CODE


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:  # its flags are the harness's, and the harness parses them
        return _run(arguments[1:])
    parsed = parse(_parser(), arguments)
    parsed.do(parsed)
    return 0


def _parser() -> argparse.ArgumentParser:
    """All commands; ``do`` of what it parses is the function that does it."""
    parser = argparse.ArgumentParser(
        prog="lm-eval-rubrics",
        description="Rubric-graded benchmarks for lm-evaluation-harness.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, do: Callable[[argparse.Namespace], None], text: str,
            *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:  # fmt: skip
        command = commands.add_parser(name, help=text, parents=parents)
        command.set_defaults(do=do)
        return command

    saved = argparse.ArgumentParser(add_help=False)
    saved.add_argument("samples", nargs="+", metavar="SAMPLES", help="files, globs or folders")
    saved.add_argument("--metadata", metavar="JSON", help="as for lm_eval")
    judge = argparse.ArgumentParser(add_help=False)
    judge.add_argument("--judge", nargs="+", default=[], metavar="KEY=VALUE")

    commands.add_parser("run", help="lm_eval's own run, with --judge; run --help lists its flags")
    add("demo", _demo, "score bundled answers with the lexical judge: no key needed")
    add("path", _path, "print the folder for lm_eval's --include_path")
    add("link", _link, "make the tasks known to the lm_eval of this environment")
    add("unlink", _link, "undo link")
    cache = add("cache", _cache, "what the judge's store holds; prune it")
    cache.add_argument("--prune", action="store_true", help="remove what the two flags below say")
    cache.add_argument("--older_than", type=float, metavar="DAYS", help="replies older than that")
    cache.add_argument("--model", metavar="NAME", help="replies of that judge model")
    estimate = add("estimate", _estimate, "what judging would cost; nothing is sent", judge)
    estimate.add_argument("--tasks", nargs="+", required=True, metavar="TASK")
    estimate.add_argument("--limit", type=int, metavar="N", help="documents of each task")
    estimate.add_argument("--price", metavar="IN,CACHED,OUT", help="per million tokens")
    estimate.add_argument("--answer_tokens", type=int, default=800, metavar="N")
    estimate.add_argument("--answers", type=int, default=1, metavar="K", help="to each document")
    estimate.add_argument("--reply_tokens", type=int, default=150, metavar="N")
    score = add("score", _score, "judge answers that lm_eval has saved, and score them",
                saved, judge)  # fmt: skip
    score.add_argument("--output_path", metavar="DIR", help="for results and samples")
    export = add("export", _export, "write the judge's calls as OpenAI batch files", saved, judge)
    export.add_argument("-o", "--output", required=True, metavar="FILE", help="requests.jsonl")
    _add_limit(export)
    replies = add("import", _import, "read a batch's replies into the judge's store")
    replies.add_argument("replies", nargs="+", metavar="REPLIES", help="files or globs")
    batch = add("batch", _batch, "score by OpenAI's Batch API, resumable", saved, judge)
    batch.add_argument("--output_path", metavar="DIR", help="for results and samples")
    batch.add_argument(
        "--live_rest", action="store_true", help="ask what no batch brought by itself"
    )
    batch.add_argument(
        "--forget_lost", action="store_true", help="send again what the API no longer has"
    )
    batch.add_argument("--poll", type=float, default=60, metavar="SECONDS", help="default: 60")
    _add_limit(batch)
    report = add("report", _report, "results and samples as one HTML file")
    report.add_argument("results", nargs="+", metavar="RESULTS", help="folders or results files")
    report.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the report")
    report.add_argument("--csv", metavar="FILE", help="also the verdicts, one a row")
    report.add_argument("--parquet", metavar="FILE", help="the same as parquet")
    report.add_argument("--plots", metavar="DIR", help="also the charts, as files")
    report.add_argument("--plot_format", choices=("svg", "png"), default="svg")
    compare = add("compare", _compare, "two runs, on the documents of both")
    compare.add_argument(
        "first", metavar="A", help="a model's folder of results, or a results file"
    )
    compare.add_argument("second", metavar="B", help="the same of the other run")
    compare.add_argument("--json", action="store_true", help="everything, for programs")
    compare.add_argument(
        "--anyway", action="store_true", help="also where judge, prompts, data or versions differ"
    )
    agree = add("agree", _agree, "two judges, or a judge and people, on one answer")
    agree.add_argument("first", metavar="A", help="a model's folder of results, or a file")
    agree.add_argument("second", metavar="B", nargs="?", help="the same answers by another judge")
    agree.add_argument("--labels", metavar="CSV", help="people's: document, criterion, label")
    agree.add_argument("--json", action="store_true", help="everything, for programs")
    fetch = add("fetch", _fetch, "stage data and prompts for a machine without a net")
    fetch.add_argument("--dest", required=True, metavar="DIR", help="where to; made if need be")
    fetch.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all")
    fetch.add_argument("--dataset_revision", metavar="REV", help="of PRBench; default: main")
    return parser


def _run(arguments: Sequence[str]) -> int:
    from custom_metrics.run import known_failure, run  # the harness takes a second to import

    try:
        with termination_as_interrupt():
            run(arguments)
    except Exception as error:
        message = known_failure(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    return 0


def _path(_: argparse.Namespace) -> None:
    print(lm_eval_tasks.path())


def _demo(_: argparse.Namespace) -> None:
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


def _cache(parsed: argparse.Namespace) -> None:
    from custom_metrics.judge.store import Store, store_path

    path = store_path()
    if path is None or not path.exists():
        print("RUBRIC_JUDGE_CACHE is off" if path is None else f"{path}: nothing is kept yet")
        return
    if not parsed.prune and (parsed.older_than is not None or parsed.model is not None):
        raise ConfigError("cache: --older_than and --model go with --prune")
    store = Store(path)
    if parsed.prune:
        if parsed.older_than is not None and parsed.older_than < 0:
            raise ConfigError(f"--older_than: 0 or more days, not {parsed.older_than:g}")
        if parsed.older_than is None and parsed.model is None:
            raise ConfigError("cache --prune: say what, with --older_than DAYS or --model NAME")
        days = parsed.older_than
        before = None if days is None else time.time() - days * 86_400
        print(f"{store.prune(older_than=before, model=parsed.model)} replies removed")
    size = sum(p.stat().st_size for p in path.parent.glob(f"{path.name}*"))
    print(f"{path}: {size / 1e6:.1f} MB")
    for share in store.shares():
        print(
            f"{share.model} at {share.endpoint}: {share.usable} verdicts, {share.unusable} "
            f"replies without one, {share.size / 1e6:.1f} M characters, "
            f"{time.strftime('%Y-%m-%d', time.localtime(share.oldest))} to "
            f"{time.strftime('%Y-%m-%d', time.localtime(share.newest))}"
        )
    store.close()


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests_per_file", type=int, default=50_000, metavar="N", help="at most; default: 50000"
    )


def _judge_and_metadata(parsed: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``--judge`` and ``--metadata`` say, checked."""
    from custom_metrics.judge import resolve_config

    metadata = read_json("--metadata", parsed.metadata) if parsed.metadata else {}
    if not isinstance(metadata, dict):
        raise ConfigError("--metadata: a JSON object is needed")
    judge = {**(metadata.pop("judge", None) or {}), **read_pairs("--judge", parsed.judge)}
    resolve_config(judge)
    return judge, metadata


def _score(parsed: argparse.Namespace) -> None:
    from custom_metrics.score import score

    judge, metadata = _judge_and_metadata(parsed)
    with termination_as_interrupt():
        score(parsed.samples, judge=judge, metadata=metadata, output_path=parsed.output_path)


def _export(parsed: argparse.Namespace) -> None:
    from custom_metrics.batch.export import export

    judge, metadata = _judge_and_metadata(parsed)
    made = export(
        parsed.samples,
        Path(parsed.output).expanduser(),
        judge=judge,
        metadata=metadata,
        most_requests=_requests_per_file(parsed),
    )
    print(f"{made.requests} calls to be made, {made.held} in the store already")
    for path in made.files:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    if made.files:
        print("Then: lm-eval-rubrics import REPLIES, and score with the same settings")


def _import(parsed: argparse.Namespace) -> None:
    from custom_metrics.batch.replies import import_replies

    print(import_replies(parsed.replies))


def _batch(parsed: argparse.Namespace) -> None:
    from custom_metrics.batch.rounds import judge_in_batches

    if not parsed.poll > 0:
        raise ConfigError("--poll: more than 0 seconds")
    judge, metadata = _judge_and_metadata(parsed)
    with termination_as_interrupt():
        judge_in_batches(
            parsed.samples,
            judge=judge,
            metadata=metadata,
            output_path=parsed.output_path,
            live_rest=parsed.live_rest,
            forget_lost=parsed.forget_lost,
            poll=parsed.poll,
            most_requests=_requests_per_file(parsed),
        )


def _requests_per_file(parsed: argparse.Namespace) -> int:
    if not 1 <= parsed.requests_per_file <= 50_000:
        raise ConfigError("--requests_per_file: 1 to 50000")
    return int(parsed.requests_per_file)


def _estimate(parsed: argparse.Namespace) -> None:
    from custom_metrics.estimate import estimate, text
    from custom_metrics.judge import resolve_config

    settings = read_pairs("--judge", parsed.judge)
    if parsed.price:
        settings["prices"] = parsed.price
    config = resolve_config(None, settings)
    names = [name for given in parsed.tasks for name in given.split(",") if name]
    found = estimate(
        names,
        config,
        limit=parsed.limit,
        answer_tokens=parsed.answer_tokens,
        reply_tokens=parsed.reply_tokens,
        metadata={"answers": parsed.answers},
    )
    print(text(found, config))


def _report(parsed: argparse.Namespace) -> None:
    from custom_metrics.analysis.results import read_runs
    from custom_metrics.report import plots, summarise, write_report

    given = [p for p in (parsed.output, parsed.csv, parsed.parquet) if p]
    if len({Path(p).expanduser().resolve() for p in given}) < len(given):
        raise ConfigError("report: -o, --csv and --parquet need files of their own")
    runs = read_runs(parsed.results)
    for run in runs:
        for note in (*run.conflicts, *run.notes):
            print(f"note: {run.label}: {note}", file=sys.stderr)
    summary = summarise(runs)
    path = write_report(summary, Path(parsed.output).expanduser())
    count = sum(len(run.documents) for run in runs)
    print(f"{path}: {len(runs)} runs, {count} documents, {path.stat().st_size / 1e6:.1f} MB")
    if parsed.csv or parsed.parquet:
        from custom_metrics.analysis.table import write_csv, write_parquet

        for write, given in ((write_csv, parsed.csv), (write_parquet, parsed.parquet)):
            if given:
                write(runs, Path(given).expanduser())
                print(given)
    if parsed.plots:
        written = plots(summary, Path(parsed.plots).expanduser(), parsed.plot_format)
        print(f"{parsed.plots}: {len(written)} charts")


def _compare(parsed: argparse.Namespace) -> None:
    from custom_metrics.analysis.compare import compare
    from custom_metrics.analysis.comparison_tables import as_json, show
    from custom_metrics.analysis.results import read_run, told_apart

    first, second = told_apart([read_run(parsed.first), read_run(parsed.second)])
    comparison = compare(first, second, anyway=parsed.anyway)
    if parsed.json:
        print(as_json(comparison))
    else:
        show(comparison, _console())


def _agree(parsed: argparse.Namespace) -> None:
    from custom_metrics.analysis.agree import agree
    from custom_metrics.analysis.agreement_tables import as_json, show
    from custom_metrics.analysis.labels import read_labels
    from custom_metrics.analysis.results import read_run, told_apart

    if parsed.second is None and parsed.labels is None:
        raise ConfigError("agree: with what? Give a second run, or --labels")
    given = [parsed.first, *([parsed.second] if parsed.second else [])]
    runs = told_apart([read_run(path) for path in given])
    found = agree(runs, read_labels(parsed.labels) if parsed.labels else None)
    if parsed.json:
        print(as_json(found))
    else:
        show(found, _console())


def _console() -> Console:
    """As wide as the terminal, or as a table in a file may be."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)


def _fetch(parsed: argparse.Namespace) -> None:
    from custom_metrics.staging import stage

    names = [name for given in parsed.tasks or [] for name in given.split(",") if name]
    folder = Path(parsed.dest).expanduser()
    sizes = stage(folder, names, parsed.dataset_revision)
    print(
        f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB. There: export RUBRIC_DATA_DIR=DIR "
        f"RUBRIC_PROMPTS_DIR=DIR, DIR being {folder} or where it was carried"
    )


def _link(parsed: argparse.Namespace) -> None:
    from custom_metrics.link import folder, link, unlink

    if parsed.command == "link":
        names = link()
        print(f"lm_eval knows {len(names)} tasks now: {', '.join(names)} (files in {folder()})")
    else:
        print("unlinked" if unlink() else "nothing was linked")


if __name__ == "__main__":
    sys.exit(main())
