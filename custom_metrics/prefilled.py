"""``--model prefilled``: a model whose answers exist already, for scoring them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The harness's own models have to be registered first: the other way round hides them all.
import lm_eval.models  # noqa: F401
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from custom_metrics import answers
from custom_metrics.errors import DataError


@register_model("prefilled")
class Prefilled(LM):  # type: ignore[misc]
    """Answers each document from a file (see :func:`custom_metrics.answers.read`), or from
    ``<task>.json`` in a folder."""

    tokenizer_name = "prefilled"

    def __init__(self, path: str | None = None, **_: Any) -> None:
        super().__init__()
        if not path:
            raise DataError(
                "--model prefilled needs --model_args path=FILE (JSON or JSONL), or a folder with "
                "<task>.json"
            )
        self._path = Path(path)
        self._shared = None if self._path.is_dir() else answers.read(self._path)

    def generate_until(self, requests: Sequence[Instance], **_: Any) -> list[str]:
        names = {request.task_name for request in requests}
        by_task = {name: self._answers_to(name) for name in names}
        missing = [
            str(request.doc["id"])
            for request in requests
            if str(request.doc["id"]) not in by_task[request.task_name]
        ]
        if missing:
            shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
            raise DataError(
                f"{self._path}: no answer for {len(missing)} of {len(requests)} documents: "
                f"{shown}. Add them (null for a failed answer), or choose documents with --limit "
                "or --samples"
            )
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for request in requests:
            key = (request.task_name, str(request.doc["id"]))
            given = by_task[key[0]][key[1]]
            several = given if isinstance(given, list) else [given]
            wanted = request.repeats or 1
            if len(several) != wanted:
                raise DataError(
                    f"{self._path}: {len(several)} answers to {key[1]!r}, and {key[0]} wants "
                    f"{wanted} of each document (--answers says how many)"
                )
            found.append(several[seen[key] % wanted])
            seen[key] += 1
        return found

    def _answers_to(self, task: str) -> dict[str, answers.Given]:
        if self._shared is not None:
            return self._shared
        return answers.read(self._path / f"{task}.json")

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A transcript, for the samples file."""
        lines = [f"{message['role']}: {message['content']}" for message in chat_history]
        return "\n".join([*lines, "assistant:"] if add_generation_prompt else lines)

    def loglikelihood(self, *_: Any, **__: Any) -> Any:
        raise DataError("--model prefilled answers rubric tasks only")

    loglikelihood_rolling = loglikelihood
