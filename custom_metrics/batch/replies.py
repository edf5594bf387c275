"""``lm-eval-rubrics import``: result and error files of a batch, into the judge's store."""

from __future__ import annotations

import glob
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from custom_metrics.answer import writable
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
    foreign: list[str] = field(default_factory=list)

    @property
    def replies(self) -> int:
        """The lines that answer a request, whatever they say."""
        return self.kept + self.known + self.unusable + self.failed.total()

    def __str__(self) -> str:
        parts = [f"{self.kept} replies kept"]
        parts += [f"{self.known} known already"] if self.known else []
        parts += [f"{self.unusable} empty or cut off"] if self.unusable else []
        if self.failed:
            reason, count = self.failed.most_common(1)[0]
            parts.append(f"{self.failed.total()} failed ({count} times: {reason})")
        if self.unread:
            parts.append(f"{len(self.unread)} lines are no JSON (the first: {self.unread[0]})")
        if self.foreign:
            parts.append(f"{len(self.foreign)} of other requests (the first: {self.foreign[0]})")
        return ", ".join(parts)


def import_replies(given: Sequence[str], *, foreign: bool = False) -> Imported:
    """Keep the replies in files and globs. All files are read before anything is kept.

    Raises :class:`DataError` for a file that is not of replies to an export made here, unless
    ``foreign`` lines are to be passed over, which are counted. Doing it again keeps no reply a
    second time.
    """
    path = store_path()
    if path is None:
        raise ConfigError("RUBRIC_JUDGE_CACHE is off: there is nowhere to keep the replies")
    paths = _paths(given)
    registry = Registry()
    try:
        found = Imported()
        exports, strangers = _check(paths, registry, found)
    finally:
        registry.close()
    if found.foreign and not foreign:
        raise DataError(found.foreign[0])
    if not exports and not foreign:
        raise DataError(f"{', '.join(map(str, paths))}: no replies there")
    store = Store(path)
    try:
        for lines in _chunks(_lines(paths, Imported())):
            known = [line for line in lines if line.place not in strangers]
            _keep(known, exports, store, found)
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


def _check(
    paths: Sequence[Path], registry: Registry, found: Imported
) -> tuple[dict[str, Export], set[str]]:
    """The exports that the replies are to, and the places of those that are to none; ``found``
    says why."""
    exports: dict[str, Export] = {}
    strangers: dict[str, str] = {}
    for lines in _chunks(_lines(paths, found)):
        by_export: dict[str, list[ReplyLine]] = {}
        for line in lines:
            by_export.setdefault(line.export, []).append(line)
        for name, members in by_export.items():
            export = exports.get(name) or registry.find(name)
            if export is None:
                strangers |= {
                    line.place: f"a reply to export {name}, which was not made here; import it "
                    "where it was made, or with the same RUBRIC_CACHE_DIR"
                    for line in members
                }
                continue
            known = registry.known(name, [line.key for line in members])
            unasked = [line.place for line in members if line.key not in known]
            strangers |= dict.fromkeys(unasked, f"export {name} has no such request")
            if len(unasked) < len(members):
                exports[name] = export
    found.foreign += [f"{place}: {why}" for place, why in strangers.items()]
    return exports, set(strangers)


def _lines(paths: Iterable[Path], found: Imported) -> Iterator[ReplyLine]:
    for path in paths:
        for line in read_replies(path):
            if isinstance(line, ReplyLine):
                yield line
            elif line.foreign:
                found.foreign.append(f"{line.place}: {line.why}")
            else:
                found.unread.append(line.place)


def _chunks(lines: Iterable[ReplyLine]) -> Iterator[list[ReplyLine]]:
    source = iter(lines)
    while chunk := list(islice(source, _AT_ONCE)):
        yield chunk


def _keep(
    lines: Sequence[ReplyLine], exports: dict[str, Export], store: Store, found: Imported
) -> None:
    """A second reply to a call is kept too: whether the first has a verdict is not known here."""
    held = {
        (key, kept.text)
        for key, replies in store.find([line.key for line in lines]).items()
        for kept in replies
    }
    paid: list[PaidReply] = []
    for line in lines:
        reply = line.reply
        if reply is None:
            found.failed[line.failure] += 1
            continue
        text = writable(hide_in_answer(reply.text))
        if (line.key, text) in held:
            found.known += 1
            continue
        # Whether there is a verdict in it is found out when it is needed.
        usable = bool(text.strip()) and not reply.cut
        found.kept, found.unusable = found.kept + usable, found.unusable + (not usable)
        export = exports[line.export]
        held |= {(line.key, text)} if usable else set()
        paid.append(
            PaidReply(
                line.key, text, usable=usable, attempts=1, usage=reply.usage,
                model=export.model, endpoint=export.endpoint,
            )
        )  # fmt: skip
    store.keep(paid)
