"""From what a model wrote to the answer that is graded. Pure functions.

The rules are PRBench's own (scaleapi/PRBench, its response clean-up): reasoning blocks are
removed, long runs of blank lines shortened, the rest stripped. Two cases that the official code
misses are handled too: a chat template that opens the block in the prompt, so that the output
has the closing tag only, and an output that was cut off inside the block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_TAG = r"(think|thinking|reasoning|reason)"
_BLOCK = re.compile(rf"<{_TAG}>.*?</\1>", re.IGNORECASE | re.DOTALL)
_CLOSING = re.compile(rf"</{_TAG}>", re.IGNORECASE)
_OPENING_AT_START = re.compile(rf"\s*<{_TAG}>", re.IGNORECASE)
_OPENING_AT_END = re.compile(rf"<{_TAG}>\s*\Z", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")
# What no UTF-8 file and few servers take: lone surrogates, and NUL.
_UNWRITABLE = re.compile("[\ud800-\udfff\x00]")

Status = Literal["answered", "empty", "cut_in_reasoning"]


@dataclass(frozen=True)
class Answer:
    """A model's answer as it is graded.

    ``text`` is empty unless ``status`` is ``answered``; ``cut_in_reasoning`` means that the output
    ended before its reasoning did, so that there is no answer at all.
    """

    text: str
    status: Status

    @property
    def empty(self) -> bool:
        return self.status != "answered"


def writable(text: str) -> str:
    """``text`` with lone surrogates and NULs replaced by U+FFFD, so that any file takes it."""
    return _UNWRITABLE.sub("\ufffd", text)


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends by opening a reasoning block, as some chat templates do."""
    return _OPENING_AT_END.search(prompt) is not None


def clean_answer(output: str, *, reasoning_opened: bool = False) -> Answer:
    """The answer in ``output``.

    ``reasoning_opened`` says that the prompt had already opened a reasoning block; an output
    without a closing tag is then reasoning through and through.
    """
    output = writable(output)
    text = _without_reasoning(output)
    cut = reasoning_opened and not _CLOSING.search(output)
    if cut or _OPENING_AT_START.match(text):
        return Answer("", "cut_in_reasoning")
    text = _BLANK_LINES.sub("\n\n", text).strip()
    return Answer(text, "answered" if text else "empty")


def _without_reasoning(text: str) -> str:
    text = _BLOCK.sub("", text)
    for closing in _CLOSING.finditer(text):
        # An XML-like element with attributes is not reasoning; it opened what this tag closes.
        opened = re.search(rf"<{closing[1]}[\s>]", text[: closing.start()], re.IGNORECASE)
        if not opened:
            return text[closing.end() :]
    return text
