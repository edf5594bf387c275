"""``lm-eval-rubrics import``: result and error files of a batch, into the judge's store."""

from __future__ import annotations

import glob
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from custom_metrics.batch.files import ReplyLine, read_replies
from custom_metrics.batch.registry import Export, Registry
from custom_metrics.errors import ConfigError, DataError
from custom_metrics.judge.store import PaidReply, Store, store_path
from custom_metrics.masking import hide_in_answer

logger = logging.getLogger("lm_eval.rubrics")

_AT_ONCE = 500


@dataclass
class Imported:
    """What files of replies held. ``kept`` are new in the store, ``known`` were there already;
    ``unusable`` are empty or were cut off at the token limit, and kept for the record alone."""

    kept: int = 0
    known: int = 0
    unusable: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.kept} replies kept"]
        parts += [f"{self.known} known already"] if self.known else []
        parts += [f"{self.unusable} empty or cut off"] if self.unusable else []
        if self.failed:
            reason, count = self.failed.most_common(1)[0]
            parts.append(f"{self.failed.total()} failed ({count} times: {reason})")
        if self.unread:
            parts.append(f"{len(self.unread)} lines are no JSON (the first: {self.unread[0]})")
        return ", ".join(parts)


def import_replies(given: Sequence[str]) -> Imported:
    """Keep the replies in files and globs. All files are read before anything is kept.

    Raises :class:`DataError` for a file that is not of replies to an export made here. Doing it
    again keeps no reply a second time.
    """
    path = store_path()
    if path is None:
        raise ConfigError("RUBRIC_JUDGE_CACHE is off: there is nowhere to keep the replies")
    paths = _paths(given)
    registry = Registry()
    try:
        exports = _check(paths, registry)
    finally:
        registry.close()
    found = Imported()
    store = Store(path)
    try:
        for lines in _chunks(_lines(paths, found)):
            _keep(lines, exports, store, found)
    finally:
        store.close()
    return found


def _paths(given: Sequence[str]) -> list[Path]:
    paths: dict[Path, None] = {}
    for pattern in given:
        matching = (
            [Path(pattern)] if Path(pattern).is_file() else sorted(map(Path, glob.glob(pattern)))
        )
        if not matching:
            raise DataError(f"{pattern}: no such file")
        paths.update(dict.fromkeys(matching))
    return list(paths)


def _check(paths: Sequence[Path], registry: Registry) -> dict[str, Export]:
    """The exports that the replies are to. Raises :class:`DataError` for those of another one."""
    exports: dict[str, Export] = {}
    some = False
    for lines in _chunks(_lines(paths, Imported())):
        some = True
        by_export: dict[str, list[ReplyLine]] = {}
        for line in lines:
            by_export.setdefault(line.export, []).append(line)
        for name, members in by_export.items():
            export = exports.get(name) or registry.find(name)
            if export is None:
                raise DataError(
                    f"{members[0].place}: a reply to export {name}, which was not made here; "
                    "import it where it was made, or with the same RUBRIC_CACHE_DIR"
                )
            exports[name] = export
            known = registry.known(name, [line.key for line in members])
            stranger = next((line for line in members if line.key not in known), None)
            if stranger is not None:
                raise DataError(f"{stranger.place}: export {name} has no such request")
    if not some:
        raise DataError(f"{', '.join(map(str, paths))}: no replies there")
    return exports


def _lines(paths: Iterable[Path], found: Imported) -> Iterator[ReplyLine]:
    for path in paths:
        for line in read_replies(path):
            if isinstance(line, str):
                found.unread.append(line)
            else:
                yield line


def _chunks(lines: Iterable[ReplyLine]) -> Iterator[list[ReplyLine]]:
    source = iter(lines)
    while chunk := list(islice(source, _AT_ONCE)):
        yield chunk


def _keep(
    lines: Sequence[ReplyLine], exports: dict[str, Export], store: Store, found: Imported
) -> None:
    held = set(store.find([line.key for line in lines]))
    paid: list[PaidReply] = []
    for line in lines:
        reply = line.reply
        if reply is None:
            found.failed[line.failure] += 1
        elif line.key in held:
            found.known += 1
        else:
            # Whether there is a verdict in it is found out when it is needed.
            usable = bool(reply.text.strip()) and not reply.cut
            found.kept, found.unusable = found.kept + usable, found.unusable + (not usable)
            export = exports[line.export]
            held |= {line.key} if usable else set()
            paid.append(
                PaidReply(
                    line.key, hide_in_answer(reply.text), usable=usable, attempts=1,
                    usage=reply.usage, model=export.model, endpoint=export.endpoint,
                )
            )  # fmt: skip
    store.keep(paid)
