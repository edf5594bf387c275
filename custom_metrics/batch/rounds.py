"""``lm-eval-rubrics batch``: judging by OpenAI's Batch API, half the price for a day's patience.

A round writes what the store lacks to files, uploads them, makes a batch of each, waits for it,
and keeps what came back; the next one takes what failed. Each step is kept before the next begins,
so that the same command goes on wherever it was broken off, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import filelock
import openai
from lm_eval.utils import setup_logging
from openai.types import Batch as RemoteBatch

from custom_metrics import ranks
from custom_metrics.batch.export import check_batchable, write_missing
from custom_metrics.batch.files import MOST_REQUESTS, url_of
from custom_metrics.batch.registry import Batch, Registry, folder
from custom_metrics.batch.replies import import_replies
from custom_metrics.errors import ConfigError, JudgeError
from custom_metrics.judge import JudgeConfig, resolve_config
from custom_metrics.judge.client import openai_client
from custom_metrics.masking import hide, known_secrets
from custom_metrics.score import load, score

logger = logging.getLogger("lm_eval.rubrics")

T = TypeVar("T")

_MOST_ROUNDS = 24  # each of which has to bring verdicts
_MOST_LISTED = 300  # batches that are looked through for one that was made and not noted
_RETRIES = 5  # the client's own, for each request
_RETRY_S = 30.0
_METADATA = "lm_eval_rubrics"
_ENDED = ("completed", "failed", "expired", "cancelled")
_UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")


def judge_in_batches(
    given: Sequence[str],
    *,
    judge: Mapping[str, Any],
    metadata: Mapping[str, Any],
    output_path: str | None,
    live_rest: bool = False,
    forget_lost: bool = False,
    poll: float = 60.0,
    most_requests: int = MOST_REQUESTS,
) -> dict[str, Any]:
    """Judge saved answers in batches, then :func:`~custom_metrics.score.score` them.

    What no batch brought is left out as a call without a verdict, or with ``live_rest`` asked for
    in the usual way. A batch that the API does not find stops the command, since it may be there
    with another key; with ``forget_lost`` its calls go again. ``poll`` is in seconds. Raises
    :class:`JudgeError` where no batch can be had.
    """
    setup_logging()
    ranks.refuse_copies(1)
    config = resolve_config(dict(judge))
    check_batchable(config)
    folder().mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder() / "lock")
    try:
        with lock.acquire(timeout=0):
            api = _Api(config, poll=poll, forget_lost=forget_lost)
            missing = asyncio.run(_rounds(given, judge, metadata, api, most_requests))
    except filelock.Timeout:
        raise ConfigError(
            "another lm-eval-rubrics batch is running here; wait for it, or set RUBRIC_CACHE_DIR"
        ) from None
    except KeyboardInterrupt:
        logger.warning("What was sent goes on; the same command again waits for it")
        raise
    settings = dict(judge)
    if missing and not live_rest:
        logger.warning(
            "%d calls have no verdict from any batch, and are left out; score with the same "
            "settings, or batch --live_rest, asks for them one by one",
            missing,
        )
        settings["max_calls"] = 0
    return score(given, judge=settings, metadata=metadata, output_path=output_path)


async def _rounds(
    given: Sequence[str],
    judge: Mapping[str, Any],
    metadata: Mapping[str, Any],
    api: _Api,
    most_requests: int,
) -> int:
    """How many calls are left without a verdict."""
    registry = Registry()
    try:
        await _see_through(registry, api)  # what an earlier command has sent
        files, tasks, _ = load(given, judge, metadata)
        before: int | None = None
        came = _Came()
        for number in range(1, _MOST_ROUNDS + 2):
            out = folder() / uuid.uuid4().hex[:12] / "requests.jsonl"
            exported = write_missing(files, tasks, out, most_requests)
            left = exported.requests
            if not left:
                return 0
            if number > _MOST_ROUNDS or (before is not None and left >= before):
                for path in exported.files:
                    path.unlink()
                if came.complaints or not exported.held:
                    raise JudgeError(came.as_reason(api.endpoint))
                return left
            before = left
            logger.info("Round %d: %d calls in %d files", number, left, len(exported.files))
            url = url_of(exported.path)
            registry.keep(Batch(exported.export.id, path, url) for path in exported.files)
            came = await _see_through(registry, api)
        return left
    finally:
        registry.close()
        await api.close()


@dataclass
class _Came:
    """What went wrong in a round: with whole batches, and with single calls."""

    complaints: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def as_reason(self, endpoint: str) -> str:
        reasons = self.complaints[:3] or [reason for reason, _ in self.failed.most_common(1)]
        return (
            f"the batches at {endpoint} bring no more verdicts: "
            f"{'; '.join(reasons) or 'no reason given'}. What came is kept: mend that and run the "
            "same command again"
        )


async def _see_through(registry: Registry, api: _Api) -> _Came:
    """Send what is to be sent, wait for all batches under way, and keep what they bring.

    Raises :class:`JudgeError` at the end where the API does not find what was paid for.
    """
    came = _Came()
    lost: dict[Batch, str] = {}
    started = [await _started(registry, api, b, came) for b in registry.open_batches(api.endpoint)]
    waiting = [batch for batch in started if batch is not None]
    said: dict[str, str] = {}
    while waiting:
        for batch in list(waiting):
            assert batch.batch is not None
            try:
                remote = await api.retrieve(batch.batch)
                if said.get(batch.batch) != _state(remote):
                    said[batch.batch] = _state(remote)
                    logger.info("Batch %s: %s", batch.batch, said[batch.batch])
                if remote.status not in _ENDED:
                    continue
                await _collect(api, batch, remote, came)
            except _Refused as refusal:
                if api.forget_lost:
                    came.complaints.append(f"batch {batch.batch} is given up: {refusal}")
                else:
                    lost[batch] = f"batch {batch.batch}: {refusal}"
            waiting.remove(batch)
            if batch not in lost:
                _close(registry, batch)
        if waiting:
            await asyncio.sleep(api.poll)
    if lost:
        raise JudgeError(
            f"the batch API at {api.endpoint} does not give what was paid for "
            f"({'; '.join(lost.values())}). Is it another project's key? Nothing is sent anew "
            "until then; --forget_lost gives these batches up, and sends their calls again"
        )
    return came


async def _started(registry: Registry, api: _Api, batch: Batch, came: _Came) -> Batch | None:
    """``batch`` under way; None if its file is gone or refused: the next round takes its calls."""
    if batch.batch is not None:
        return batch
    try:
        if batch.file is None:
            if not batch.path.exists():
                _close(registry, batch)
                return None
            batch = replace(batch, file=await api.upload(batch.path))
            registry.keep([batch])
        batch = replace(batch, batch=await api.create(batch))
    except _Refused as refusal:  # nothing was paid
        came.complaints.append(f"{batch.path.name} was refused: {refusal}")
        _close(registry, batch)
        return None
    registry.keep([batch])
    return batch


def _close(registry: Registry, batch: Batch) -> None:
    """Be done with a batch; calls that it did not bring are the next round's."""
    registry.keep([batch], is_open=False)
    batch.path.unlink(missing_ok=True)


