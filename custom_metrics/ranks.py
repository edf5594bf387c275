"""Several processes that share one run: each has its own documents, and the first one speaks.

The model's class splits the documents and gathers, as the harness has it (``rank``,
``world_size``, ``all_gather``, ``gather_object``, ``barrier``); there is no connection of this
project's own. What a method here gathers all ranks have to call, in the same order.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from tqdm import tqdm

from custom_metrics.errors import ConfigError, JudgeError, RubricError
from custom_metrics.judge.config import JudgeConfig

logger = logging.getLogger("lm_eval.rubrics")

T = TypeVar("T")

# What says to a process how many were started, and which one it is. SLURM_NTASKS is no such sign:
# it is there for a single process in an allocation as well.
_LAUNCHERS = {
    "WORLD_SIZE": "RANK",  # torchrun, accelerate
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",  # Open MPI
    "PMI_SIZE": "PMI_RANK",  # MPICH, Intel MPI
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",  # MVAPICH
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",  # srun
}
_LOGGERS = ("lm_eval.rubrics", "custom_metrics.judge.client", "custom_metrics.generation")
_SHARED = ("concurrency", "rpm", "tpm")
_TICK_S = 0.2
# A launcher ends all processes when the first one ends: the one that says why has to be it.
_FIRST_WORD_S = 1.0
_GAP = object()


class Elsewhere(JudgeError):
    """This process ends because another one could not go on."""


@dataclass(frozen=True)
class Started:
    """What a launcher says: how many processes, which one this is, and the variable it is from."""

    size: int
    rank: int
    variable: str


def started(environ: Mapping[str, str] | None = None) -> Started:
    """How many processes a launcher started; one where none did."""
    environ = os.environ if environ is None else environ
    found = [
        Started(int(environ[size]), int(environ.get(rank, "") or 0), size)
        for size, rank in _LAUNCHERS.items()
        if environ.get(size, "").isdigit() and (environ.get(rank, "") or "0").isdigit()
    ]
    return max(found, key=lambda one: one.size, default=Started(1, 0, ""))


def refuse_copies(world_size: int) -> None:
    """Refuse processes that have the same documents: each would pay for the whole judging.

    That is what the harness does under a launcher, unless the model splits the documents over
    ``world_size`` ranks. Raises :class:`ConfigError`.
    """
    launched = started()
    if launched.size <= world_size:
        return
    split = (
        "each of them would judge all documents"
        if world_size == 1
        else f"the model splits the documents over {world_size} only"
    )
    raise ConfigError(
        f"a launcher started {launched.size} processes ({launched.variable}), and {split}. Start "
        "one process (a Hugging Face model on several GPUs is the one that takes several), or "
        "generate with --predict_only and judge the saved answers with lm-eval-rubrics score. "
        f"Where this process is the only one, unset {launched.variable}"
    )


def share(config: JudgeConfig, rank: int, size: int) -> JudgeConfig:
    """What one of ``size`` ranks may use of the judge, so that all together keep its limits.

    Raises :class:`ConfigError` where a limit is too small to be shared.
    """
    if size == 1:
        return config
    if config.in_process:
        raise ConfigError(
            f"judge backend=lm_eval: each of {size} processes would load the judge's model. "
            "Generate with --predict_only, and judge the saved answers in one process with "
            "lm-eval-rubrics score"
        )
    totals = {name: getattr(config, name) for name in (*_SHARED, "max_calls")}
    for name in _SHARED:
        if totals[name] is not None and totals[name] < size:
            raise ConfigError(
                f"judge {name}: {totals[name]} cannot be shared by {size} processes; set it to "
                f"{size} or more, or start fewer"
            )
    parts: dict[str, Any] = {
        name: None if total is None else total // size + (rank < total % size)
        for name, total in totals.items()
    }
    if config.max_cost is not None:
        parts["max_cost"] = config.max_cost / size
    if config.models:
        parts["models"] = tuple(share(judge, rank, size) for judge in config.models)
    return config.model_copy(update=parts)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from the one of number ``rank``."""

    model: Any = None
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that checks, speaks and writes."""
        return self.rank == 0

    def check(self, *, judged: bool) -> None:
        """Raises :class:`ConfigError` where a document would be judged twice, or not be done."""
        if judged:
            refuse_copies(self.size)
        if self.size == 1:
            return
        found = self.numbers(self.rank)
        if found != list(range(self.size)):
            raise ConfigError(
                f"the model says that there are {self.size} ranks, and they are "
                f"{', '.join(map(str, found))}, so that documents would be done twice or not at "
                "all. (The harness's hf model counts the processes of each machine from 0: use it "
                "on one machine)"
            )

    def numbers(self, mine: int) -> list[int]:
        """Every rank's number, by rank."""
        if self.size == 1:
            return [mine]
        import torch  # such a model needs it, and the harness does the same

        gathered = self.model.all_gather(torch.tensor(mine, device=self.model.device))
        return [int(number) for number in gathered.detach().cpu().reshape(-1).tolist()]

    def objects(self, mine: T) -> list[T] | None:
        """Every rank's object, by rank, on the first one; None on the others."""
        if self.size == 1:
            return [mine]
        gather = self.model.gather_object
        if isinstance(gather, InDocumentOrder):
            gather = gather.original
        gathered: list[T] | None = gather(mine, dst=0)
        return gathered

    def wait(self, futures: Sequence[Future[Any]], label: str) -> None:
        """Until the futures of all ranks are done, with one progress bar.

        The ranks go in step, so none is left waiting for one that has failed. Raises
        :class:`JudgeError` on all of them as soon as one future holds an exception.
        """
        pending = set(futures)
        total = sum(self.numbers(len(pending)))
        quiet = not (self.leads and sys.stderr.isatty())
        with tqdm(total=total, desc=label, unit="call", disable=quiet) as progress:
            while True:
                done, pending = wait(pending, timeout=0)
                failure = next((e for f in done if (e := f.exception()) is not None), None)
                left = self.numbers(len(pending) if failure is None else -1)
                if min(left) < 0:
                    raise Elsewhere() if failure is None else _as_judge_error(failure)
                progress.update(total - sum(left) - progress.n)
                if not any(left):
                    return
                wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails in this block on one rank ends all of them. Nothing in it may gather."""
        fault: Exception | None = None
        try:
            yield
        except Exception as error:
            if self.size == 1:
                raise
            fault = error
        if self.size > 1 and any(self.numbers(int(fault is not None))):
            raise self.last_word(fault or Elsewhere(), None, lambda error, _: error)

    def last_word(
        self, error: Exception, mine: T, say: Callable[[Exception, list[T]], Exception]
    ) -> Exception:
        """The exception to raise after a failure that all ranks know of.

        The first rank gets what ``say`` makes of the failure and of every rank's ``mine``; the
        others get one that refers to it, a moment later.
        """
        if self.size == 1:
            return say(error, [mine])
        known: Exception = error if isinstance(error, RubricError) else _as_judge_error(error)
        told = self.objects((None if isinstance(error, Elsewhere) else known, mine))
        if told is not None:
            first = next((e for e, _ in told if e is not None), known)
            known = say(first, [what for _, what in told])
        self.model.barrier()
        if told is not None:
            return known
        time.sleep(_FIRST_WORD_S)
        return Elsewhere(f"rank {self.rank} ends with rank 0, which says why")


def _as_judge_error(fault: BaseException) -> JudgeError:
    if isinstance(fault, JudgeError):
        return fault
    logger.error("a fault of this program", exc_info=fault)
    return JudgeError(f"the judging failed ({type(fault).__name__}: {fault})")


# --- what the first rank is given at the end -----------------------------------------------------


class InDocumentOrder:
    """A model's ``gather_object`` that gives the harness everything in one process's order.

    The harness gathers ``{task: samples}`` and ``{task: {metric: values}}`` in rank order, and
    fails where a rank has no document of a task. ``notes`` is gathered beside the values and goes
    to ``take`` on the first rank.
    """

    def __init__(
        self,
        ranks: Ranks,
        tasks: Sequence[str],
        notes: Callable[[], T],
        take: Callable[[list[T]], None],
    ) -> None:
        before = ranks.model.gather_object
        self.original: Callable[..., Any] = (
            before.original if isinstance(before, InDocumentOrder) else before
        )
        self._ranks, self._tasks, self._notes, self._take = ranks, tasks, notes, take
        ranks.model.gather_object = self  # on the instance: there the harness calls it

    def __call__(self, obj: Any, dst: int = 0) -> Any:
        gathered = self.original(obj, dst=dst)
        if not isinstance(obj, dict) or not set(self._tasks) <= obj.keys():
            return gathered
        if all(isinstance(obj[task], dict) for task in self._tasks):  # the values
            notes = self._ranks.objects((self._notes(), _said()))
            if notes is not None:
                self._take([mine for mine, _ in notes])
                _say_what_others_said([said for _, said in notes])
        return gathered if gathered is None else in_document_order(gathered, self._tasks)


def in_document_order(
    gathered: Sequence[Mapping[str, Any]], tasks: Sequence[str]
) -> list[dict[str, Any]]:
    """``gathered`` with all that the ranks have of ``tasks`` moved to the first one.

    Rank r of n has the documents r, r + n, r + 2n, …
    """
    first, *others = map(dict, gathered)
    for task in tasks:
        parts = [rank[task] for rank in gathered]
        if isinstance(parts[0], Mapping):
            first[task] = {key: _woven([p.get(key, []) for p in parts]) for key in parts[0]}
            empty: Any = {key: [] for key in parts[0]}
        else:
            first[task], empty = _woven(parts), []
        others = [{**rank, task: empty} for rank in others]
    return [first, *others]


def _woven(lists: Sequence[Sequence[T]]) -> list[T]:
    rows = zip_longest(*lists, fillvalue=_GAP)
    return [value for row in rows for value in row if value is not _GAP]  # type: ignore[misc]


# --- warnings, once ------------------------------------------------------------------------------


class _Once(logging.Filter):
    """Lets the first rank warn. What another one would have said is kept for the end."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.said: dict[str, None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            self.said[record.getMessage()] = None
        return self.rank == 0 or record.levelno > logging.WARNING


_once: _Once | None = None


def warn_once(rank: int) -> None:
    """Have only the first rank say what is no error. May be called again."""
    global _once
    if _once is None:
        _once = _Once(rank)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_once)
    _once.rank = rank


def _said() -> list[str]:
    return list(_once.said) if _once is not None else []


def _say_what_others_said(by_rank: Sequence[Sequence[str]]) -> None:
    known = set(by_rank[0])
    for rank, said in enumerate(by_rank[1:], 1):
        for text in said:
            if text not in known:
                known.add(text)
                logger.warning("rank %d: %s", rank, text)
