"""What ``lm-eval-rubrics run`` adds to a run of the harness while it lasts.

The harness writes answers at the very end and judges after the last of them. A session keeps each
answer when the model gives it, serves those that an interrupted run has left, and tells the tasks,
so that judging hides behind generation. It hears of an answer through the model's cache hook,
which the harness's model classes call after each request or batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from custom_metrics import fetch
from custom_metrics.masking import hide_in_answer
from custom_metrics.sqlite_file import SqliteFile

logger = logging.getLogger("lm_eval.rubrics")

_SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, turn INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, turn INTEGER NOT NULL, open INTEGER NOT NULL);
"""

# The document of a request that only makes ranks equal in length, and its key: its answer is
# nobody's. (The harness repeats the last request for the same purpose.)
NO_DOCUMENT = -1
_PADDING = ""

Listener = Callable[[str, str], None]
"""Told a prompt and its answer."""


@dataclass(frozen=True)
class Turn:
    """One of the times that a command was run, however often it was interrupted meanwhile."""

    run: str
    number: int


class AnswerStore:
    """Answers by a key over everything that determines them. Safe for several processes.

    Each answer belongs to the turn that it was last used in, which is open until it has ended.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file = SqliteFile(
            path or fetch.cache_folder() / "answers.sqlite",
            _SCHEMA,
            _SCHEMA_VERSION,
            "set RUBRIC_CACHE_DIR to another folder, or run with --no_answer_store",
        )

    def find(self, keys: Sequence[str], *, finished: bool) -> dict[str, str]:
        """What is kept under ``keys`` by turns that are open, or also by ``finished`` ones."""
        found: dict[str, str] = {}
        for start in range(0, len(keys), 500):
            chunk = keys[start : start + 500]
            query = (
                "SELECT key, text FROM answers LEFT JOIN runs ON run = id WHERE key IN "
                f"({','.join('?' * len(chunk))}) AND (? OR (open AND answers.turn = runs.turn))"
            )
            with self._file.use() as connection:
                found.update(connection.execute(query, [*chunk, finished]).fetchall())
        return found

    def keep(self, key: str, text: str, turn: Turn) -> None:
        # A lone surrogate cannot be stored; the task replaces it as well.
        text = hide_in_answer(text.encode("utf-8", "replace").decode("utf-8"))
        with self._file.use() as connection:
            row = (key, time.time(), turn.run, turn.number, text)
            connection.execute("REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)

    def adopt(self, keys: Iterable[str], turn: Turn) -> None:
        """``keys`` belong to ``turn`` from now on: they end with it."""
        with self._file.use() as connection:
            connection.executemany(
                "UPDATE answers SET run = ?, turn = ? WHERE key = ?",
                [(turn.run, turn.number, key) for key in keys],
            )

    def begin(self, run: str) -> Turn:
        """The turn of a run: that of an earlier one which did not end, else a new one."""
        with self._file.use() as connection:
            row = connection.execute("SELECT turn, open FROM runs WHERE id = ?", (run,)).fetchone()
            turn = 0 if row is None else row[0] + (not row[1])
            connection.execute("REPLACE INTO runs VALUES (?, ?, 1)", (run, turn))
        return Turn(run, int(turn))

    def end(self, turn: Turn) -> None:
        with self._file.use() as connection:
            connection.execute(
                "UPDATE runs SET open = 0 WHERE id = ? AND turn = ?", (turn.run, turn.number)
            )

    def close(self) -> None:
        self._file.close()


class Session:
    """One run of ``command`` with ``model`` and its arguments.

    Kept answers are served if their run was interrupted, or with ``reuse`` from any run: the model
    behind the same name may have changed since one that ended.
    """

    current: Session | None = None

    def __init__(
        self,
        model: str,
        model_args: Mapping[str, Any],
        command: Sequence[str],
        *,
        store: bool,
        overlap: bool,
        reuse: bool = False,
    ) -> None:
        arguments = json.dumps(dict(model_args), sort_keys=True, default=str)
        self._model = [model, arguments, _files_of(model_args)]
        self._store = AnswerStore() if store else None
        run = _digest([*self._model, *command])
        self._turn = self._store.begin(run) if self._store else Turn(run, 0)
        self._reuse = reuse
        self._complete = True
        self._rank, self._world_size = 0, 1
        self._attached: set[int] = set()
        self._awaited: dict[str, deque[str]] = {}
        self._overlap = overlap
        self._listeners: list[Listener] = []
        self.reused: Counter[str] = Counter()
        """How many answers each task has from earlier runs."""

    def __enter__(self) -> Session:
        Session.current = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        Session.current = None
        if self._store is not None:
            if kind is None and self._complete and self._rank == 0:  # it writes the results
                self._store.end(self._turn)
            self._store.close()

    def leave_open(self) -> None:
        """Some verdicts are missing: the same command again is to use the same answers."""
        self._complete = False

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` told of each answer when it comes, if judging may begin early."""
        if self._overlap:
            self._listeners.append(listener)

    def attach(self, model: Any) -> None:
        """Listen to ``model``, and serve it what is kept. Does nothing the second time."""
        if id(model) in self._attached:
            return
        self._attached.add(id(model))
        self._rank, self._world_size = model.rank, model.world_size
        model.set_cache_hook(_Hook(model.cache_hook, self._arrived))
        generate = model.generate_until

        def generate_until(requests: list[Instance], *args: Any, **kwargs: Any) -> list[str]:
            return self._generate(generate, requests, *args, **kwargs)

        # On the instance: the harness calls it there, also from its --use_cache wrapper.
        model.generate_until = generate_until

    def _generate(
        self,
        generate: Callable[..., list[str]],
        requests: list[Instance],
        *args: Any,
        **kwargs: Any,
    ) -> list[str]:
        keys = self._keys(requests)
        kept = self._store.find(keys, finished=self._reuse) if self._store else {}
        missing = [(r, k) for r, k in zip(requests, keys, strict=True) if k not in kept]
        if self._store is not None and kept:
            self._store.adopt(kept, self._turn)
            self.reused.update(
                r.task_name for r, k in zip(requests, keys, strict=True) if k in kept
            )
            logger.warning(
                "%d of %d answers are from %s run of this model with the same arguments; if the "
                "model has changed since, use --no_answer_store",
                len(requests) - len(missing),
                sum(key != _PADDING for key in keys),
                "an earlier" if self._reuse else "an interrupted",
            )
        self._awaited = {}
        for request, key in missing:
            if key == _PADDING:
                continue
            self._awaited.setdefault(prompt_text(request.args[0]), deque()).append(key)
        for request, key in zip(requests, keys, strict=True):
            if key in kept:
                self._tell(prompt_text(request.args[0]), kept[key])
        rest = iter(generate([r for r, _ in missing], *args, **kwargs) if missing else [])
        if not missing and self._world_size > 1:
            # Other ranks may be waiting for this one in it (with batch_size=auto they are).
            generate(requests[-1:], *args, **kwargs)
        answers = [kept[key] if key in kept else next(rest) for key in keys]
        if self._store is not None:  # some model classes never call the hook
            for key, answer in zip(keys, answers, strict=True):
                if key not in kept and key != _PADDING and _worth_keeping(answer):
                    with contextlib.suppress(sqlite3.Error):  # the answers are there all the same
                        self._store.keep(key, answer, self._turn)
        return answers

    def _keys(self, requests: Iterable[Instance]) -> list[str]:
        seen: Counter[str] = Counter()
        times: Counter[int] = Counter()
        keys = []
        for request in requests:
            times[id(request)] += 1
            if request.doc_id == NO_DOCUMENT or times[id(request)] > (request.repeats or 1):
                keys.append(_PADDING)
                continue
            prompt, kwargs = request.args[0], dict(request.args[1])
            turn = [self._turn.run, self._turn.number] if is_sampled(kwargs) else []
            parts = [*self._model, prompt_text(prompt), kwargs, turn]
            base = _digest(parts)
            keys.append(f"{base}-{seen[base]}")
            seen[base] += 1
        return keys

    def _arrived(self, prompt: str, answer: str) -> None:
        awaited = self._awaited.get(prompt)
        if awaited and self._store is not None:
            key = awaited.popleft()
            if _worth_keeping(answer):
                self._store.keep(key, answer, self._turn)
        self._tell(prompt, answer)

    def _tell(self, prompt: str, answer: str) -> None:
        for listener in self._listeners:
            listener(prompt, answer)


