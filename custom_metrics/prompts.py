"""Prompt templates: the official ones, and ones of this project's own wording.

An official prompt belongs to its authors and is not shipped. It is read from
``RUBRIC_PROMPTS_DIR``, from the cache, or from its owner's repository at a pinned commit, where
the string is taken out of the source without running it; whatever the way, its SHA-256 decides.
"""

from __future__ import annotations

import ast
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2

from custom_metrics import fetch
from custom_metrics.errors import ConfigError, FetchError
from custom_metrics.masking import shown

logger = logging.getLogger("lm_eval.rubrics")

Style = Literal["angle", "brace", "jinja"]
"""How placeholders are written: ``<<name>>``, ``{name}`` or Jinja's ``{{ name }}``."""


@dataclass(frozen=True)
class Official:
    """Where a template of a benchmark's authors is found, and what it must be.

    ``constant`` is assigned a string, or a dict that holds it under ``key``. ``repositories`` are
    names of the same repository, tried in turn. ``repairs`` are (pattern, replacement) pairs that
    mend the checked text; what was mended is recorded.
    """

    repositories: tuple[str, ...]
    commit: str
    path: str
    constant: str
    file_name: str
    sha256: str
    key: str | None = None
    style: Style = "angle"
    repairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Builtin:
    """A template of this project's own wording, a Jinja file in ``builtin_prompts``."""

    file_name: str


Specs = Mapping[str, Mapping[str, tuple[Official | Builtin, ...]]]
"""Prompt name → role → the parts of that role's template, which are joined."""


@dataclass(frozen=True)
class Template:
    """One role's template, ready to be filled."""

    text: str
    style: Style
    record: Mapping[str, Any]

    def render(self, values: Mapping[str, str]) -> str:
        """The text with its placeholders filled, in one pass: what is put in is not scanned."""
        if self.style == "jinja":
            return _compiled(self.text).render(values)
        left, right = ("<<", ">>") if self.style == "angle" else (r"\{", r"\}")
        pattern = f"{left}({'|'.join(values)}){right}"
        return re.sub(pattern, lambda match: values[match[1]], self.text)


@dataclass(frozen=True)
class Prompt:
    """A chat's templates by role, under the name that a setting chooses."""

    name: str
    templates: Mapping[str, Template]

    def messages(self, **values: str) -> list[dict[str, str]]:
        """The chat, every template filled with ``values``."""
        return [
            {"role": role, "content": template.render(values)}
            for role, template in self.templates.items()
        ]

    def record(self) -> dict[str, Any]:
        """Name, and for each role the SHA-256 and source, as results and samples hold them."""
        roles = {role: dict(template.record) for role, template in self.templates.items()}
        return {"name": self.name, **roles}


@lru_cache
def _compiled(text: str) -> jinja2.Template:
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)


def load(specs: Specs, name: str) -> Prompt:
    """The prompt called ``name``.

    Raises :class:`FetchError` if an official part can neither be found nor fetched, or is not the
    text that it should be.
    """
    return Prompt(name, {role: _template(parts) for role, parts in specs[name].items()})


def load_task_prompt(specs: Specs, metadata: Mapping[str, Any] | None) -> Prompt:
    """The task prompt that metadata ``task_prompt`` or ``RUBRIC_TASK_PROMPT`` chooses.

    Raises :class:`ConfigError` for an unknown name, else as :func:`load`.
    """
    chosen = (metadata or {}).get("task_prompt") or os.environ.get("RUBRIC_TASK_PROMPT")
    name = str(chosen or "official")
    if name not in specs:
        raise ConfigError(
            f"RUBRIC_TASK_PROMPT (or metadata 'task_prompt'): {shown(name)} is not one of "
            f"{', '.join(specs)}"
        )
    return load(specs, name)


def _template(parts: tuple[Official | Builtin, ...]) -> Template:
    texts = [_official(part) if isinstance(part, Official) else _builtin(part) for part in parts]
    first = parts[0]
    text = "".join(texts)
    record: dict[str, Any] = {
        "sha256": fetch.sha256(text),
        "source": " + ".join(source_of(part) for part in parts),
    }
    if any(isinstance(part, Official) and part.repairs for part in parts):
        record["repaired"] = "the official text is malformed; it was mended after its check"
        record["official_sha256"] = [p.sha256 for p in parts if isinstance(p, Official)]
    return Template(text, first.style if isinstance(first, Official) else "jinja", record)


