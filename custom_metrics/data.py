"""The rows of a benchmark's split: from the Hub, from a folder of the user's, or bundled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_metrics.answer import writable
from custom_metrics.errors import DataError

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where rows came from. ``fingerprint`` is the SHA-256 over the files' bytes."""

    origin: str
    revision: str | None
    files: tuple[Path, ...]
    fingerprint: str

    def record(self) -> dict[str, Any]:
        """What the results file says of it: no path of this machine."""
        return {
            "origin": self.origin,
            "revision": self.revision,
            "files": [path.name for path in self.files],
            "fingerprint": self.fingerprint,
        }


def find_split(
    repository: str, split: str, *, folder_name: str, revision: str | None, bundled: Path | None
) -> Source:
    """The files of ``split``: bundled, else below ``RUBRIC_DATA_DIR``, else on the Hub.

    Raises :class:`DataError` that says where was looked and what to do.
    """
    if bundled is not None:
        return _source("bundled with lm-eval-rubrics", None, [bundled])
    chosen = os.environ.get("RUBRIC_DATA_DIR")
    if chosen:
        folder = Path(chosen).expanduser() / folder_name
        files = _split_files(folder, split)
        if not files:
            names = ", ".join(_patterns(split))
            raise DataError(
                f"RUBRIC_DATA_DIR={chosen}: no file of the split {split!r} in {folder_name}/ "
                f"(looked for {names}); add it, or unset the variable to use the Hub"
            )
        return _source(f"RUBRIC_DATA_DIR/{folder_name}", None, files)
    return _from_hub(repository, split, revision)


def _from_hub(repository: str, split: str, revision: str | None) -> Source:
    from huggingface_hub import snapshot_download

    wanted = [pattern for name in _patterns(split) for pattern in (name, f"*/{name}")]
    try:
        folder = Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=wanted
            )
        )
    except Exception as error:  # the Hub's client raises many kinds; each gets the same mend
        raise DataError(
            f"{repository}, split {split!r}, revision {revision or 'main'}: the Hub said "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0]}. Check the name and the "
            "connection, or set RUBRIC_DATA_DIR to a folder that holds the data"
        ) from error
    files = _split_files(folder, split)
    if not files:
        raise DataError(
            f"{repository} at revision {folder.name} has no parquet file of the split {split!r}, "
            "or it is not in the local cache and the Hub is switched off (HF_HUB_OFFLINE)"
        )
    # The Hub's cache names each snapshot by its commit.
    return _source(repository, folder.name, files)


def _patterns(split: str) -> tuple[str, ...]:
    return (f"{split}.parquet", f"{split}.jsonl", f"{split}-*-of-*.parquet")


def _split_files(folder: Path, split: str) -> list[Path]:
    for place in (folder, folder / "data"):
        for pattern in _patterns(split):
            files = sorted(place.glob(pattern))
            if files:
                return files
    return []


def _source(origin: str, revision: str | None, files: Sequence[Path]) -> Source:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return Source(origin, revision, tuple(files), digest.hexdigest())


def read_docs(
    source: Source, row_to_doc: Callable[[Row, str, int], dict[str, Any] | None], split: str
) -> list[dict[str, Any]]:
    """Every row of ``split`` as a document, which has an ``id``.

    ``row_to_doc`` is given row, split and the row's number; None is a row of another split.

    Raises :class:`DataError` that names file, row and field for a row that ``row_to_doc`` refuses,
    for an id that occurs twice, and for a split without rows.
    """
    docs: list[dict[str, Any]] = []
    seen: dict[str, str] = {}
    for path in source.files:
        for number, row in _rows(path):
            place = f"{path.name}, row {number}"
            try:
                doc = row_to_doc(row, split, number)
            except DataError as error:
                name = row.get("task") or row.get("id")
                raise DataError(f"{place}{f' ({name})' if name else ''}: {error}") from None
            if doc is None:
                continue
            identifier = str(doc["id"])
            if identifier in seen:
                raise DataError(f"{place}: id {identifier!r} stands in {seen[identifier]} already")
            seen[identifier] = place
            docs.append(doc)
    if not docs:
        raise DataError(f"{', '.join(path.name for path in source.files)}: no documents")
    return docs


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """``(number, row)``: the line of a JSONL file from 1, the index of a parquet row from 0."""
    if path.suffix == ".jsonl":
        yield from read_jsonl(path)
        return
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path.name}: not a readable parquet file ({error})") from error
    yield from enumerate(table.to_pylist())


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """``(line number from 1, object)`` for each line that is not blank."""
    with path.open(encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise DataError(f"{path.name}, line {number}: not JSON ({error})") from None
                if not isinstance(row, Mapping):
                    raise DataError(f"{path.name}, line {number}: an object is needed")
                # An escaped lone surrogate is valid JSON that no file and no Arrow table takes.
                yield number, deep_writable(dict(row)) if "\\u" in line else dict(row)
        except UnicodeDecodeError as error:
            raise DataError(f"{path.name}: not UTF-8 ({error})") from None


def deep_writable(value: Any) -> Any:
    """:func:`writable` applied to every string inside ``value``."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, Mapping):
        return {key: deep_writable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [deep_writable(item) for item in value]
    return value
