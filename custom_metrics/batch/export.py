"""``lm-eval-rubrics export``: the judge's calls about saved answers, as batch files."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_metrics import saved
from custom_metrics.batch.files import MOST_BYTES, MOST_REQUESTS, RequestFiles, request_line
from custom_metrics.batch.registry import Export, Registry
from custom_metrics.errors import ConfigError
from custom_metrics.judge import JudgeConfig, Request
from custom_metrics.judge.store import store_path
from custom_metrics.saved import SamplesFile
from custom_metrics.score import load
from custom_metrics.task import RubricTask

logger = logging.getLogger("lm_eval.rubrics")


@dataclass(frozen=True)
class Exported:
    """What was written; no files where nothing was missing. ``held`` calls have a verdict in the
    store already, ``path`` is the requests' address, ``size`` in bytes."""

    export: Export
    files: tuple[Path, ...]
    requests: int
    held: int
    size: int
    path: str


def export(
    given: Sequence[str],
    out: Path,
    *,
    judge: Mapping[str, Any],
    metadata: Mapping[str, Any],
    most_requests: int = MOST_REQUESTS,
    most_bytes: int = MOST_BYTES,
) -> Exported:
    """Write the calls that the store has no verdict for. Nothing is sent, and no key is needed.

    Raises :class:`DataError` for samples that do not fit, and :class:`ConfigError`.
    """
    files, tasks, _ = load(given, judge, metadata)
    return write_missing(files, tasks, out, most_requests, most_bytes)


def write_missing(
    files: Sequence[SamplesFile],
    tasks: Mapping[str, RubricTask],
    out: Path,
    most_requests: int = MOST_REQUESTS,
    most_bytes: int = MOST_BYTES,
) -> Exported:
    """The same for files that :func:`~custom_metrics.score.load` has read."""
    config = next(iter(tasks.values())).judge.config
    check_batchable(config)
    made = Export(uuid.uuid4().hex[:12], config.name, config.endpoint)
    written = RequestFiles(out, most_requests, most_bytes)
    seen: dict[str, None] = {}
    path, held = "", 0
    try:
        for calls, requests in _missing(files, tasks):
            held += calls - len(requests)
            fresh = [request for request in requests if request.key not in seen]
            seen.update(dict.fromkeys(request.key for request in fresh))
            if fresh:
                path = fresh[0].path
                written.write([request_line(made.id, request) for request in fresh])
        if seen:
            registry = Registry()
            registry.add(made, seen)  # before there is a file that somebody could send
            registry.close()
        return Exported(made, tuple(written.finish()), len(seen), held, written.size, path)
    finally:
        written.discard()


def check_batchable(config: JudgeConfig) -> None:
    """Raises :class:`ConfigError` for a judge that no batch file can be written for."""
    if config.models:
        raise ConfigError(
            f"models: batch files are for one judge. Have each of {', '.join(config.judge_names)} "
            "asked alone (its model, base_url and repeats); score with models then finds in the "
            "store what each has said"
        )
    if config.backend != "openai":
        raise ConfigError(
            f"backend={config.backend} takes no batch files; leave backend out, and give the model "
            "and base_url of the server that the replies are to come from"
        )
    if config.azure_endpoint:
        raise ConfigError("azure_endpoint: batch files are written for OpenAI's addresses only")
    if store_path() is None:
        raise ConfigError("RUBRIC_JUDGE_CACHE is off: there is nowhere to keep a batch's replies")


def _missing(
    files: Iterable[SamplesFile], tasks: Mapping[str, RubricTask]
) -> Iterator[tuple[int, list[Request]]]:
    """For each answer the number of its calls, and the requests that the store has no verdict for,
    side by side: they share a conversation."""
    for file in files:
        task = tasks[file.task]
        docs = {doc["id"]: doc for doc in task.test_docs()}
        for answer in saved.read(file.path):
            calls = [
                call
                for response in answer.responses
                for call in task.calls_about(docs[answer.id], response, answer.opens_reasoning)
            ]
            yield len(calls) * len(task.judge.config.opinions), task.judge.missing(calls)
