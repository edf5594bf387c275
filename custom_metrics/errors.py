"""What can go wrong, as exceptions that a caller can tell apart.

Each carries one line that names the file, row or field, and the mend.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType


class RubricError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(RubricError, ValueError):
    """A setting is unknown, of the wrong type, or out of range."""


class DataError(RubricError, ValueError):
    """A file, a row or a field of the data is missing or not what the benchmark describes."""


class FetchError(RubricError):
    """Something that the product fetches could not be had, or is not what it should be."""


class JudgeError(RubricError):
    """The judge cannot go on: every further call would fail as well."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM), which takes the same path as Ctrl-C."""


INTERRUPTED_CODE, TERMINATED_CODE = 130, 143  # 128 and the signal's number, as a shell says it


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While this lasts SIGTERM raises :class:`Terminated` in the main thread."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is being kept is not to be broken off
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not in the main thread: the signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def show_plainly(program: str) -> None:
    """Let the stock ``lm_eval`` command end on one line, not on a traceback, for such an error and
    for Ctrl-C.

    Nothing changes for any other program or exception.
    """
    if Path(program).name not in ("lm_eval", "lm-eval") and "lm_eval" not in Path(program).parts:
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RubricError):
            print(f"error: {error}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            raise SystemExit(INTERRUPTED_CODE)  # the interpreter takes it from a hook too
        else:
            previous(kind, error, trace)

    if getattr(previous, "__module__", "") != __name__:
        sys.excepthook = hook
