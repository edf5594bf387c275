"""``lm-eval-rubrics fetch``: data and official prompts in a folder, for machines without a network.

The folder is laid out as ``RUBRIC_DATA_DIR`` and ``RUBRIC_PROMPTS_DIR`` are read. Each file is
written whole or not at all, and one that is there already is left alone, so that the command can be
interrupted and repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval_tasks
from custom_metrics import data, fetch, prompts
from custom_metrics.errors import ConfigError, DataError
from custom_metrics.run import configurations, own_tasks

_SUMS, _README = "SHA256SUMS", "README"
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_SOURCE_LINE = re.compile(r"- (.+?): (.+)")
_HEADER = """\
Data and official prompts of the rubric benchmarks of lm-eval-rubrics, as fetched.
They belong to their authors. Check them: sha256sum -c SHA256SUMS
Use them: RUBRIC_DATA_DIR and RUBRIC_PROMPTS_DIR are both this folder.

"""


def stage(folder: Path, tasks: Sequence[str] = (), revision: str | None = None) -> list[int]:
    """Put all that ``tasks`` (default: every task) need into ``folder``; the files' sizes in bytes.

    Says of each file how large it is and whether it was there. Raises :class:`ConfigError` for an
    unknown task and a folder that cannot be written, :class:`DataError` and
    :class:`custom_metrics.errors.FetchError` for what cannot be had.
    """
    known = own_tasks()
    if unknown := [name for name in tasks if name not in known]:
        raise ConfigError(
            f"--tasks: no task {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    found = configurations(tasks or known, [lm_eval_tasks.path()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = _Kept(folder)
        for config in found:
            for name, content, source in _files_of(config, revision, folder):
                kept.add(name, content, source)
        return kept.sizes
    except OSError as error:
        raise ConfigError(
            f"--dest {folder}: {error.filename or folder} cannot be written ({error.strerror})"
        ) from None


class _Kept:
    """The folder as it grows, with its lists of checksums and of sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums = {m[2]: m[1] for m in _lines(folder / _SUMS, _SUM_LINE)}
        self._sources = {m[1]: m[2] for m in _lines(folder / _README, _SOURCE_LINE)}
        self._seen: set[str] = set()
        self.sizes: list[int] = []

    def add(self, name: str, content: bytes, source: str) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        path, digest = self._folder / name, fetch.sha256(content)
        there = path.is_file() and fetch.sha256(path.read_bytes()) == digest
        if not there:
            _write(path, content)
        self.sizes.append(len(content))
        self._sums[name], self._sources[name] = digest, source
        # After each file, so that what an interruption leaves can be checked.
        sums = "".join(f"{digest}  {name}\n" for name, digest in sorted(self._sums.items()))
        sources = "".join(f"- {name}: {source}\n" for name, source in sorted(self._sources.items()))
        _write(self._folder / _SUMS, sums.encode())
        _write(self._folder / _README, (_HEADER + sources).encode())
        print(f"{name}  {len(content) / 1e6:.3f} MB  {'there already' if there else 'written'}",
              flush=True)  # fmt: skip


def _lines(path: Path, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """What an earlier run wrote into one of the lists."""
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from filter(None, map(pattern.fullmatch, text.splitlines()))


def _write(path: Path, content: bytes) -> None:
    fetch.keep(path, content)
    path.chmod(0o644)  # a temporary file is its owner's alone, and this one is to be carried


def _files_of(
    config: Mapping[str, Any], revision: str | None, folder: Path
) -> Iterator[tuple[str, bytes, str]]:
    """``(name below the folder, content, source)`` of everything that one task needs."""
    for specs in (config["judge_prompts"], config.get("task_prompts")):
        for parts in (specs or {}).get("official", {}).values():
            for part in parts:
                text = prompts.official_text(part)
                yield part.file_name, text.encode("utf-8"), prompts.source_of(part)
    options = config["dataset_kwargs"]
    if "bundled" in options:
        return
    split, github = config["test_split"], options.get("github")
    pinned = github and data.Pinned(
        tuple(github["repositories"]), github["commit"], github["sha256"]
    )
    source = data.fetched_split(
        split,
        config["dataset_path"],
        options.get("files", ()),
        None if pinned else revision or options.get("revision"),
        pinned or None,
    )
    names = [path.name for path in source.files]
    if len(names) == 1 and not pinned:
        names = [f"{split}{source.files[0].suffix}"]
    _refuse_others(folder / options["folder"], split, names)
    for name, path in zip(names, source.files, strict=True):
        origin = f"{source.origin} at {source.revision}, {path.name}"
        yield f"{options['folder']}/{name}", path.read_bytes(), origin


def _refuse_others(folder: Path, split: str, names: Sequence[str]) -> None:
    """Another file of the split would be read before, or beside, the ones that are fetched."""
    there = {path.name for pattern in data.patterns(split) for path in folder.glob(pattern)}
    if others := sorted(there - set(names)):
        raise DataError(
            f"{folder}/ holds {', '.join(others)} of the split {split!r} too, which was not "
            "fetched now; remove that, or choose another --dest"
        )
