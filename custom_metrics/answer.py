"""From what a model wrote to the answer that is graded. Pure functions.

The rules are PRBench's own (scaleapi/PRBench, its response clean-up): reasoning blocks are
removed, long runs of blank lines shortened, the rest stripped. Cases that the official code misses
are handled too: a chat template that opens the block in the prompt, so that the output has the
closing tag only, an output that was cut off inside the block, and the markers of models that write
other ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_NAMES = "think|thinking|reasoning|reason"
# Markers of models that do not write <think>: Magistral, Kimi, Open-R1 and Sky-T1, Seed, Command A.
_MARKERS = (
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
_OPENED_BY = dict(_MARKERS)
_CLOSED_BY = {closing: opening for opening, closing in _MARKERS}
_EITHER = "|".join(re.escape(marker) for pair in _MARKERS for marker in pair)
_TAG = re.compile(rf"<(/?)((?i:{_NAMES}))(\s[^<>]*)?>|{_EITHER}")
_OPENING_AT_END = re.compile(
    rf"(<(?i:{_NAMES})>|{'|'.join(re.escape(opening) for opening, _ in _MARKERS)})\s*\Z"
)
# gpt-oss (harmony) writes channels; without special tokens only their names are left.
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|start)\|>")
_BARE_CHANNELS = re.compile(r"\s*analysis(?=\S).*?assistantfinal", re.DOTALL)
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
    text = _final_channel(writable(output))
    text = None if text is None else _without_reasoning(text, reasoning_opened)
    if text is None:
        return Answer("", "cut_in_reasoning")
    text = _BLANK_LINES.sub("\n\n", text).strip()
    return Answer(text, "answered" if text else "empty")


def _final_channel(text: str) -> str | None:
    """What a model that writes channels says in the last ``final`` one; other text as it is.

    None if it ended before that channel.
    """
    channels = list(_CHANNEL.finditer(text))
    if not channels:
        bare = _BARE_CHANNELS.match(text)
        return text[bare.end() :] if bare else text
    final = next((c for c in reversed(channels) if c[1] == "final"), None)
    if final is None:
        return None
    end = _CHANNEL_END.search(text, final.end())
    return text[final.end() : end.start() if end else len(text)]


@dataclass(frozen=True)
class _Tag:
    name: str
    start: int
    end: int
    closing: bool
    element: bool
    """Whether it has attributes, as an element of some XML has."""


def _tags(text: str) -> Iterator[_Tag]:
    for match in _TAG.finditer(text):
        marker = match[0]
        if marker in _OPENED_BY or marker in _CLOSED_BY:
            name = _CLOSED_BY.get(marker, marker)
            yield _Tag(name, match.start(), match.end(), marker in _CLOSED_BY, False)
        else:
            element = bool((match[3] or "").strip())
            yield _Tag(match[2].lower(), match.start(), match.end(), bool(match[1]), element)


def _without_reasoning(text: str, opened: bool) -> str | None:
    """``text`` without its reasoning; None if it ends inside it, with nothing before."""
    if opened:
        closing = next((tag for tag in _tags(text) if tag.closing), None)
        if closing is None:
            return None
        text = text[closing.end :]
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
    stack: list[_Tag] = []
    depth: Counter[str] = Counter()
    blocks: list[tuple[int, int]] = []
    lone: list[int] = []
    for tag in _tags(text):
        if not tag.closing:
            stack.append(tag)
            depth[tag.name] += 1
        elif depth[tag.name]:
            while True:
                opened = stack.pop()
                depth[opened.name] -= 1
                if opened.name == tag.name:
                    break
            if not opened.element:
                blocks.append((opened.start, tag.end))
        else:
            lone.append(tag.end)
    blocks = _disjoint(blocks)
    starts = [start for start, _ in blocks]
    for end in lone:
        index = bisect_left(starts, end) - 1
        if index < 0 or blocks[index][1] < end:
            # Nothing in the output opened this, so the prompt did, and all before is reasoning.
            blocks = [(0, end), *(block for block in blocks if block[0] >= end)]
            break
    position = blocks[0][1] if blocks and not blocks[0][0] else 0
    unclosed = (t.start for t in stack if not t.element and t.start >= position)
    return blocks, next(unclosed, None)


def _disjoint(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks in order, without those that lie inside another."""
    outer: list[tuple[int, int]] = []
    for start, end in sorted(blocks):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer
