"""Text that models and strangers wrote, made safe to look at. Pure functions.

Nothing of it is trusted: characters that reorder or hide text are made visible, and Markdown
becomes HTML by a library that takes no HTML of its author's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

# A page of Markdown has a few thousand characters; what is longer is shown as it was written.
LONGEST_MARKDOWN = 60_000

# C0 and C1 controls, embeddings, overrides and isolates of direction, lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_END = re.compile("\r\n?")
_ALLOWED_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
_LARGEST_HEADING = 4  # those of the page itself are larger


def visible(text: str) -> str:
    """``text`` with each control character as ``⟦U+202E⟧``, so that none of them does anything."""
    return _INVISIBLE.sub(lambda m: f"⟦U+{ord(m[0]):04X}⟧", _LINE_END.sub("\n", text))


def markdown(text: str) -> str | None:
    """``text`` as HTML, its own HTML escaped; None if it is too long to be a page of Markdown.

    Images become links, and only ``http``, ``https`` and ``mailto`` links are links; the rest of
    what looks like one stays as it was written.
    """
    if len(text) > LONGEST_MARKDOWN:
        return None
    return str(_PARSER.render(visible(text)))


class _Renderer(RendererHTML):
    """The library's own, without the style attributes that the page's policy forbids."""

    def heading_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return f"<{self._heading(tokens[index])}>"

    def heading_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return f"</{self._heading(tokens[index])}>\n"

    @staticmethod
    def _heading(token: Token) -> str:
        return f"h{min(6, int(token.tag[1]) + _LARGEST_HEADING - 1)}"

    def link_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        link = tokens[index]
        link.attrs = {
            "href": link.attrs["href"],
            "rel": "noopener noreferrer",
            "target": "_blank",
        }
        return self.renderToken(tokens, index, options, env)

    def _cell(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        right = "right" in str(tokens[index].attrs.get("style", ""))
        return f"<{tokens[index].tag}{' class=right' if right else ''}>"

    th_open = td_open = _cell

    def table_open(self, *_: Any) -> str:
        return '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table></div>\n"

    def fence(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return self.code_block(tokens, index, options, env)  # without a class of the author's


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.disable("image")  # "!" and a link: nothing is loaded
    parser.validateLink = lambda url: bool(_ALLOWED_LINK.match(url))  # type: ignore[method-assign]
    return parser


_PARSER = _parser()
