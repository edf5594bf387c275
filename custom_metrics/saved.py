"""Answers that the harness has saved: its samples files, read line by line."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_metrics.answer import opens_reasoning
from custom_metrics.data import deep_writable
from custom_metrics.errors import DataError

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_NEEDED = ("doc", "doc_hash", "resps")


@dataclass(frozen=True)
class SamplesFile:
    """A samples file. ``results`` is what the harness wrote beside it, empty where that is gone."""

    path: Path
    task: str
    results: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """The task's configuration in that run."""
        return dict((self.results.get("configs") or {}).get(self.task) or {})


@dataclass(frozen=True)
class SavedAnswer:
    """One line: what the model answered to a document, once or several times. ``line`` is all that
    stands there."""

    place: str
    id: str
    doc_hash: str
    responses: tuple[str, ...]
    prompt: str | None
    line: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Characters of prompt and answers."""
        return sum(map(len, self.responses)) + len(self.prompt or "")

    @property
    def opens_reasoning(self) -> bool:
        return self.prompt is not None and opens_reasoning(self.prompt)


def find_files(given: Sequence[str]) -> list[SamplesFile]:
    """The samples files among paths, globs and folders, by task.

    Raises :class:`DataError` for a path without any, and for a name that is not the harness's.
    """
    paths: dict[Path, None] = {}
    for pattern in given:
        path = Path(pattern)
        if path.is_dir():
            found = sorted(path.rglob("samples_*.jsonl"))
        else:
            found = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))
        if not found:
            raise DataError(f"{pattern}: no samples file there")
        paths.update(dict.fromkeys(found))
    return sorted((_file(path) for path in paths), key=lambda file: (file.task, str(file.path)))


def _file(path: Path) -> SamplesFile:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise DataError(
            f"{path}: not the name of a samples file; lm_eval --log_samples or --predict_only "
            "writes samples_<task>_<date>.jsonl"
        )
    beside = path.with_name(f"results_{match['date']}.json")
    results: Any = {}
    if beside.is_file():
        try:
            results = json.loads(beside.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{beside}: not JSON in UTF-8 ({error})") from None
    return SamplesFile(path, match["task"], results if isinstance(results, dict) else {})


def answers_in(path: Path) -> int:
    """How many answers the first line of a samples file has. Raises :class:`DataError`."""
    return next((len(answer.responses) for answer in read(path)), 1)


def read(path: Path) -> Iterator[SavedAnswer]:
    """The lines of a samples file, one at a time.

    Raises :class:`DataError` that names the line, also for one that was cut off.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _answer(text, f"{path.name}, line {number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _answer(text: str, place: str) -> SavedAnswer:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        if text.endswith("\n"):
            raise DataError(f"{place}: not JSON") from None
        raise DataError(
            f"{place}: the file ends in the middle of a line; copy it again, or remove that line "
            "and have its document generated anew"
        ) from None
    missing = [name for name in _NEEDED if not isinstance(line, dict) or not line.get(name)]
    doc = line.get("doc") if isinstance(line, dict) else None
    if missing or not isinstance(doc, dict) or not isinstance(doc.get("id"), str):
        raise DataError(
            f"{place}: not a line of a samples file of this project's tasks (it lacks "
            f"{', '.join(missing) or 'doc.id'})"
        )
    responses = line["resps"]
    first = responses[0] if isinstance(responses, list) else None
    given = first if isinstance(first, list) and first else [first]
    if not all(isinstance(response, str) for response in given):
        raise DataError(f"{place} ({doc['id']}): no response in 'resps'")
    arguments = line.get("arguments") or {}
    prompt = (arguments.get("gen_args_0") or {}).get("arg_0")
    return SavedAnswer(
        place,
        doc["id"],
        str(line["doc_hash"]),
        tuple(str(deep_writable(response)) for response in given),
        prompt if isinstance(prompt, str) else None,
        line,
    )
