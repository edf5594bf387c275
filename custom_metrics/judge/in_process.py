"""A judge inside this process: one of the harness's own model classes, given all calls as a batch.

For one machine with a GPU and no server. Calls are queued until none is added any more; then the
model, loaded by then, gets them all, in a thread of its own. Each reply is handed on when the model
reports it, so that what was received is kept if the rest fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from custom_metrics import generation
from custom_metrics.answer import opens_reasoning
from custom_metrics.errors import ConfigError, JudgeError
from custom_metrics.judge.calls import JudgeCall, Reply, Usage
from custom_metrics.judge.client import FinalFailure
from custom_metrics.judge.config import JudgeConfig
from custom_metrics.masking import hide, hide_in_answer, known_secrets

# A batch begins when no call was added for so long: documents are submitted one after another.
_QUIET_S = 0.3
_MESSAGE_LENGTH = 300


@dataclass(eq=False)
class _Asked:
    """A call that waits for its reply of at most ``room`` tokens."""

    call: JudgeCall[Any]
    room: int
    reply: asyncio.Future[Reply]


@dataclass(frozen=True)
class _Loaded:
    """A model of the harness's, with what is needed to give it a chat."""

    model: Any
    render: Callable[[Sequence[dict[str, str]]], Any]
    context: generation.Context | None
    strips_reasoning: bool


@dataclass(frozen=True)
class _Ready:
    """A call as its prompt, which has so many tokens, 0 where they cannot be counted."""

    asked: _Asked
    prompt: Any
    tokens: int


class InProcessClient:
    """Asks one model of the harness's. To be made and used on one event loop."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self._waiting: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._loaded: _Loaded | None = None

    async def check(self) -> None:
        """Find out whether the harness has such a model and its library is there; loads nothing.

        Raises :class:`JudgeError`.
        """
        await asyncio.to_thread(self._class)

    async def close(self) -> None:
        """A batch that runs is left to itself: no model class can be stopped."""
        if self._timer is not None:
            self._timer.cancel()
        self._loaded = None  # its memory, and with vLLM its processes

    async def send(self, call: JudgeCall[Any], max_tokens: int | None) -> Reply:
        """The reply to one call, which is part of the next batch.

        Raises :class:`FinalFailure` for a prompt that the model cannot be given, and
        :class:`JudgeError` if the model cannot be loaded or fails.
        """
        assert max_tokens is not None
        asked = _Asked(call, max_tokens, asyncio.get_running_loop().create_future())
        self._waiting.put(asked)
        self._start_when_quiet()
        return await asked.reply

    # --- on the loop ---

    def _start_when_quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._running:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_S, self._start)

    def _start(self) -> None:
        self._running = True
        loop = asyncio.get_running_loop()
        # Not of a pool: the interpreter would wait for a pool's threads when it is interrupted.
        threading.Thread(target=self._run, args=(loop,), name="judge-model", daemon=True).start()

    def _ended(self) -> None:
        self._running = False
        if not self._waiting.empty():
            self._start_when_quiet()

    # --- in the thread ---

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def settle(asked: _Asked, result: Reply | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, asked.reply, result)

        batch: list[_Asked] = []
        try:
            loaded = self._load()
            batch = self._take()
            self._generate(loaded, batch, settle)
        except BaseException as error:  # whatever it is, nobody may be left waiting
            failure = error if isinstance(error, JudgeError) else self._failed(error)
            for asked in [*batch, *self._take()]:
                settle(asked, failure)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended)

    def _take(self) -> list[_Asked]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._waiting.get_nowait())
        return taken

    def _class(self) -> Any:
        name = self._config.judge_model
        try:
            import lm_eval.models  # noqa: F401  (they register themselves)
            from lm_eval.api.registry import get_model

            return get_model(name)
        except (ImportError, KeyError, ValueError) as error:
            raise JudgeError(
                f"judge_model: lm_eval has no model {name!r} here ({self._said(error)}); take one "
                "of its model types, such as hf or vllm, and install what it needs"
            ) from None

    def _load(self) -> _Loaded:
        if self._loaded is not None:
            return self._loaded
        config = self._config
        model_class, arguments = self._class(), dict(config.judge_model_args or {})
        try:
            model = model_class.create_from_arg_obj(arguments)
            render = partial(model.apply_chat_template, add_generation_prompt=True)
            render([{"role": "user", "content": "?"}])
            context = generation.context_of(model, render, arguments, "judge_model_args")
        except ConfigError as error:
            raise JudgeError(str(error)) from None
        except BaseException as error:
            raise JudgeError(
                f"the judge {config.name} could not be loaded, or has no chat template "
                f"({self._said(error)}); mend judge_model or judge_model_args"
            ) from None
        self._loaded = _Loaded(model, render, context, bool(arguments.get("think_end_token")))
        return self._loaded

    def _generate(
        self,
        loaded: _Loaded,
        batch: Sequence[_Asked],
        settle: Callable[[_Asked, Reply | Exception], None],
    ) -> None:
        """Give the model all of ``batch`` that it can be given, and settle each call."""
        from lm_eval.api.instance import Instance

        ready: list[_Ready] = []
        for asked in batch:
            try:
                ready.append(_prepared(asked, loaded))
            except FinalFailure as failure:
                settle(asked, failure)
        if not ready:
            return
        awaited: dict[str, deque[_Ready]] = defaultdict(deque)
        for one in ready:
            awaited[_text(one.prompt)].append(one)

        def arrived(prompt: Any, text: Any) -> None:
            same = awaited.get(_text(prompt))
            if same:
                one = same.popleft()
                settle(one.asked, _reply(one, text, loaded))

        loaded.model.set_cache_hook(_Hook(arrived))
        requests = [
            Instance(
                request_type="generate_until",
                doc={},
                arguments=(one.prompt, self._arguments(one.asked.room, loaded.model)),
                idx=0,
                metadata=("judge", number, 1),
            )
            for number, one in enumerate(ready)
        ]
        texts = loaded.model.generate_until(requests)
        for one, text in zip(ready, texts, strict=True):  # some model classes never call the hook
            if one in awaited[_text(one.prompt)]:
                settle(one.asked, _reply(one, text, loaded))

    def _arguments(self, room: int, model: Any) -> dict[str, Any]:
        temperature = self._config.temperature
        sampled = bool(temperature)
        configured = {"until": [], "max_gen_toks": room, "do_sample": sampled}
        return generation.generation_kwargs(
            {**configured, **({"temperature": temperature} if sampled else {})}, model
        )

    def _failed(self, error: BaseException) -> JudgeError:
        return JudgeError(
            f"the judge {self._config.name} failed inside this process ({self._said(error)}). "
            "What it said before is kept: mend judge_model_args (a smaller batch_size, say) and "
            "run again"
        )

    @staticmethod
    def _said(error: BaseException) -> str:
        text = hide(" ".join(str(error).split()), known_secrets())
        return f"{type(error).__name__}: {text[:_MESSAGE_LENGTH]}"


class _Hook:
    """A model's cache hook, which it calls with each answer. Never raises."""

    def __init__(self, arrived: Callable[[Any, Any], None]) -> None:
        self._arrived = arrived

    def add_partial(self, kind: str, request: Sequence[Any], answer: Any) -> None:
        if kind == "generate_until":
            with contextlib.suppress(Exception):  # the answer comes once more, with the others
                self._arrived(request[0], answer)


