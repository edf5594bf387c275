"""What was exported, and what became of the batches that were made of it (one SQLite file)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from custom_metrics import fetch
from custom_metrics.sqlite_file import SqliteFile

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS exports (
    id TEXT PRIMARY KEY, at REAL NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS requests (
    export TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (export, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    export TEXT NOT NULL, path TEXT NOT NULL, url TEXT NOT NULL, file TEXT, batch TEXT,
    open INTEGER NOT NULL, PRIMARY KEY (export, path)
);
"""
_AT_ONCE = 500


@dataclass(frozen=True)
class Export:
    """One export: whose calls it holds."""

    id: str
    model: str
    endpoint: str


@dataclass(frozen=True)
class Batch:
    """One file on its way through a batch API; ``file`` and ``batch`` are the API's names of it,
    as far as it has come."""

    export: str
    path: Path
    url: str
    file: str | None = None
    batch: str | None = None

    @property
    def label(self) -> str:
        """What finds the batch again among those that the API lists."""
        return f"{self.export}/{self.path.name}"


class Registry:
    """Safe for several processes. Each step is kept before the next one begins."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = SqliteFile(
            path or folder() / "batches.sqlite",
            _SCHEMA,
            _SCHEMA_VERSION,
            "set RUBRIC_CACHE_DIR to another folder",
        )

    def add(self, export: Export, keys: Iterable[str]) -> None:
        """A new export and its requests."""
        with self._file.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                row = (export.id, time.time(), export.model, export.endpoint)
                connection.execute("INSERT INTO exports VALUES (?, ?, ?, ?)", row)
                rows = ((export.id, key) for key in keys)
                connection.executemany("INSERT INTO requests VALUES (?, ?)", rows)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def find(self, export: str) -> Export | None:
        with self._file.use() as connection:
            query = "SELECT id, model, endpoint FROM exports WHERE id = ?"
            row = connection.execute(query, (export,)).fetchone()
        return Export(*row) if row else None

    def known(self, export: str, keys: Sequence[str]) -> set[str]:
        """Those of ``keys`` that are requests of ``export``."""
        found: set[str] = set()
        for start in range(0, len(keys), _AT_ONCE):
            chunk = keys[start : start + _AT_ONCE]
            marks = ",".join("?" * len(chunk))
            query = f"SELECT key FROM requests WHERE export = ? AND key IN ({marks})"
            with self._file.use() as connection:
                found.update(key for (key,) in connection.execute(query, [export, *chunk]))
        return found

    def open_batches(self, endpoint: str) -> list[Batch]:
        """The files that are to go, or have gone, to ``endpoint``, and are not done with."""
        query = (
            "SELECT export, path, url, file, batch FROM batches JOIN exports ON export = id "
            "WHERE open AND endpoint = ? ORDER BY at, path"
        )
        with self._file.use() as connection:
            rows = connection.execute(query, (endpoint,)).fetchall()
        return [Batch(export, Path(path), *rest) for export, path, *rest in rows]

    def keep(self, batches: Iterable[Batch], *, is_open: bool = True) -> None:
        """How far ``batches`` have come; they are done with unless they are ``is_open``."""
        rows = [(b.export, str(b.path), b.url, b.file, b.batch, is_open) for b in batches]
        with self._file.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")

    def close(self) -> None:
        self._file.close()


def folder() -> Path:
    """Where the registry is, and the files of batches on their way."""
    return fetch.cache_folder() / "batches"
