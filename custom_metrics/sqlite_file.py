"""An SQLite file that several threads and processes may use, and that survives damage."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from custom_metrics.errors import ConfigError

logger = logging.getLogger("lm_eval.rubrics")

_BUSY_S = 60


class SqliteFile:
    """One file in write-ahead mode: what :meth:`use` wrote is safe once it returns, also from the
    end of this process.

    A damaged file, or one of another format ``version``, is set aside with a warning and a new one
    begun. ``way_out`` says in errors what to do. Raises :class:`ConfigError` if the path cannot be
    used at all.
    """

    def __init__(self, path: Path, schema: str, version: int, way_out: str) -> None:
        self.path = path
        self._schema, self._version = schema, version
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._opened()
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(f"{path} cannot be used ({error}); {way_out}") from None

    @contextlib.contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time. Raises ``sqlite3.Error`` as SQLite does.

        If the file proves damaged it is set aside, and the next use gets a new one.
        """
        with self._lock:
            try:
                yield self._connection
            except sqlite3.DatabaseError as error:
                if _is_damage(error):
                    self._connection.close()
                    self._set_aside(error)
                    self._connection = self._connect()
                raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _opened(self) -> sqlite3.Connection:
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                if _is_damage(error):
                    self._set_aside(error)
                # Changing a new file to write-ahead mode does not wait for other processes.
                elif "locked" in str(error) and time.monotonic() < deadline:
                    time.sleep(0.05)
                else:
                    raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        # Damaged text is to be noticed by who reads it, not to end the reading.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # Each checkpoint waits for the disk, and whoever commits waits with it.
            connection.execute("PRAGMA wal_autocheckpoint = 10000")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, self._version):
                raise sqlite3.DatabaseError(f"its format is {version}, not {self._version}")
            connection.executescript(self._schema)
            connection.execute(f"PRAGMA user_version = {self._version}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.warning(
            "%s is damaged (%s); it is set aside as %s and a new one is begun",
            self.path,
            error,
            aside.name,
        )


def _is_damage(error: sqlite3.Error) -> bool:
    words = str(error)
    return any(sign in words for sign in ("malformed", "not a database", "its format is"))