def _prepared(asked: _Asked, loaded: _Loaded) -> _Ready:
    """Raises :class:`FinalFailure`: a prompt that is cut would be judged all the same."""
    messages = asked.call.messages()
    try:
        prompt = loaded.render(messages)
    except Exception as error:
        raise FinalFailure(
            f"the judge's chat template does not take the prompt ({type(error).__name__})"
        ) from None
    if isinstance(prompt, str):  # the harness leaves out a system message that a template refuses
        for message in messages:
            if message["content"].strip() not in prompt:
                raise FinalFailure(
                    f"the judge's chat template leaves out the {message['role']} message"
                )
    context = loaded.context
    if context is None:
        return _Ready(asked, prompt, 0)
    used = context.count(messages)
    if used + asked.room > context.length:
        raise FinalFailure(
            f"the prompt has {used} tokens and its reply may have {asked.room}, which do not fit "
            f"the judge's context of {context.length}"
        )
    return _Ready(asked, prompt, used)


def _reply(ready: _Ready, text: Any, loaded: _Loaded) -> Reply:
    from lm_eval.models import api_models

    text = hide_in_answer(text) if isinstance(text, str) else ""
    if text == api_models.LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER:  # stands for a null reply
        text = ""
    tokens = len(loaded.model.tok_encode(text)) if ready.tokens and text else 0
    opened = isinstance(ready.prompt, str) and opens_reasoning(ready.prompt)
    if opened and not loaded.strips_reasoning:  # the template has opened it, so the text does not
        text = f"<think>{text}"
    return Reply(
        text,
        cut=tokens >= ready.asked.room,  # no model class says so itself
        usage=Usage(prompt=ready.tokens, completion=tokens),
    )


def _text(prompt: Any) -> str:
    """A prompt as a string: some model classes wrap a chat's JSON in a tuple."""
    return prompt if isinstance(prompt, str) else str(getattr(prompt, "prompt", prompt))


def _settle(future: asyncio.Future[Reply], result: Reply | Exception) -> None:
    if future.done():  # its caller was cancelled
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