def source_of(part: Official | Builtin) -> str:
    """Where a part of a template stands, with the commit of an official one."""
    if isinstance(part, Builtin):
        return f"custom_metrics/builtin_prompts/{part.file_name}"
    place = part.constant if part.key is None else f"{part.constant}[{part.key!r}]"
    return f"github.com/{part.repositories[0]}/blob/{part.commit}/{part.path}#{place}"


def _builtin(part: Builtin) -> str:
    folder = resources.files("custom_metrics") / "builtin_prompts"
    return (folder / part.file_name).read_text(encoding="utf-8").rstrip("\n")


def _official(part: Official) -> str:
    text = official_text(part)
    for pattern, replacement in part.repairs:
        text = re.sub(pattern, replacement, text)
    return text


def official_text(part: Official) -> str:
    """The authors' text, as checked: from a folder of the user's, the cache, or their repository.

    Raises :class:`FetchError`.
    """
    folder = os.environ.get("RUBRIC_PROMPTS_DIR")
    if folder:
        path = Path(folder).expanduser() / part.file_name
        if not path.is_file():
            raise FetchError(
                f"RUBRIC_PROMPTS_DIR={folder} has no {part.file_name}; put the official prompt "
                "there, unset the variable to fetch it, or choose the builtin prompt"
            )
        text = _checked(path.read_bytes(), part)
        if text is None:
            raise FetchError(
                f"{path} is not the official prompt (SHA-256 {part.sha256} is expected, of "
                "UTF-8 text without a newline at the end); replace it, unset RUBRIC_PROMPTS_DIR "
                "to fetch it, or choose the builtin prompt"
            )
        return text
    cached = fetch.cache_folder() / "prompts" / f"{part.sha256[:16]}-{part.file_name}"
    if cached.is_file() and (text := _checked(cached.read_bytes(), part)) is not None:
        return text
    text = _fetched(part)
    try:
        fetch.keep(cached, text.encode("utf-8"))
    except OSError as error:  # the prompt is at hand; next time it is fetched again
        logger.warning("%s cannot be written (%s); set RUBRIC_CACHE_DIR", cached, error.strerror)
    return text


def _checked(data: bytes, part: Official) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if fetch.sha256(text) == part.sha256 else None


def _fetched(part: Official) -> str:
    try:
        source = fetch.github_file(part.repositories, part.commit, part.path)
        text = string_constant(source.decode("utf-8", "replace"), part.constant, part.key)
        if fetch.sha256(text) != part.sha256:
            raise FetchError(
                f"{part.constant} in {part.path} of {part.repositories[0]} at {part.commit} does "
                f"not have the SHA-256 {part.sha256}"
            )
    except FetchError as error:
        raise FetchError(
            f"the official prompt {part.file_name} could not be had: {error}. Set "
            "RUBRIC_PROMPTS_DIR to a folder that holds it, RUBRIC_GITHUB_RAW to a mirror, or "
            "choose the builtin prompt (other wording, same contract)"
        ) from error
    return text


def string_constant(source: str, name: str, key: str | None = None) -> str:
    """The string that Python ``source`` assigns to ``name``, taken out without running it.

    A literal, possibly with ``.strip()`` called on it, or such a value under ``key`` of a dict
    display. Raises :class:`FetchError` if there is none.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FetchError(f"what was fetched is not Python: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            text = _literal(node.value if key is None else _entry(node.value, key))
            if text is not None:
                return text
    raise FetchError(f"no string is assigned to {name if key is None else f'{name}[{key!r}]'}")


def _entry(node: ast.expr, key: str) -> ast.expr | None:
    if not isinstance(node, ast.Dict):
        return None
    pairs = zip(node.keys, node.values, strict=True)
    return next((v for k, v in pairs if isinstance(k, ast.Constant) and k.value == key), None)


def _literal(node: ast.expr | None) -> str | None:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "strip"
        and not node.args
    ):
        text = _literal(node.func.value)
        return None if text is None else text.strip()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
