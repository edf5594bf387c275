"""Every paid reply, kept the moment it arrives (SQLite, write-ahead log).

A reply is found again by a key over everything that determines it. Only replies whose verdict was
read are served; the others are kept for the record. Several processes may share a file.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from custom_metrics import fetch
from custom_metrics.answer import writable
from custom_metrics.judge.calls import Usage
from custom_metrics.sqlite_file import SqliteFile

logger = logging.getLogger("lm_eval.rubrics")

_SCHEMA_VERSION = 1
_INSERT = f"INSERT INTO replies VALUES ({','.join('?' * 11)})"
_USABLE = "WHERE usable AND key IN"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT NOT NULL, at REAL NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
    usable INTEGER NOT NULL, attempts INTEGER NOT NULL, text TEXT NOT NULL, digest TEXT NOT NULL,
    prompt_tokens INTEGER, cached_tokens INTEGER, completion_tokens INTEGER
);
CREATE INDEX IF NOT EXISTS replies_by_key ON replies (key) WHERE usable;
"""


@dataclass(frozen=True)
class Kept:
    """A reply from the store. ``attempts`` is how many requests it took."""

    text: str
    attempts: int


@dataclass(frozen=True)
class PaidReply:
    """A reply to be kept. ``usable`` says that a verdict was read in it."""

    key: str
    text: str
    usable: bool
    attempts: int
    model: str
    endpoint: str
    usage: Usage


@dataclass(frozen=True)
class Share:
    """What of a store belongs to one model at one endpoint. Sizes in characters of replies."""

    model: str
    endpoint: str
    usable: int
    unusable: int
    size: int
    oldest: float
    newest: float


def store_path() -> Path | None:
    """Where replies are kept: ``RUBRIC_JUDGE_CACHE``; None if that is ``off``."""
    chosen = os.environ.get("RUBRIC_JUDGE_CACHE", "").strip()
    if chosen.lower() == "off":
        return None
    return Path(chosen).expanduser() if chosen else fetch.cache_folder() / "judge.sqlite"


class Store:
    """One file of replies. Safe for several threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SqliteFile(
            path,
            _SCHEMA,
            _SCHEMA_VERSION,
            "set RUBRIC_JUDGE_CACHE to another path, or to off (each reply is then paid for again)",
        )

    def find(self, keys: Sequence[str]) -> dict[str, list[Kept]]:
        """The usable replies to each of ``keys``, the oldest first.

        There are several where imported ones turned out to have no verdict: the first that has
        one counts.
        """
        found: dict[str, list[Kept]] = {}
        for start in range(0, len(keys), 500):
            chunk = keys[start : start + 500]
            marks = ",".join("?" * len(chunk))
            query = (
                f"SELECT rowid, key, text, attempts, digest FROM replies {_USABLE} ({marks}) "
                "ORDER BY rowid"
            )
            try:
                with self._file.use() as connection:
                    rows = connection.execute(query, chunk).fetchall()
            except sqlite3.DatabaseError as error:  # set aside by now, with a warning
                logger.warning("%s: %s", self.path, error)
                continue
            for row, key, text, attempts, digest in rows:
                if digest == _digest(key, text):
                    found.setdefault(key, []).append(Kept(text, attempts))
                else:
                    logger.warning("A reply in %s is damaged; it is asked for again", self.path)
                    with self._file.use() as connection:
                        connection.execute("DELETE FROM replies WHERE rowid = ?", (row,))
        return found

    def retire(self, keys: Sequence[str]) -> None:
        """Serve what is kept under ``keys`` no more; it stays for the record."""
        with self._file.use() as connection:
            connection.executemany(
                "UPDATE replies SET usable = 0 WHERE usable AND key = ?", [(key,) for key in keys]
            )

    def keep(self, replies: Sequence[PaidReply]) -> None:
        """Keep replies in one transaction; they are on their way to the disk when this returns."""
        now = time.time()
        rows = [_row(reply, now) for reply in replies]
        with self._file.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(_INSERT, rows)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def shares(self) -> list[Share]:
        """The contents by model and endpoint."""
        with self._file.use() as connection:
            rows: Iterable[tuple[str, str, int, int, int, float, float]] = connection.execute(
                "SELECT model, endpoint, sum(usable), sum(NOT usable), sum(length(text)), "
                "min(at), max(at) FROM replies GROUP BY model, endpoint ORDER BY model, endpoint"
            ).fetchall()
        return [Share(*row) for row in rows]

    def prune(self, *, older_than: float | None = None, model: str | None = None) -> int:
        """Remove what is older than that time, or of that model, and unusable replies alike."""
        with self._file.use() as connection:
            removed = connection.execute(
                "DELETE FROM replies WHERE (? IS NULL OR at < ?) AND (? IS NULL OR model = ?)",
                (older_than, older_than, model, model),
            ).rowcount
            connection.execute("VACUUM")
        return int(removed)

    def close(self) -> None:
        self._file.close()


def _row(reply: PaidReply, now: float) -> tuple[object, ...]:
    text = writable(reply.text)  # a lone surrogate cannot be stored
    usage = reply.usage
    return (
        reply.key, now, reply.model, reply.endpoint, reply.usable, reply.attempts, text,
        _digest(reply.key, text), usage.prompt, usage.cached, usage.completion,
    )  # fmt: skip


def _digest(key: str, text: str) -> str:
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()[:16]


class Keeper:
    """Keeps replies that arrive together in one commit. To be used on one event loop.

    The commit is made on the loop: in a thread it would wait for the interpreter lock at every
    row, some milliseconds each. ``failed`` is told why replies could not be kept.
    """

    def __init__(self, store: Store, failed: Callable[[Exception], None]) -> None:
        self._store = store
        self._failed = failed
        self._waiting: list[PaidReply] = []

    def keep(self, reply: PaidReply) -> None:
        """``reply`` is kept before the loop does anything else that it does not know of yet."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(reply)

    def flush(self) -> None:
        """Keep what waits."""
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        try:
            self._store.keep(batch)
        except Exception as error:  # a full disk, say: the verdicts are there all the same
            self._failed(error)
