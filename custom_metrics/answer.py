"""From what a model wrote to the answer that is graded. Pure functions.

The rules are PRBench's own (scaleapi/PRBench, its response clean-up): reasoning blocks are
removed, long runs of blank lines shortened, the rest stripped. Two cases that the official code
misses are handled too: a chat template that opens the block in the prompt, so that the output
has the closing tag only, and an output that was cut off inside the block.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

_TAG = re.compile(r"<(/?)(think|thinking|reasoning|reason)(\s[^<>]*)?>", re.IGNORECASE)
_OPENING_AT_END = re.compile(r"<(think|thinking|reasoning|reason)>\s*\Z", re.IGNORECASE)
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
    text = _without_reasoning(writable(output), reasoning_opened)
    if text is None:
        return Answer("", "cut_in_reasoning")
    text = _BLANK_LINES.sub("\n\n", text).strip()
    return Answer(text, "answered" if text else "empty")


def _without_reasoning(text: str, opened: bool) -> str | None:
    """``text`` without its reasoning; None if it ends inside it, with nothing before."""
    if opened:
        closing = next((tag for tag in _TAG.finditer(text) if tag[1]), None)
        if closing is None:
            return None
        text = text[closing.end() :]
    blocks, unclosed = _reasoning_blocks(text)
    kept: list[str] = []
    position = 0
    for start, end in [*blocks, (len(text), len(text))]:
        if unclosed is not None and position <= unclosed <= start:
            before = "".join(kept) + text[position:unclosed]
            if not before.strip("\ufeff \t\r\n"):
                return None
        kept.append(text[position:start])
        position = end
    return "".join(kept)


def _reasoning_blocks(text: str) -> tuple[list[tuple[int, int]], int | None]:
    """Where reasoning stands in ``text``, and where the first tag begins that nothing closes."""
    # Open tags: name, where it begins, whether it is an XML-like element with attributes.
    stack: list[tuple[str, int, bool]] = []
    depth = dict.fromkeys(("think", "thinking", "reasoning", "reason"), 0)
    blocks: list[tuple[int, int]] = []
    lone: list[int] = []
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if not tag[1]:
            stack.append((name, tag.start(), bool((tag[3] or "").strip())))
            depth[name] += 1
        elif depth[name]:
            opened = ("", 0, False)
            while opened[0] != name:
                opened = stack.pop()
                depth[opened[0]] -= 1
            if not opened[2]:
                blocks.append((opened[1], tag.end()))
        else:
            lone.append(tag.end())
    blocks = _disjoint(blocks)
    starts = [start for start, _ in blocks]
    for end in lone:
        index = bisect_left(starts, end) - 1
        if index < 0 or blocks[index][1] < end:
            # Nothing in the output opened this, so the prompt did, and all before is reasoning.
            blocks = [(0, end), *(block for block in blocks if block[0] >= end)]
            break
    position = blocks[0][1] if blocks and not blocks[0][0] else 0
    unclosed = (start for _, start, element in stack if not element and start >= position)
    return blocks, next(unclosed, None)


def _disjoint(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks in order, without those that lie inside another."""
    outer: list[tuple[int, int]] = []
    for start, end in sorted(blocks):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer
