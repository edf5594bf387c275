"""The lines of batch files: requests as OpenAI and vLLM take them, replies as they give them.

https://platform.openai.com/docs/guides/batch, and vLLM's ``run_batch``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from custom_metrics.errors import ConfigError, DataError
from custom_metrics.judge import Reply, Request
from custom_metrics.judge.client import FinalFailure, reply_in
from custom_metrics.output import writing

MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000
"""What OpenAI takes in one file."""

_CUSTOM_ID = re.compile(r"(?P<export>[0-9a-f]{12})-(?P<key>[0-9a-f]{64})")
_MESSAGE_LENGTH = 200


def custom_id(export: str, key: str) -> str:
    """The name of a request: its export, and its reply's key in the store."""
    return f"{export}-{key}"


def request_line(export: str, request: Request) -> bytes:
    """One line of a batch file, its line break included."""
    line = {
        "custom_id": custom_id(export, request.key),
        "method": "POST",
        "url": url_of(request.path),
        "body": request.body,
    }
    return json.dumps(line).encode() + b"\n"  # ASCII, so that a lone surrogate can travel


def url_of(path: str) -> str:
    """A request's address in a batch file, and its endpoint in the batch API."""
    return f"/v1{path}"


class RequestFiles:
    """Batch files that are begun as the limits ask for, all of them there or none.

    They are called as ``path`` says, from the second on with a number. Raises :class:`ConfigError`
    where a file stands there already: it may have been sent.
    """

    def __init__(self, path: Path, most_requests: int, most_bytes: int) -> None:
        self._path = path
        self._most_requests, self._most_bytes = most_requests, most_bytes
        self._parts: list[tuple[Path, Path]] = []
        self._file: BinaryIO | None = None
        self._requests = self._bytes = 0
        self.size = 0

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines that belong together, into one file if they fit into one."""
        count, size = len(lines), sum(map(len, lines))
        if self._file is None or not self._fits(count, size):
            self._begin()
        for line in lines:
            if not self._fits(1, len(line)):
                self._begin()
            assert self._file is not None
            self._file.write(line)
            self._requests, self._bytes = self._requests + 1, self._bytes + len(line)
            self.size += len(line)

    def finish(self) -> list[Path]:
        """Give the files their names; the list of them."""
        if self._file is not None:
            self._file.close()
        for part, path in self._parts:
            os.replace(part, path)
        return [path for _, path in self._parts]

    def discard(self) -> None:
        """Remove what :meth:`finish` has not named."""
        if self._file is not None:
            self._file.close()
        for part, _ in self._parts:
            part.unlink(missing_ok=True)

    def _fits(self, count: int, size: int) -> bool:
        empty = self._requests == 0
        return empty or (
            self._requests + count <= self._most_requests and self._bytes + size <= self._most_bytes
        )

    def _begin(self) -> None:
        number = len(self._parts) + 1
        name = self._path.name if number == 1 else f"{self._path.stem}-{number}{self._path.suffix}"
        path = self._path.with_name(name)
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; give a file in it, such as requests.jsonl")
        if path.exists():
            raise ConfigError(
                f"{path} is there already and may have been sent; remove it, or choose another name"
            )
        if self._file is not None:
            self._file.close()
        part = path.with_name(f"{path.name}.part")
        with writing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = part.open("wb")
        self._parts.append((part, path))
        self._requests = self._bytes = 0


@dataclass(frozen=True)
class ReplyLine:
    """What became of one request: a reply, or the reason why there is none."""

    place: str
    export: str
    key: str
    reply: Reply | None
    failure: str = ""


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used: no JSON (cut off, say), or ``foreign``, to no request of ours."""

    place: str
    why: str
    foreign: bool = False


def read_replies(path: Path) -> Iterator[ReplyLine | BadLine]:
    """Every line of a result or error file. Raises :class:`DataError` if it cannot be read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    with file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            place = f"{path}, line {number}"
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                yield BadLine(place, "no JSON")
                continue
            yield _reply_line(place, line)


def _reply_line(place: str, line: Any) -> ReplyLine | BadLine:
    given = line.get("custom_id") if isinstance(line, Mapping) else None
    match = _CUSTOM_ID.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        return BadLine(
            place,
            "its custom_id is none that lm-eval-rubrics export gives; is this a file of replies to "
            "such an export?",
            foreign=True,
        )
    reply, failure = _reply(line)
    return ReplyLine(place, match["export"], match["key"], reply, failure)


def _reply(line: Mapping[str, Any]) -> tuple[Reply | None, str]:
    """OpenAI refuses with a status and an error in the body, vLLM with a body of null and an error
    that is an object or a text."""
    response = line.get("response")
    response = response if isinstance(response, Mapping) else {}
    body, status = response.get("body"), response.get("status_code")
    if isinstance(body, Mapping) and status in (200, None) and not body.get("error"):
        try:
            return reply_in(body), ""
        except FinalFailure as error:
            return None, str(error)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            return None, "the response has no message"
    inner = body.get("error") if isinstance(body, Mapping) else None
    return None, _message(inner or line.get("error") or body, status)


def _message(error: Any, status: Any) -> str:
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("code") or "no reason given"
    text = " ".join(str(error or "no response").split())[:_MESSAGE_LENGTH]
    return f"{status}: {text}" if status else text