class _Hook:
    """The model's cache hook, with a listener. Never raises: the harness would ask again."""

    def __init__(self, inner: Any, arrived: Listener) -> None:
        self._inner = inner
        self._arrived = arrived

    def add_partial(self, kind: str, request: Sequence[Any], answer: Any) -> None:
        self._inner.add_partial(kind, request, answer)
        if kind != "generate_until" or not isinstance(answer, str):
            return
        try:
            self._arrived(prompt_text(request[0]), answer)
        except Exception as error:
            logger.error("An answer could not be kept or judged early: %s", error)


def _worth_keeping(answer: Any) -> bool:
    """An empty answer may stand for one that failed: it is asked for again."""
    return isinstance(answer, str) and bool(answer.strip())


def is_sampled(kwargs: Mapping[str, Any]) -> bool:
    """Whether generation arguments leave something to chance."""
    return bool(kwargs.get("do_sample")) or float(kwargs.get("temperature") or 0) > 0


def prompt_text(prompt: Any) -> str:
    """A request's prompt as a string: some model classes wrap a chat's JSON in a tuple."""
    return prompt if isinstance(prompt, str) else str(getattr(prompt, "prompt", prompt))


def _files_of(model_args: Mapping[str, Any]) -> list[str]:
    """Size and time of every file that an argument names, folders of weights included.

    A checkpoint that was overwritten is another model.
    """
    paths = [Path(value) for value in model_args.values() if isinstance(value, str) and value]
    with contextlib.suppress(OSError):
        files = {f for path in paths for f in (path, *path.glob("*")) if f.is_file()}
        stats = [(str(file), file.stat()) for file in sorted(files)]
        return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]
    return []


def _digest(parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
