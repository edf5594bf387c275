"""The charts, as Vega-Lite specifications and what its compiler makes of them.

A chart in the page takes its colours from the page, so that it follows the theme; one that is
written to a file has fixed ones on white.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import vl_convert

from custom_metrics.output import writing

Spec = dict[str, Any]

FORMATS = ("svg", "png")

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_VERSION = "5.21"
_WIDTH = 300  # with axes it fits a phone
_FONT = "Helvetica, Arial, Liberation Sans, Noto Sans CJK SC, sans-serif"
# Distinct for all common kinds of colour blindness (Okabe and Ito), dark enough on white.
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a7a7a", "#3d3d3d")


@dataclass(frozen=True)
class Chart:
    """A specification, and the sentence that stands for it where it cannot be seen."""

    name: str
    title: str
    summary: str
    spec: Spec


def distribution(name: str, scores: Sequence[float]) -> Chart:
    """How many documents have which score, in steps of a tenth; all below -0.5 in the first."""
    steps = np.clip(np.floor(np.asarray(scores) * 10 + 1e-9), -6, 9).astype(int)
    first = min(0, int(steps.min(initial=0)))
    values = [
        {"from": step / 10, "to": (step + 1) / 10, "documents": int((steps == step).sum())}
        for step in range(first, 10)
    ]
    spec = {
        "data": {"values": values},
        "height": 150,
        "mark": {"type": "bar", "color": "series-0", "binSpacing": 1.5},
        "encoding": {
            "x": {
                "field": "from",
                "bin": {"binned": True, "step": 0.1},
                "type": "quantitative",
                "title": "Score of a document",
                "axis": {"grid": False, "tickCount": 6},
            },
            "x2": {"field": "to"},
            "y": {
                "field": "documents",
                "type": "quantitative",
                "title": "Documents",
                "axis": {"tickMinStep": 1, "tickCount": 5},
            },
        },
    }
    low, middle, high = np.percentile(scores, [25, 50, 75]) if len(scores) else [math.nan] * 3
    return Chart(
        name,
        "Score distribution",
        f"{len(scores)} documents; a quarter score below {low:.2f}, half below {middle:.2f}, "
        f"three quarters below {high:.2f}.",
        spec,
    )


def length_and_score(name: str, lengths: Sequence[int], scores: Sequence[float]) -> Chart:
    """Each answer's length against its score, and the mean score of each fifth by length."""
    points = [{"length": max(1, n), "score": s} for n, s in zip(lengths, scores, strict=True)]
    fifths = [part for part in np.array_split(np.argsort(lengths, kind="stable"), 5) if part.size]
    means = [
        {
            "length": max(1.0, float(np.median(np.asarray(lengths)[part]))),
            "score": float(np.asarray(scores)[part].mean()),
        }
        for part in fifths
    ]
    x = {
        "field": "length",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 6},
        "title": "Characters of the answer",
        "axis": {"grid": False, "tickCount": 4, "format": "~s"},
    }
    y = {"field": "score", "type": "quantitative", "title": "Score of the document"}
    spec = {
        "height": 190,
        "layer": [
            {
                "data": {"values": points},
                "mark": {"type": "circle", "size": 12, "color": "series-0", "opacity": 0.35},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": means},
                "mark": {
                    "type": "line", "color": "series-1", "strokeWidth": 2,
                    "point": {"color": "series-1", "size": 40},
                },
                "encoding": {"x": x, "y": y},
            },
        ],
    }  # fmt: skip
    told = ", ".join(f"{mean['score']:.2f}" for mean in means)
    rank = _rank_correlation(lengths, scores)
    correlation = f" Rank correlation of length and score: {rank:.2f}." if rank == rank else ""
    return Chart(
        name,
        "Answer length and score",
        f"Mean score of each fifth of the answers, from the shortest to the longest: {told}."
        f"{correlation}",
        spec,
    )


