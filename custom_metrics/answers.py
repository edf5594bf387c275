"""Files of answers that exist already: document id → answer, or a list of several."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from custom_metrics import data
from custom_metrics.errors import DataError

_ID_FIELDS = ("id", "task")
_ANSWER_FIELDS = ("answer", "response", "output")


Given = str | list[str]
"""An answer to a document, or several."""


def read(path: Path) -> dict[str, Given]:
    """Answers by document id.

    A JSON object ``{id: answer}``, or JSONL with one object a line: ``id`` (or ``task``) and
    ``answer`` (or ``response``, ``output``), or a samples file that the harness wrote. A null
    answer is an empty one, a list holds several. Raises :class:`DataError` that names the line.
    """
    try:
        if path.suffix == ".json":
            text = path.read_text(encoding="utf-8-sig")
            loaded = json.loads(text, object_pairs_hook=partial(_once, path))
            if not isinstance(loaded, Mapping):
                raise DataError(f"{path}: a JSON object, document id → answer, is needed")
            return {str(key): _answer(value, f"{path}, {key!r}") for key, value in loaded.items()}
        answers: dict[str, Given] = {}
        for number, line in data.read_jsonl(path):
            row = _of_sample(line)
            place = f"{path}, line {number}"
            identifier = next((row[f] for f in _ID_FIELDS if row.get(f) is not None), None)
            field = next((f for f in _ANSWER_FIELDS if f in row), None)
            if identifier is None or field is None:
                raise DataError(
                    f"{place}: needs {' or '.join(_ID_FIELDS)}, and "
                    f"{' or '.join(_ANSWER_FIELDS)}; it has {', '.join(map(str, row))}"
                )
            if str(identifier) in answers:
                raise DataError(f"{place}: a second answer for {identifier!r}")
            answers[str(identifier)] = _answer(row[field], place)
        return answers
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: not JSON in UTF-8 ({error})") from None


def write_tasks(folder: Path, answered: Mapping[str, Mapping[str, Given]]) -> Path:
    """Write answers by task into a new folder below ``folder``, a file a task; that new folder.

    :func:`read` takes each file. Raises ``OSError``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=folder))
    for task, kept in answered.items():
        text = json.dumps(dict(kept), ensure_ascii=False, indent=1)
        (new / f"{task}.json").write_text(text, encoding="utf-8")
    return new


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand in it once: JSON takes the last of two without a word."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DataError(f"{path}: a second answer for {key!r}")
        found[key] = value
    return found


def _of_sample(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of the harness's samples file as ``id`` and ``answer``; another line as it is."""
    doc, responses = row.get("doc"), row.get("resps")
    if not isinstance(doc, Mapping) or "id" not in doc or not responses:
        return row
    given = responses[0]
    return {"id": doc["id"], "answer": given[0] if len(given) == 1 else given}


def _answer(value: object, place: str) -> Given:
    if isinstance(value, list) and value:
        return [_text(one, place) for one in value]
    return _text(value, place)


def _text(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise DataError(f"{place}: an answer is a string or null, or a list of these, not {kind}")
    return value
