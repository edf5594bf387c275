"""The rows of a benchmark's split: from the Hub, from a folder of the user's, or bundled."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_metrics import fetch
from custom_metrics.answer import writable
from custom_metrics.errors import DataError, FetchError
from custom_metrics.masking import hide, known_secrets

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


@dataclass(frozen=True)
class Pinned:
    """A file of a benchmark's own repository. ``repositories`` are names of the same one."""

    repositories: tuple[str, ...]
    commit: str
    sha256: str


def find_split(
    split: str,
    *,
    repository: str,
    folder: str,
    files: Sequence[str] = (),
    revision: str | None = None,
    github: Pinned | None = None,
    bundled: Path | None = None,
) -> Source:
    """The files of ``split``: bundled, else below ``RUBRIC_DATA_DIR``, else where they come from.

    That is the first of ``files`` in the pinned repository ``github``, or else the data set
    ``repository`` on the Hub. Below ``RUBRIC_DATA_DIR``/``folder`` a file may have one of the names
    ``files`` or one made from ``split``. Raises :class:`DataError` that says what to do.
    """
    if bundled is not None:
        return _source("bundled with lm-eval-rubrics", None, [bundled])
    chosen = os.environ.get("RUBRIC_DATA_DIR")
    if chosen:
        names = (*files, *patterns(split))
        found = _first_match(Path(chosen).expanduser() / folder, names)
        if not found:
            raise DataError(
                f"RUBRIC_DATA_DIR={chosen}: no file of {split!r} in {folder}/ (looked for "
                f"{', '.join(names)}); add it, or unset the variable to have it fetched"
            )
        return _source(f"RUBRIC_DATA_DIR/{folder}", None, found)
    return fetched_split(split, repository, files, revision, github)


def fetched_split(
    split: str,
    repository: str,
    files: Sequence[str] = (),
    revision: str | None = None,
    github: Pinned | None = None,
) -> Source:
    """:func:`find_split` without a folder of the user's: from the authors' repository or the Hub.

    What was fetched before is not fetched again. Raises :class:`DataError`.
    """
    if github is not None:
        return _from_github(github, files[0])
    return _from_hub(repository, split, revision)


def _from_github(pinned: Pinned, name: str) -> Source:
    path = fetch.cache_folder() / "data" / pinned.sha256[:16] / name
    if not (path.is_file() and fetch.sha256(path.read_bytes()) == pinned.sha256):
        try:
            content = fetch.github_file(pinned.repositories, pinned.commit, name)
            if fetch.sha256(content) != pinned.sha256:
                raise FetchError(f"{name} does not have the SHA-256 {pinned.sha256}")
        except FetchError as error:
            raise DataError(
                f"the data could not be had: {error}. Set RUBRIC_DATA_DIR to a folder that holds "
                "it, or RUBRIC_GITHUB_RAW to a mirror"
            ) from error
        try:
            fetch.keep(path, content)
        except OSError as error:
            raise DataError(
                f"{path} cannot be written ({error.strerror}); set RUBRIC_CACHE_DIR to a folder "
                "that can"
            ) from None
    return _source(f"github.com/{pinned.repositories[0]}", pinned.commit, [path])


def _from_hub(repository: str, split: str, revision: str | None) -> Source:
    from huggingface_hub import snapshot_download

    wanted = [pattern for name in patterns(split) for pattern in (name, f"*/{name}")]
    try:
        folder = Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=wanted
            )
        )
    except Exception as error:  # the Hub's client raises many kinds; each gets the same mend
        said = hide(" ".join(str(error).split()), known_secrets())
        raise DataError(
            f"{repository}, split {split!r}, revision {revision or 'main'}: the Hub said "
            f"{type(error).__name__}: {said[:300]}. Check the "
            "name and the connection (HF_HUB_OFFLINE switches it off), or set RUBRIC_DATA_DIR to a "
            "folder that holds the data"
        ) from None
    files = _first_match(folder, patterns(split))
    if not files:
        raise DataError(
            f"{repository} at revision {folder.name} has no parquet file of the split {split!r}, "
            "or it is not in the local cache and the Hub is switched off (HF_HUB_OFFLINE)"
        )
    # The Hub's cache names each snapshot by its commit.
    return _source(repository, folder.name, files)


def patterns(split: str) -> tuple[str, ...]:
    """The names that the file or files of ``split`` may have, in the order of their preference."""
    return (f"{split}.parquet", f"{split}.jsonl", f"{split}-*-of-*.parquet")


def _first_match(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of the first pattern that any file matches, in ``folder`` or its ``data``."""
    for place in (folder, folder / "data"):
        for pattern in patterns:
            files = sorted(place.glob(pattern))
            if files:
                _check_shards(files)
                return files
    return []


def _check_shards(files: Sequence[Path]) -> None:
    """Refuse a part of a split for the whole: ``name-00000-of-00003`` wants all three."""
    matches = [_SHARD.search(path.name) for path in files]
    numbers = {int(match[1]) for match in matches if match}
    counts = {int(match[2]) for match in matches if match}
    if not counts:
        return
    missing = sorted(set(range(max(counts))) - numbers)
    if missing or len(counts) > 1 or len(numbers) != len(files):
        raise DataError(
            f"{files[0].parent.name}/: of the shards of {files[0].name} the numbers {missing} are "
            "missing, or shards of several versions lie side by side; make the set complete"
        )


_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")


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
    """``(number, row)``: the line of a JSONL file or the entry of a JSON list, from 1; the index
    of a parquet row, from 0."""
    if path.suffix == ".jsonl":
        yield from read_jsonl(path)
    elif path.suffix == ".json":
        try:
            loaded = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path.name}: not JSON in UTF-8 ({error})") from None
        if not isinstance(loaded, list) or not all(isinstance(row, dict) for row in loaded):
            raise DataError(f"{path.name}: a list of objects is needed")
        yield from enumerate(deep_writable(loaded), 1)
    else:
        import pyarrow.parquet as parquet

        try:
            table = parquet.read_table(path)
        except Exception as error:
            raise DataError(f"{path.name}: not a readable parquet file ({error})") from error
        yield from enumerate(table.to_pylist())


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """``(line number from 1, object)`` for each line that is not blank."""
    with path.open(encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
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