async def _collect(api: _Api, batch: Batch, remote: RemoteBatch, came: _Came) -> None:
    """Keep the replies of a batch that has ended, however it did; either file may be missing."""
    for name, file in (("replies", remote.output_file_id), ("errors", remote.error_file_id)):
        path = batch.path.with_name(f"{batch.path.stem}-{name}.jsonl")
        if not file:
            continue
        await api.download(file, path)
        if path.stat().st_size:
            imported = import_replies([str(path)], foreign=True)
            logger.info("Batch %s: %s", batch.batch, imported)
            if not imported.replies:
                raise _Refused(f"its {name} are none ({path})")
            came.failed += imported.failed
    if remote.status != "completed":
        details = remote.errors.data if remote.errors and remote.errors.data else []
        words = "; ".join(dict.fromkeys(str(d.message) for d in details[:5] if d.message))
        came.complaints.append(api.hide(f"batch {batch.batch} {remote.status}: {words or '-'}"))


def _state(remote: RemoteBatch) -> str:
    counts = remote.request_counts
    done = f", {counts.completed + counts.failed} of {counts.total} calls" if counts else ""
    return f"{remote.status}{done}"


class _Refused(Exception):
    """The API does not know what it is asked about, or does not take what it is sent."""


class _Odd(Exception):
    """An answer that the Batch API does not give; something in between may have given it."""


