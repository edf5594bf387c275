"""What goes to a judge and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Unreadable(ValueError):
    """A reply that holds no verdict; its text says why. Such a call is asked again."""


@dataclass(frozen=True)
class Usage:
    """Tokens as the server reports them; ``cached`` are those of ``prompt`` that it had cached."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True)
class Reply:
    """One reply of a judge. ``cut`` says that it ended at the token limit, not by itself.

    ``constrained`` says that the call's schema was asked for, whether or not the server heeds it.
    """

    text: str
    cut: bool = False
    usage: Usage = Usage()
    request_bytes: int = 0
    constrained: bool = False


@dataclass(frozen=True)
class Request:
    """What is sent for a call: path and body, and the key of its reply in the store."""

    key: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class JudgeCall(Generic[T]):
    """One question to the judge.

    ``messages`` builds the chat when the call is sent, since prompts are long and many. ``read``
    takes the verdict out of a reply's text or raises :class:`Unreadable`. ``conversation`` names
    what the call shares with its siblings: all but the end of the prompt.

    The lexical judge reads no prompt: it compares ``answer`` with each of ``criteria``, and
    ``write`` puts the overlaps, each in [0, 1], into a reply that ``read`` understands.

    ``max_tokens`` is the reply's limit where the settings have none. ``readable_when_cut`` says
    that ``read`` can tell whether a reply that ended at its limit still holds the whole verdict.

    ``schema`` is the JSON schema of a reply that ``read`` understands, in OpenAI's strict form
    (see :func:`strict_object`); the settings decide whether it is asked for.

    ``combine`` says what the values of several opinions come to, of which there is at least one.
    ``repeat`` is which of the times this is that one judge is asked the same.
    """

    messages: Callable[[], list[dict[str, str]]]
    read: Callable[[str], T]
    conversation: str
    label: str
    answer: str
    criteria: tuple[str, ...]
    write: Callable[[Sequence[float]], str]
    max_tokens: int | None = None
    readable_when_cut: bool = False
    schema: Mapping[str, Any] | None = None
    combine: Callable[[Sequence[T]], T] | None = None
    repeat: int = 0


def strict_object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has these properties, all of them, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of a call: a value that was read, or the reason why there is none.

    ``attempts`` counts every request that was sent for it, in an earlier run if the reply is from
    the store. ``asked`` is False where a budget was spent before the call's turn; ``refused`` is
    True where the endpoint would not answer it at all. ``votes`` has each opinion where more than
    one was asked for.
    """

    attempts: int
    value: T | None = None
    failure: str | None = None
    asked: bool = True
    refused: bool = False
    votes: tuple[Vote[T], ...] = ()

    @property
    def failed(self) -> bool:
        return self.value is None


@dataclass(frozen=True)
class Vote(Generic[T]):
    """One of several opinions on a call: whose, which time it was asked, and what became of it."""

    judge: str
    repeat: int
    outcome: Outcome[T]
