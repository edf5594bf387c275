"""``lm-eval-rubrics score``: judge answers that were saved before, and write results of them.

Two passes over the files: the first checks everything before anything is paid, the second judges
with a bounded look-ahead and writes each document as soon as it is done. Rubrics and totals come
from the data, never from the files; of a file's documents only the hash is believed.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, TextIO

from lm_eval.evaluator_utils import _process_results
from lm_eval.loggers import EvaluationTracker
from lm_eval.loggers.evaluation_tracker import GeneralConfigTracker
from lm_eval.loggers.utils import add_env_info, get_git_commit_hash
from lm_eval.tasks import TaskManager
from lm_eval.utils import (
    handle_non_serializable,
    hash_string,
    make_table,
    sanitize_model_name,
    setup_logging,
)

import lm_eval_tasks
from custom_metrics import ranks, saved
from custom_metrics.errors import ConfigError, DataError, RubricError
from custom_metrics.judge import Judge, Panel
from custom_metrics.masking import mask
from custom_metrics.output import replacing, writing
from custom_metrics.saved import SamplesFile, SavedAnswer
from custom_metrics.task import RubricTask

logger = logging.getLogger("lm_eval.rubrics")

# What is read ahead of the document whose verdicts are awaited.
_MOST_BYTES = 64_000_000
_LEAST_CALLS, _CALLS_IN_FLIGHT = 256, 4

_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_COPIED = ("doc_id", "target", "arguments", "resps", "filtered_resps", "filter", *_HASHES)


@dataclass
class Scored:
    """What is kept of a task's documents while the others are judged: numbers and hashes."""

    values: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    hashes: list[tuple[int, dict[str, str]]] = field(default_factory=list)


def score(
    given: Sequence[str],
    *,
    judge: Mapping[str, Any],
    metadata: Mapping[str, Any],
    output_path: str | None,
) -> dict[str, Any]:
    """Judge the answers in samples files; results as the harness has them, written and returned.

    Raises :class:`DataError` for a file that does not fit, before anything is paid, and
    :class:`JudgeError` where the judge cannot go on; what it said is kept.
    """
    setup_logging()
    files, tasks, groups = load(given, judge, metadata)
    tracker = EvaluationTracker(output_path=output_path)
    _describe(tracker.general_config_tracker, files[0])
    folder = None
    if output_path:
        folder = Path(output_path) / str(tracker.general_config_tracker.model_name_sanitized)
        with writing(f"--output_path {output_path}"):
            folder.mkdir(parents=True, exist_ok=True)
    scored = {name: Scored() for name in tasks}
    with ExitStack() as stack:
        outputs: dict[str, TextIO] = {}
        for name in tasks if folder else ():
            with writing(f"--output_path {output_path}"):
                # Without a name: two judges may score into one folder, and a kill leaves nothing.
                outputs[name] = stack.enter_context(
                    TemporaryFile("w+", encoding="utf-8", dir=folder)
                )
        for name, sample in _judged(files, tasks):
            _take(scored[name], tasks[name], sample, outputs.get(name))
        for task in tasks.values():
            task.end_scoring()
        results = _results(files, tasks, groups, scored)
        if folder:
            date = _write_results(tracker, folder, results, scored)
            for name, written in outputs.items():
                written.seek(0)
                path = folder / f"samples_{name}_{date}.jsonl"
                with replacing(path) as part, part.open("w", encoding="utf-8") as file:
                    copyfileobj(written, file)
            print(f"written to {folder}/*_{date}.json(l)")
    print(make_table(results))
    if "groups" in results:
        print(make_table(results, "groups"))
    return results


def _write_results(
    tracker: EvaluationTracker,
    folder: Path,
    results: dict[str, Any],
    scored: Mapping[str, Scored],
) -> str:
    """Write the results file; the date in its name. Raises :class:`RubricError`."""
    hashes = {
        n: [h for _, h in sorted(s.hashes, key=lambda pair: pair[0])] for n, s in scored.items()
    }
    tracker.save_results_aggregated(results=results, samples=hashes)
    date = getattr(tracker, "date_id", None)
    if date is None or not (folder / f"results_{date}.json").is_file():
        raise RubricError(f"the results could not be written to {folder}")
    return str(date)


