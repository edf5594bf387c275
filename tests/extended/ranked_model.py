"""A small model that splits the documents over the processes of a launcher, over gloo on the CPU.

``torchrun --nproc-per-node 2 ranked_model.py lm-eval-rubrics run --model ranked …`` and
``… ranked_model.py lm_eval run …``. What it answers stands in a file, as with ``prefilled``; each
answer takes ``delay`` seconds, and ``fails`` names the ranks whose generation breaks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import lm_eval.models  # noqa: F401  (before a model of one's own)
import torch
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model

from custom_metrics.prefilled import Prefilled


@register_model("ranked")
class Ranked(Prefilled):
    def __init__(self, path: str, delay: float = 0, same_rank: bool = False, **_: Any) -> None:
        super().__init__(path=path)
        self._delay = float(delay)
        self._device = torch.device("cpu")
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group("gloo")
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
            if same_rank:  # as on several machines that count from 0 each
                self._rank = 0

    def generate_until(self, requests: Sequence[Instance], **_: Any) -> list[str]:
        answers = super().generate_until(requests)
        for request, answer in zip(requests, answers, strict=True):
            time.sleep(self._delay)
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def gather_object(self, obj: Any, dst: int = 0) -> Any:
        if self.world_size == 1:
            return [obj]
        found: Any = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, found, dst=dst)
        return found

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()


def main() -> int | None:
    program, *sys.argv[1:] = sys.argv[1:]
    if program == "lm_eval":
        from lm_eval.__main__ import cli_evaluate

        sys.argv[0] = program
        return cli_evaluate()  # type: ignore[no-any-return]
    from custom_metrics.cli import main as ours

    return ours()


if __name__ == "__main__":
    sys.exit(main())