def _named(made: Any) -> str:
    """The id of an object that the API has made."""
    name = getattr(made, "id", None)
    if not isinstance(name, str) or not name:
        raise _Odd("an answer without an id")
    return name


class _Api:
    """The Batch API at the judge's endpoint.

    What may pass (no connection, rate limits, server errors, odd answers) is waited for,
    ``max_outage`` seconds at most. Raises :class:`_Refused` for what is refused, and
    :class:`JudgeError` for what will not pass. ``poll`` is in seconds.
    """

    def __init__(self, config: JudgeConfig, *, poll: float, forget_lost: bool) -> None:
        self._client = openai_client(config, max_retries=_RETRIES)
        self._config = config
        self.endpoint = config.endpoint
        self.poll = poll
        self.forget_lost = forget_lost

    async def close(self) -> None:
        await self._client.close()

    async def upload(self, path: Path) -> str:
        """A file's id."""

        async def upload() -> str:
            with path.open("rb") as file:
                return _named(await self._client.files.create(file=file, purpose="batch"))

        return await self._until_done(upload)

    async def create(self, batch: Batch) -> str:
        """The id of the batch of an uploaded file: one that was made and not noted, or a new one.

        A command may have been broken off, or an answer lost, just after it was made.
        """

        async def create() -> str:
            if found := await self._find(batch.label):
                return found
            made = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=str(batch.file),
                endpoint=batch.url,  # type: ignore[arg-type]
                completion_window="24h",
                metadata={_METADATA: batch.label},
            )
            return _named(made)

        return await self._until_done(create)

    async def _find(self, label: str) -> str | None:
        seen = 0
        async for made in self._client.batches.list(limit=100):
            if (made.metadata or {}).get(_METADATA) == label:
                return _named(made)
            seen += 1
            if seen >= _MOST_LISTED:
                break
        return None

    async def retrieve(self, name: str) -> RemoteBatch:
        """How a batch is."""

        async def retrieve() -> RemoteBatch:
            found = await self._client.batches.retrieve(name)
            if getattr(found, "status", None) not in _ENDED + _UNDER_WAY:
                raise _Odd(f"batch {name} without a status that batches have")
            return found

        return await self._until_done(retrieve)

    async def download(self, name: str, path: Path) -> None:
        """A file's content, whole or not at all."""

        async def download() -> None:
            part = path.with_name(f"{path.name}.part")
            async with self._client.files.with_streaming_response.content(name) as response:
                await response.stream_to_file(part)
            part.replace(path)

        await self._until_done(download)

    def hide(self, text: str) -> str:
        """``text`` without a key."""
        key = self._config.find_api_key()
        return hide(" ".join(text.split()), known_secrets() | ({key} if key else set()))

    async def _until_done(self, make: Callable[[], Awaitable[T]]) -> T:
        first: float | None = None
        while True:
            try:
                return await make()
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise JudgeError(
                    f"the batch API at {self.endpoint} refuses the API key ({error.status_code})"
                ) from None
            except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError,
                    _Odd, AttributeError, TypeError, ValueError) as error:  # fmt: skip
                # The client takes an answer of any shape for an object, and fails on it later.
                if getattr(error, "code", None) == "insufficient_quota":
                    raise self._stuck(error) from None
                now = time.monotonic()
                first = now if first is None else first
                if now - first >= self._config.max_outage:
                    raise self._stuck(error) from None
                logger.warning("The batch API is tried again: %s", self.hide(str(error)))
                await asyncio.sleep(min(self.poll, _RETRY_S))
            except openai.APIStatusError as error:
                raise _Refused(self.hide(str(error))) from None
            except openai.OpenAIError as error:
                raise self._stuck(error) from None

    def _stuck(self, error: Exception) -> JudgeError:
        return JudgeError(
            f"the batch API at {self.endpoint}: {self.hide(str(error))}. What came is kept: the "
            "same command again goes on"
        )
