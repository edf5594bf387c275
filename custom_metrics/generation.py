"""Prompts and generation arguments that fit the model under test.

The harness cuts a prompt that does not fit from the left, chat template and all, with a negative
index if the room for the answer is larger than the context, or fails an assertion once generation
has begun. So everything is fitted before: first the room for the answer shrinks, then the
conversation loses its oldest text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from custom_metrics.errors import ConfigError
from custom_metrics.masking import refuse_secrets, shown
from custom_metrics.rubric import Message

logger = logging.getLogger(__name__)

# Names of one limit, in the harness's own order; the task's YAML sets max_gen_toks.
_LIMIT_NAMES = ("max_new_tokens", "max_tokens", "max_completion_tokens")
# Less room than this for an answer is worth less than the oldest part of the conversation.
LEAST_ANSWER_TOKENS = 1024
_PROBE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Context:
    """A model's window: ``length`` tokens for prompt and answer; ``count`` measures a chat.

    ``most`` is an upper bound of ``count`` that costs nothing, where counting costs a request.
    """

    length: int
    count: Callable[[Sequence[Message]], int]
    most: Callable[[Sequence[Message]], int] | None = None


@dataclass(frozen=True)
class Fitted:
    """A conversation with the room for its answer. ``cut`` says that oldest text was left out."""

    messages: list[Message]
    answer_tokens: int
    cut: bool = False


# --- the model -----------------------------------------------------------------------------


def _classes(model: Any) -> set[str]:
    # By name: importing the classes would load torch and every API client.
    return {cls.__name__ for cls in type(model).__mro__}


def is_chat_api(model: Any) -> bool:
    """Whether ``model`` takes a list of messages and nothing else."""
    return bool(_classes(model) & {"LocalChatCompletion", "AnthropicChat"})


def sends_stop(model: Any) -> bool:
    """Whether ``model`` puts a ``stop`` field into its requests, also an empty one."""
    return "LocalCompletionsAPI" in _classes(model) and "AnthropicChat" not in _classes(model)


def generation_kwargs(configured: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The task's generation arguments as ``model`` takes them.

    One name for the token limit, whichever the user chose, and no empty list of stop sequences to
    servers that reject it: they get ``null``, the protocol's default.
    """
    refuse_secrets("--gen_kwargs", configured)
    kwargs = dict(configured)
    for name in _LIMIT_NAMES:
        if (value := kwargs.pop(name, None)) is not None:
            kwargs["max_gen_toks"] = value
    limit = kwargs.get("max_gen_toks")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(f"--gen_kwargs max_gen_toks: an integer of 1 or more, not {shown(limit)}")
    if not kwargs.get("until") and sends_stop(model) and not getattr(model, "_eos_string", None):
        kwargs["stop"] = None
    return kwargs


def context_of(
    model: Any,
    render: Callable[[Sequence[Message]], Any],
    model_args: Mapping[str, Any],
    option: str = "--model_args",
) -> Context | None:
    """The window of ``model``, or None where it cannot be known (most chat APIs).

    ``render`` makes the prompt that the model is given; ``option`` is where its arguments are
    set. Raises :class:`ConfigError` for a
    completions API without ``max_length``: the harness would assume 2,048 tokens.
    """
    api = "TemplateAPI" in _classes(model)
    if api and is_chat_api(model):
        return _server_context(model)
    if api and not isinstance(render([{"role": "user", "content": "?"}]), str):
        raise ConfigError(
            "this completions API gets no text but a list of messages; use local-chat-completions, "
            "or tokenizer_backend=huggingface with tokenizer=<name>"
        )
    if api and not getattr(model, "tokenized_requests", False):
        return None
    if api and "max_length" not in model_args:
        raise ConfigError(
            f"{option} max_length is needed for a completions API: the harness assumes a "
            "context of 2048 tokens otherwise and cuts what is longer; give the server's own, "
            "such as max_length=32768"
        )
    if not hasattr(model, "tok_encode") or not hasattr(model, "max_length"):
        return None
    return Context(int(model.max_length), lambda messages: len(model.tok_encode(render(messages))))


def _server_context(model: Any) -> Context | None:
    """What a vLLM server says of its window, and its own count of a chat's tokens."""
    url = str(getattr(model, "base_url", "") or "")
    root, found, _ = url.rpartition("/v1/")
    if not found or not url.endswith("/chat/completions"):
        return None
    options: dict[str, Any] = {
        "headers": dict(model.header),
        "verify": getattr(model, "verify_certificate", True),
        "timeout": _PROBE_TIMEOUT_S,
    }
    try:
        listed = requests.get(f"{root}/v1/models", **options).json()["data"]
        length = next(m["max_model_len"] for m in listed if m["id"] == model.model)
        probe = [{"role": "user", "content": "?"}]
        _server_count(root, model.model, probe, options)
    except (requests.RequestException, ValueError, LookupError, TypeError, StopIteration):
        return None

    return Context(
        int(length), lambda messages: _server_count(root, model.model, messages, options), _most
    )


def _most(messages: Sequence[Message]) -> int:
    # A token has at least one byte, and a template adds few to each message.
    return sum(len(message["content"].encode()) + 64 for message in messages) + 256


def _server_count(
    root: str, name: str, messages: Sequence[Message], options: Mapping[str, Any]
) -> int:
    body = {"model": name, "messages": list(messages), "add_generation_prompt": True}
    return int(requests.post(f"{root}/tokenize", json=body, **options).json()["count"])


# --- fitting -------------------------------------------------------------------------------


def fit(messages: list[Message], wanted: int, context: Context | None) -> Fitted:
    """``messages`` with as much of the ``wanted`` answer tokens as the window has room for.

    Raises :class:`ConfigError` if the window is too small for any conversation.
    """
    if context is None:
        return Fitted(messages, wanted)
    least = min(wanted, LEAST_ANSWER_TOKENS)
    room = context.length - least
    if room < least // 4 + 64:
        raise ConfigError(
            f"the model's context of {context.length} tokens has no room for a prompt and an "
            f"answer of {least}; take a model with a longer context, or a smaller --gen_kwargs "
            "max_gen_toks"
        )
    if context.most is not None and context.most(messages) + wanted <= context.length:
        return Fitted(messages, wanted)
    used = context.count(messages)
    cut = used > room
    while used > room:
        messages = _shortened(messages, used, room)
        used = context.count(messages)
    answer = wanted
    while answer > least and used + answer > context.length:
        # Halves, so that few different limits arise: the harness batches by them.
        answer = max(least, answer // 2)
    return Fitted(messages, answer, cut)


def _shortened(messages: list[Message], used: int, room: int) -> list[Message]:
    """``messages`` without some of their oldest text."""
    head = [m for m in messages if m["role"] == "system"]
    turns = [dict(m) for m in messages if m["role"] != "system"]
    length = sum(len(m["content"]) for m in turns)
    excess = max(64, -(-length * (used - room) * 21 // (used * 20)))
    while len(turns) > 1 and (
        len(turns[0]["content"]) <= excess or turns[0]["role"] == "assistant"
    ):  # templates want a user's turn first
        excess -= len(turns.pop(0)["content"])
    if excess > 0:
        rest = turns[0]["content"][excess:]
        if not rest.strip():
            raise ConfigError(
                "a prompt does not fit the model's context, not even its last part; take a model "
                "with a longer context"
            )
        turns[0]["content"] = rest
    return head + turns
