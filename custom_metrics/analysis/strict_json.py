"""JSON that every parser takes: it has no NaN."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """``value`` as indented JSON; NaN, which stands for what cannot be said, is null."""
    return json.dumps(_known(value), ensure_ascii=False, indent=2, allow_nan=False)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
