"""What can go wrong, as exceptions that a caller can tell apart.

Each carries one line that names the file, row or field, and the mend.
"""

from __future__ import annotations

import sys
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


def show_plainly(program: str) -> None:
    """Let the stock ``lm_eval`` command end on one line, not on a traceback, for such an error.

    Nothing changes for any other program or exception.
    """
    if Path(program).name not in ("lm_eval", "lm-eval") and "lm_eval" not in Path(program).parts:
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RubricError):
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    if getattr(previous, "__module__", "") != __name__:
        sys.excepthook = hook