def load(
    given: Sequence[str], judge: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[list[SamplesFile], dict[str, RubricTask], dict[str, Any]]:
    """The files, checked through, their tasks by name, and the groups that are complete.

    Raises :class:`DataError` that names file and line, and :class:`ConfigError`.
    """
    ranks.refuse_copies(1)
    files = saved.find_files(given)
    manager = TaskManager(
        include_path=lm_eval_tasks.path(),
        include_defaults=False,
        metadata={
            **_task_prompt(files, metadata),
            **_answers(files),
            **metadata,
            "judge": dict(judge),
        },
    )
    names = list(dict.fromkeys(file.task for file in files))
    known = [n for n in manager.all_tasks if not _subtasks(manager, n)]
    for file in files:
        if file.task not in known:
            raise DataError(
                f"{file.path}: {file.task} is none of this project's tasks ({', '.join(known)})"
            )
    complete = [
        n for n in manager.all_tasks if (s := _subtasks(manager, n)) and set(s) <= set(names)
    ]
    alone = [n for n in names if not any(n in _subtasks(manager, g) for g in complete)]
    loaded = manager.load([*complete, *alone])
    tasks: dict[str, RubricTask] = {name: loaded["tasks"][name] for name in names}
    _check(files, tasks)
    for name, task in tasks.items():
        task.begin_scoring([file.config for file in files if file.task == name])
    return files, tasks, dict(loaded["groups"])


# --- first pass ----------------------------------------------------------------------------


def _check(files: Sequence[SamplesFile], tasks: Mapping[str, RubricTask]) -> None:
    """Read everything once. Raises :class:`DataError` for what would be a wrong mean later."""
    for name, task in tasks.items():
        hashes = {doc["id"]: _doc_hash(doc) for doc in task.test_docs()}
        seen: dict[str, str] = {}
        for file in (file for file in files if file.task == name):
            count = 0
            for answer in saved.read(file.path):
                count += 1
                if answer.id not in hashes:
                    raise DataError(
                        f"{answer.place}: {name} has no document {answer.id!r} here; is the file "
                        "of other data?"
                    )
                if answer.doc_hash != hashes[answer.id]:
                    raise DataError(
                        f"{answer.place}: document {answer.id!r} is not the one that is here: the "
                        f"file was made with other data or another version of {name} "
                        f"({_versions(file, task)}). Score it with those, or generate anew"
                    )
                if len(answer.responses) != task.answers:
                    raise DataError(
                        f"{answer.place}: {len(answer.responses)} answers to {answer.id!r}, and "
                        f"{task.answers} are to be scored of each document"
                    )
                if answer.id in seen:
                    raise DataError(
                        f"{answer.place}: a second answer to {answer.id!r}, which stands in "
                        f"{seen[answer.id]} already; give the files of one run"
                    )
                seen[answer.id] = answer.place
            if not count:
                raise DataError(f"{file.path}: no lines in it")
        if len(seen) < len(hashes):
            logger.warning(
                "%s: the files have %d of its %d documents, and only these are scored",
                name,
                len(seen),
                len(hashes),
            )


def _doc_hash(doc: Mapping[str, Any]) -> str:
    """As ``lm_eval.evaluator`` computes it."""
    text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    return str(hash_string(text))


def _versions(file: SamplesFile, task: RubricTask) -> str:
    metadata = file.config.get("metadata") or {}
    theirs = metadata.get("version", "unknown")
    data = (metadata.get("dataset") or {}).get("fingerprint", "unknown")
    return (
        f"version {theirs} and data {str(data)[:12]} there, version {task.VERSION} and data "
        f"{task.source.fingerprint[:12]} here"
    )


def _subtasks(manager: TaskManager, name: str) -> list[str]:
    return list((manager.task_index[name].cfg or {}).get("subtasks") or [])


def _answers(files: Iterable[SamplesFile]) -> dict[str, int]:
    """How many answers each document has."""
    counts = {saved.answers_in(file.path): file.path for file in files}
    if len(counts) > 1:
        shown = ", ".join(f"{count} in {path.name}" for count, path in counts.items())
        raise ConfigError(
            f"the files have different numbers of answers ({shown}); score them apart"
        )
    count = max(counts)
    return {"answers": count} if count > 1 else {}


def _task_prompt(files: Iterable[SamplesFile], metadata: Mapping[str, Any]) -> dict[str, str]:
    """The task prompt that the answers were given to: the judge is shown it as well."""
    names = {
        str(prompt["name"])
        for file in files
        if isinstance(prompt := (file.config.get("metadata") or {}).get("task_prompt"), Mapping)
    }
    chosen = metadata.get("task_prompt") or os.environ.get("RUBRIC_TASK_PROMPT")
    if len(names) > 1 or (chosen and names and names != {chosen}):
        raise ConfigError(
            f"the answers were given to the task prompt {' and '.join(sorted(names))}"
            + (f", and {chosen} is asked for" if chosen else "; score these files apart")
        )
    return {"task_prompt": names.pop()} if names else {}


# --- second pass ---------------------------------------------------------------------------


def _judged(
    files: Sequence[SamplesFile], tasks: Mapping[str, RubricTask]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document's sample in the order of the files, as soon as its verdicts are there."""
    waiting: deque[tuple[str, dict[str, Any], SavedAnswer, int]] = deque()
    size = calls = 0
    checked: set[Judge | Panel] = set()
    for file in files:
        task = tasks[file.task]
        judge = task.judge
        most = max(_LEAST_CALLS, _CALLS_IN_FLIGHT * judge.config.concurrency)
        docs = {doc["id"]: doc for doc in task.test_docs()}
        for answer in saved.read(file.path):
            doc = docs[answer.id]
            if judge not in checked and not judge.holds(
                [
                    call
                    for response in answer.responses
                    for call in task.calls_about(doc, response, answer.opens_reasoning)
                ]
            ):
                judge.check()  # nothing is asked, and no key needed, where all is in the store
                checked.add(judge)
            count = sum(
                task.judge_answer(doc, response, answer.opens_reasoning)
                for response in answer.responses
            )
            # Documents that were read stay as they are: the next sample may need the same one.
            waiting.append((file.task, dict(doc), answer, count))
            size, calls = size + answer.size, calls + count
            # A model in this process wants all calls as one batch.
            while waiting and not judge.config.in_process and (size > _MOST_BYTES or calls > most):
                name, ready, first, done = waiting.popleft()
                size, calls = size - first.size, calls - done
                yield name, _sample(tasks[name], ready, first)
    while waiting:
        name, ready, first, _ = waiting.popleft()
        yield name, _sample(tasks[name], ready, first)


def _sample(task: RubricTask, doc: dict[str, Any], answer: SavedAnswer) -> dict[str, Any]:
    """The line of a one-step run."""
    values = task.finish(doc, answer.responses)
    copied = {name: answer.line.get(name) for name in _COPIED}
    sample: dict[str, Any] = {"doc_id": copied.pop("doc_id"), "doc": doc}
    sample |= {name: copied[name] for name in _COPIED[1:6]}
    sample["metrics"] = list(values)
    return {**sample, **{name: copied[name] for name in _HASHES}, **values}


def _take(
    scored: Scored, task: RubricTask, sample: Mapping[str, Any], output: TextIO | None
) -> None:
    number = int(sample["doc_id"])
    scored.values.append((number, {name: sample[name] for name in task.metrics}))
    scored.hashes.append((number, {name: str(sample[name]) for name in _HASHES}))
    if output is not None:
        text = json.dumps(sample, default=handle_non_serializable, ensure_ascii=False)
        output.write(f"{text}\n")
        output.flush()


# --- results -------------------------------------------------------------------------------


def _results(
    files: Sequence[SamplesFile],
    tasks: Mapping[str, RubricTask],
    groups: Mapping[str, Any],
    scored: Mapping[str, Scored],
) -> dict[str, Any]:
    """The harness's results; documents in their order, so that sums are a one-step run's."""
    accumulated = {}
    for name, task in tasks.items():
        rows = [values for _, values in sorted(scored[name].values, key=lambda pair: pair[0])]
        accumulated[name] = {
            "task": task,
            "raw_metrics": {(m, "none"): [row[m] for row in rows] for m in task.metrics},
            "logged_samples": [],
        }
    results: dict[str, Any] = dict(
        _process_results(accumulated, dict(groups), 100_000)._to_eval_results()
    )
    for name in tasks:
        own = [file for file in files if file.task == name]
        results["configs"][name]["metadata"]["scored_from"] = [file.path.name for file in own]
        if "generation_kwargs" in own[0].config:  # what the answers were generated with
            results["configs"][name]["generation_kwargs"] = own[0].config["generation_kwargs"]
    first = files[0]
    results["config"] = first.results.get("config") or {
        "model": "unknown",
        "model_args": {"model": first.path.parent.name},
        "batch_sizes": [],
    }
    results["config"] = mask(results["config"])
    results["git_hash"] = get_git_commit_hash()
    results["date"] = datetime.now().timestamp()
    add_env_info(results)
    return results


def _describe(tracker: GeneralConfigTracker, file: SamplesFile) -> None:
    """Whose answers they are: as the run that gave them says, else by the folder's name."""
    for name in (entry.name for entry in fields(GeneralConfigTracker)):
        if name in file.results:
            setattr(tracker, name, file.results[name])
    if not tracker.model_name:
        tracker.model_source = "saved answers"
        tracker.model_name = file.path.resolve().parent.name
    tracker.model_name_sanitized = sanitize_model_name(str(tracker.model_name))
