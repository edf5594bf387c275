"""The harness's Python API, with this project's tasks and without indexing the harness's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

import custom_metrics.prefilled  # noqa: F401  (registers the model)
import lm_eval_tasks

Results = Mapping[str, Any]


def manager(
    judge: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None
) -> TaskManager:
    """A task manager; the judge's settings travel in its metadata."""
    return TaskManager(
        include_path=lm_eval_tasks.path(),
        include_defaults=False,
        metadata={**(metadata or {}), **({"judge": dict(judge)} if judge else {})},
    )


def judge_at(url: str, **settings: Any) -> dict[str, Any]:
    return {"model": "judge", "base_url": url, "prompt": "builtin", "max_retries": 0, **settings}


def evaluate(
    *tasks: str,
    model: Any,
    model_args: Mapping[str, Any] | None = None,
    judge: Mapping[str, Any] | None = None,
    **options: Any,
) -> Results:
    """``lm_eval.simple_evaluate``; the chat template is on unless an option says otherwise."""
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=dict(model_args) if model_args is not None else None,
        tasks=list(tasks),
        task_manager=manager(judge, model_args),
        **{"apply_chat_template": True, **options},
    )
    assert found is not None
    return dict(found)


def chat_model(url: str, concurrent: int = 4) -> dict[str, Any]:
    """``model`` and ``model_args`` for a chat API at ``url``."""
    return {
        "model": "local-chat-completions",
        "model_args": {
            "model": "model",
            "base_url": f"{url}/chat/completions",
            "num_concurrent": concurrent,
            "max_retries": 1,
        },
    }