def by_group(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Scores with their intervals, a line a group and a colour a run.

    Each row has ``group``, ``run``, ``score``, ``low``, ``high`` (the interval; NaN without).
    """
    runs = list(dict.fromkeys(row["run"] for row in rows))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    values = [{k: (None if v != v else v) for k, v in row.items()} for row in rows]
    encoding: Spec = {
        "y": {
            "field": "group", "type": "nominal", "sort": groups, "title": None,
            "axis": {"labelLimit": 150, "ticks": False, "domain": False},
        },
        "color": {
            "field": "run",
            "type": "nominal",
            "scale": {
                "domain": runs,
                "range": [f"series-{k % len(_SERIES)}" for k in range(len(runs))],
            },
            "legend": {"orient": "top", "title": None, "columns": 1, "labelLimit": 280}
            if len(runs) > 1
            else None,
        },
    }  # fmt: skip
    if len(runs) > 1:
        encoding["yOffset"] = {"field": "run", "type": "nominal", "sort": runs}
    spec = {
        "data": {"values": values},
        "width": _WIDTH - 130,
        "height": {"step": max(9, 22 // len(runs))} if len(runs) > 1 else {"step": 22},
        "encoding": encoding,
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
                "encoding": {
                    "x": {
                        "field": "low",
                        "type": "quantitative",
                        "title": "Score, with 95% interval",
                        "axis": {"tickCount": 4},
                    },
                    "x2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "circle", "size": 42, "opacity": 1},
                "encoding": {"x": {"field": "score", "type": "quantitative"}},
            },
        ],
    }
    summary = f"{len(groups)} groups of {len(runs)} " + ("runs." if len(runs) > 1 else "run.")
    return Chart(name, title, summary + " The tables of this page have the numbers.", spec)


def svg(chart: Chart) -> str:
    """The chart for the page: inline SVG whose colours are the page's variables."""
    colours = {f"series-{k}": f"var(--series-{k})" for k in range(len(_SERIES))}
    drawn = _svg(chart, colours, ink="var(--muted)", lines="var(--line)", background=None)
    # One picture for who cannot see it: its parts would be read one by one.
    return drawn.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def write(charts: Sequence[Chart], folder: Path, form: str) -> list[Path]:
    """One file a chart. Raises :class:`ConfigError` if the folder cannot be written."""
    colours = {f"series-{k}": colour for k, colour in enumerate(_SERIES)}
    style = {"ink": "#444444", "lines": "#dddddd", "background": "#ffffff"}
    paths: list[Path] = []
    with writing(f"--plots {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            same = sum(other.stem.startswith(chart.name) for other in paths)
            path = folder / (f"{chart.name}-{same + 1}.{form}" if same else f"{chart.name}.{form}")
            if form == "svg":
                path.write_text(_svg(chart, colours, **style), encoding="utf-8")
            else:
                spec = _styled(chart, colours, **style)
                path.write_bytes(
                    vl_convert.vegalite_to_png(
                        spec, vl_version=_VERSION, scale=2, allowed_base_urls=[]
                    )
                )
            paths.append(path)
    return paths


def _svg(chart: Chart, colours: Mapping[str, str], **style: str | None) -> str:
    spec = _styled(chart, colours, **style)
    return str(vl_convert.vegalite_to_svg(spec, vl_version=_VERSION, allowed_base_urls=[]))


def _styled(
    chart: Chart,
    colours: Mapping[str, str],
    *,
    ink: str | None,
    lines: str | None,
    background: str | None,
) -> Spec:
    spec = _with_colours(chart.spec, colours)
    return {
        "$schema": _SCHEMA,
        "width": _WIDTH,
        **spec,
        "background": background,
        "padding": 4,
        "autosize": {"type": "pad"},
        "config": {
            "font": _FONT,
            "aria": False,
            "view": {"stroke": None},
            "axis": {
                "labelColor": ink, "titleColor": ink, "titleFontWeight": "normal",
                "labelFontSize": 11, "titleFontSize": 11, "gridColor": lines,
                "domainColor": lines, "tickColor": lines,
            },
            "legend": {"labelColor": ink, "labelFontSize": 11, "symbolType": "circle"},
        },
    }  # fmt: skip


def _with_colours(part: Any, colours: Mapping[str, str]) -> Any:
    """``series-0`` and its like replaced; data are no part of it."""
    if isinstance(part, dict):
        return {
            key: value if key == "values" else _with_colours(value, colours)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [_with_colours(value, colours) for value in part]
    return colours.get(part, part) if isinstance(part, str) else part


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    from scipy.stats import spearmanr  # takes a second to import

    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(spearmanr(first, second).statistic)
