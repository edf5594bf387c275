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
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from custom_metrics import fetch
from custom_metrics.masking import hide_in_answer
from custom_metrics.sqlite_file import SqliteFile

logger = logging.getLogger("lm_eval.rubrics")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, turn INTEGER NOT NULL, open INTEGER NOT NULL);
"""

Listener = Callable[[str, str], None]
"""Told a prompt and its answer."""


class AnswerStore:
    """Answers by a key over everything that determines them. Safe for several processes."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = SqliteFile(
            path or fetch.cache_folder() / "answers.sqlite",
            _SCHEMA,
            1,
            "set RUBRIC_CACHE_DIR to another folder, or run with --no_answer_store",
        )

    def find(self, keys: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(keys), 500):
            chunk = keys[start : start + 500]
            marks = ",".join("?" * len(chunk))
            with self._file.use() as connection:
                query = f"SELECT key, text FROM answers WHERE key IN ({marks})"
                found.update(connection.execute(query, chunk).fetchall())
        return found

    def keep(self, key: str, text: str) -> None:
        # A lone surrogate cannot be stored; the task replaces it as well.
        text = hide_in_answer(text.encode("utf-8", "replace").decode("utf-8"))
        with self._file.use() as connection:
            row = (key, time.time(), text)
            connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)

    def begin(self, run: str) -> int:
        """The turn of a run: that of an earlier one which did not end, else a new one."""
        with self._file.use() as connection:
            row = connection.execute("SELECT turn, open FROM runs WHERE id = ?", (run,)).fetchone()
            turn = 0 if row is None else row[0] + (not row[1])
            connection.execute("REPLACE INTO runs VALUES (?, ?, 1)", (run, turn))
        return int(turn)

    def end(self, run: str) -> None:
        with self._file.use() as connection:
            connection.execute("UPDATE runs SET open = 0 WHERE id = ?", (run,))

    def close(self) -> None:
        self._file.close()


class Session:
    """One run. ``identity`` is what makes another run the same one: model, its arguments, tasks."""

    current: Session | None = None

    def __init__(
        self,
        model: str,
        model_args: Mapping[str, Any],
        command: Sequence[str],
        *,
        store: bool,
        overlap: bool,
    ) -> None:
        self._model = [model, json.dumps(dict(model_args), sort_keys=True, default=str)]
        self._run = _digest([*self._model, *command])
        self._store = AnswerStore() if store else None
        self._turn = self._store.begin(self._run) if self._store else 0
        self._attached: set[int] = set()
        self._awaited: dict[str, deque[str]] = {}
        self._overlap = overlap
        self._listeners: list[Listener] = []

    def __enter__(self) -> Session:
        Session.current = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        Session.current = None
        if self._store is not None:
            if kind is None:
                self._store.end(self._run)
            self._store.close()

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` told of each answer when it comes, if judging may begin early."""
        if self._overlap:
            self._listeners.append(listener)

    def attach(self, model: Any) -> None:
        """Listen to ``model``, and serve it what is kept. Does nothing the second time."""
        if id(model) in self._attached:
            return
        self._attached.add(id(model))
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
        kept = self._store.find(keys) if self._store else {}
        missing = [(r, k) for r, k in zip(requests, keys, strict=True) if k not in kept]
        if len(missing) < len(requests):
            there = len(requests) - len(missing)
            logger.warning(
                "%d of %d answers are from an earlier run of this model with the same arguments; "
                "if the model has changed since, use --no_answer_store",
                there,
                len(requests),
            )
        self._awaited = {}
        for request, key in missing:
            self._awaited.setdefault(prompt_text(request.args[0]), deque()).append(key)
        for request, key in zip(requests, keys, strict=True):
            if key in kept:
                self._tell(prompt_text(request.args[0]), kept[key])
        rest = iter(generate([r for r, _ in missing], *args, **kwargs) if missing else [])
        answers = [kept[key] if key in kept else next(rest) for key in keys]
        if self._store is not None:  # some model classes never call the hook
            for key, answer in zip(keys, answers, strict=True):
                if key not in kept and _worth_keeping(answer):
                    with contextlib.suppress(sqlite3.Error):  # the answers are there all the same
                        self._store.keep(key, answer)
        return answers

    def _keys(self, requests: Iterable[Instance]) -> list[str]:
        seen: Counter[str] = Counter()
        keys = []
        for request in requests:
            prompt, kwargs = request.args[0], dict(request.args[1])
            sampled = bool(kwargs.get("do_sample")) or float(kwargs.get("temperature") or 0) > 0
            turn = [self._run, self._turn] if sampled else []
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
                self._store.keep(key, answer)
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


def prompt_text(prompt: Any) -> str:
    """A request's prompt as a string: some model classes wrap a chat's JSON in a tuple."""
    return prompt if isinstance(prompt, str) else str(getattr(prompt, "prompt", prompt))


def _digest(parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
