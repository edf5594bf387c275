"""``lm-eval-rubrics estimate``: what judging would cost, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.tasks import TaskManager

import lm_eval_tasks
from custom_metrics.answer import Answer
from custom_metrics.errors import ConfigError
from custom_metrics.judge import JudgeConfig
from custom_metrics.judge.calls import Usage
from custom_metrics.task import RubricTask

# OpenAI's prefix cache begins at 1,024 tokens and grows in steps of 128; vLLM's has blocks of 16.
_LEAST_CACHED, _CACHE_STEP = 1024, 128
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Estimate:
    """Calls and tokens of one task, by one judge."""

    task: str
    documents: int
    calls: int
    usage: Usage


def estimate(
    names: Sequence[str],
    config: JudgeConfig,
    *,
    limit: int | None,
    answer_tokens: int,
    reply_tokens: int,
    metadata: dict[str, Any] | None = None,
) -> list[tuple[list[Estimate], str]]:
    """For each judge an estimate of each task, and how tokens were counted.

    ``answer_tokens`` and ``reply_tokens`` are guesses of the lengths of an answer and of a reply
    of the judge. Raises :class:`ConfigError` for an unknown task.
    """
    manager = TaskManager(
        include_path=lm_eval_tasks.path(), include_defaults=False, metadata=metadata or {}
    )
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise ConfigError(f"no task {', '.join(unknown)}; there are {', '.join(manager.all_tasks)}")
    answer = Answer(" abc" * answer_tokens, "answered")
    tasks: list[RubricTask] = list(manager.load(list(names))["tasks"].values())
    found = []
    for judge in config.members:
        count, how = _counter(judge.name)
        each = [_of_task(task, judge, answer, limit, reply_tokens, count) for task in tasks]
        found.append((each, how))
    return found


def _of_task(
    task: RubricTask,
    config: JudgeConfig,
    answer: Answer,
    limit: int | None,
    reply_tokens: int,
    count: Callable[[str], int],
) -> Estimate:
    documents = calls = prompt = cached = again = 0
    for group in task.calls_for(answer, config, limit):
        texts = ["".join(m["content"] for m in call.messages()) for call in group]
        shared = _common_start(texts[0], texts[-1]) if len(texts) > 1 else ""
        shared_tokens = count(shared)
        kept = shared_tokens - shared_tokens % _CACHE_STEP
        documents, calls = documents + 1, calls + len(texts)
        # Siblings differ in their ends only, so that the beginning is counted once.
        ends = [count(text[len(shared) :]) for text in texts]
        prompt += sum(ends) + shared_tokens * len(texts)
        cached += kept * (len(texts) - 1) if kept >= _LEAST_CACHED else 0
        # A repeated call finds the whole of its prompt.
        whole = [shared_tokens + end for end in ends]
        known = sum(n - n % _CACHE_STEP for n in whole if n >= _LEAST_CACHED)
        again += known * (config.repeats - 1)
    times = config.repeats * task.answers
    return Estimate(
        task.task_name,
        documents,
        calls * times,
        Usage(prompt * times, (cached + again) * task.answers, calls * times * reply_tokens),
    )


def _common_start(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _counter(model: str) -> tuple[Callable[[str], int], str]:
    """A counter of tokens for ``model``: tiktoken's, where it knows the model and has its data."""
    try:
        import tiktoken

        encoding = tiktoken.encoding_for_model(model)
        encoding.encode("word")
    except Exception:  # not installed, an unknown model, or its data cannot be fetched
        return lambda text: len(text) // _CHARACTERS_A_TOKEN, "characters / 4"
    return lambda text: len(encoding.encode(text, disallowed_special=())), "tiktoken"


def table(estimates: Sequence[Estimate], how: str, config: JudgeConfig) -> str:
    """One judge's estimates as text, with their sum, and the cost where prices are set."""
    total = sum((e.usage for e in estimates), Usage())
    rows = [(e.task, e.documents, e.calls, e.usage) for e in estimates]
    rows.append(
        ("total", sum(e.documents for e in estimates), sum(e.calls for e in estimates), total)
    )
    lines = [f"{'task':32}{'documents':>10}{'calls':>8}{'in':>13}{'cached':>13}{'out':>11}"]
    lines += [
        f"{name:32}{documents:>10}{calls:>8}{u.prompt:>13,}{u.cached:>13,}{u.completion:>11,}"
        for name, documents, calls, u in rows
    ]
    lines.append(f"tokens by {how}; cached: at best, with calls of a conversation in order")
    if config.prices is not None:
        lines.append(f"cost {config.prices.cost(total):,.2f} at the prices given")
    return "\n".join(lines)


def text(found: Sequence[tuple[Sequence[Estimate], str]], config: JudgeConfig) -> str:
    """What :func:`estimate` found, a table a judge, and what all of them cost together."""
    if len(config.opinions) == 1:
        ((estimates, how),) = found
        return table(estimates, how, config)
    parts = []
    for name, judge, (estimates, how) in zip(
        config.judge_names, config.members, found, strict=True
    ):
        times = f", {judge.repeats} times each" if judge.repeats > 1 else ""
        parts.append(f"{name} ({judge.endpoint}){times}\n{table(estimates, how, judge)}")
    if len(found) > 1 and all(judge.prices is not None for judge in config.members):
        cost = sum(
            judge.prices.cost(sum((e.usage for e in estimates), Usage()))
            for judge, (estimates, _) in zip(config.members, found, strict=True)
            if judge.prices is not None
        )
        parts.append(f"cost of all judges {cost:,.2f}")
    return "\n\n".join(parts)
