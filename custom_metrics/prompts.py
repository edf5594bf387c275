"""The judge's prompt templates: the official ones, and ones of this project's own wording.

An official prompt belongs to its authors and is not shipped. It is read from
``RUBRIC_PROMPTS_DIR``, from the cache, or from its owner's repository at a pinned commit, where
the string is taken out of the source without running it; whatever the way, its SHA-256 decides.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import jinja2

from custom_metrics import fetch
from custom_metrics.errors import FetchError


@dataclass(frozen=True)
class Official:
    """Where a prompt of a benchmark's authors is found, and what it must be."""

    repository: str
    commit: str
    path: str
    constant: str
    file_name: str
    sha256: str


@dataclass(frozen=True)
class Builtin:
    """A prompt of this project's own wording, a Jinja file in ``builtin_prompts``."""

    file_name: str


@dataclass(frozen=True)
class Prompt:
    """A template, ready to be filled. ``sha256`` is that of the unfilled text."""

    name: str
    text: str
    source: str
    is_jinja: bool = False

    @property
    def sha256(self) -> str:
        return fetch.sha256(self.text)

    def render(self, **values: str) -> str:
        """The text with its placeholders filled, in one pass: what is put in is not scanned."""
        if self.is_jinja:
            return _compiled(self.text).render(values)
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)


_PLACEHOLDER = re.compile(r"<<(\w+)>>")


@lru_cache
def _compiled(text: str) -> jinja2.Template:
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)


def load(specs: Mapping[str, Official | Builtin], name: str) -> Prompt:
    """The prompt called ``name``.

    Raises :class:`FetchError` if an official one can neither be found nor fetched, or is not the
    text that it should be.
    """
    spec = specs[name]
    if isinstance(spec, Builtin):
        folder = resources.files("custom_metrics") / "builtin_prompts"
        text = (folder / spec.file_name).read_text(encoding="utf-8").rstrip("\n")
        return Prompt(name, text, f"custom_metrics/builtin_prompts/{spec.file_name}", is_jinja=True)
    source = f"github.com/{spec.repository}/blob/{spec.commit}/{spec.path}#{spec.constant}"
    return Prompt(name, _official_text(spec), source)


def _official_text(spec: Official) -> str:
    folder = os.environ.get("RUBRIC_PROMPTS_DIR")
    if folder:
        path = Path(folder).expanduser() / spec.file_name
        if not path.is_file():
            raise FetchError(
                f"RUBRIC_PROMPTS_DIR={folder} has no {spec.file_name}; put the official prompt "
                "there, unset the variable to fetch it, or set the judge's prompt to builtin"
            )
        text = _checked(path.read_bytes(), spec)
        if text is None:
            raise FetchError(
                f"{path} is not the official prompt (SHA-256 {spec.sha256} is expected, of "
                "UTF-8 text without a newline at the end); replace it, unset RUBRIC_PROMPTS_DIR "
                "to fetch it, or set the judge's prompt to builtin"
            )
        return text
    cached = fetch.cache_folder() / "prompts" / f"{spec.sha256[:16]}-{spec.file_name}"
    if cached.is_file() and (text := _checked(cached.read_bytes(), spec)) is not None:
        return text
    text = _fetched(spec)
    fetch.keep(cached, text)
    return text


def _checked(data: bytes, spec: Official) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if fetch.sha256(text) == spec.sha256 else None


def _fetched(spec: Official) -> str:
    try:
        source = fetch.github_file(spec.repository, spec.commit, spec.path)
        text = string_constant(source, spec.constant)
        if fetch.sha256(text) != spec.sha256:
            raise FetchError(
                f"{spec.constant} in {spec.path} of {spec.repository} at {spec.commit} does not "
                f"have the SHA-256 {spec.sha256}"
            )
    except FetchError as error:
        raise FetchError(
            f"the official prompt {spec.file_name} could not be had: {error}. Set "
            f"RUBRIC_PROMPTS_DIR to a folder that holds it, RUBRIC_GITHUB_RAW to a mirror, or the "
            "judge's prompt to builtin (other wording, same contract)"
        ) from error
    return text


def string_constant(source: str, name: str) -> str:
    """The string that Python ``source`` assigns to ``name``, taken out without running it.

    A literal, possibly with ``.strip()`` called on it. Raises :class:`FetchError` otherwise.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise FetchError(f"what was fetched is not Python: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            value, strip = node.value, False
            if (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Attribute)
                and value.func.attr == "strip"
                and not value.args
            ):
                value, strip = value.func.value, True
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value.strip() if strip else value.value
    raise FetchError(f"no string is assigned to {name}")
