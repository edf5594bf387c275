"""The page itself: templates, charts, the documents, and the policy that fences them in."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from custom_metrics.analysis.documents import PLAWBENCH, PRBENCH
from custom_metrics.output import replacing
from custom_metrics.report import charts
from custom_metrics.report.documents import pack
from custom_metrics.report.estimates import Estimate
from custom_metrics.report.labels import BENCHMARKS, category_label
from custom_metrics.report.summary import Section, Suite, Summary
from custom_metrics.report.text import visible


def write_report(summary: Summary, path: Path) -> Path:
    """The report at ``path``. Raises :class:`ConfigError` if it cannot be written."""
    text = render(summary)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def render(summary: Summary) -> str:
    """The report as one HTML document that needs nothing else."""
    packed = pack(summary)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("custom_metrics.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(
        score=_score, change=_change, percent=_percent, day=_day, weight=_weight
    )
    environment.globals.update(
        key=packed.key, label=category_label, benchmarks=BENCHMARKS,
        isnan=math.isnan, PLAWBENCH=PLAWBENCH, PRBENCH=PRBENCH, scale=_scale,
    )  # fmt: skip
    script, style = _source(environment, "report.js"), _source(environment, "report.css")
    return environment.get_template("report.html.jinja").render(
        summary=summary,
        runs=summary.runs,
        packed=packed,
        # Only these two are trusted, by their hashes; nothing is fetched, framed or sent.
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'",
        script=Markup(script),
        style=Markup(style),
        section_charts={
            (number, suite.name): [_drawn(c) for c in _section_charts(section)]
            for suite in summary.suites
            for number, section in enumerate(suite.sections)
            if section
        },
        suite_charts={
            suite.name: [_drawn(c) for c in _suite_charts(suite)] for suite in summary.suites
        },
        version=version("lm-eval-rubrics"),
    )


def plots(summary: Summary, folder: Path, form: str) -> list[Path]:
    """The report's charts as files of ``form``, one of :data:`charts.FORMATS`."""
    drawn = [chart for suite in summary.suites for chart in _suite_charts(suite)]
    for suite in summary.suites:
        for section in suite.sections:
            drawn.extend(_section_charts(section) if section else [])
    return charts.write(drawn, folder, form)


# --- charts ----------------------------------------------------------------------------------


def _section_charts(section: Section) -> list[charts.Chart]:
    scored = [doc for doc in section.documents if not math.isnan(doc.score)]
    if len(scored) < 2:
        return []
    name = _file_name(f"{section.suite}-{section.run.label}")
    scores = [doc.score for doc in scored]
    answered = [doc for doc in scored if any(answer.text for answer in doc.answers)]
    found = [charts.distribution(f"{name}-distribution", scores)]
    if len(answered) > 1:
        lengths = [sum(len(a.text) for a in doc.answers) // len(doc.answers) for doc in answered]
        found.append(
            charts.length_and_score(f"{name}-length", lengths, [doc.score for doc in answered])
        )
    return found


def _suite_charts(suite: Suite) -> list[charts.Chart]:
    """Of all runs together: the scores, and those of each category."""
    sections = [section for section in suite.sections if section]
    rows: list[dict[str, Any]] = []
    for section in sections:
        for breakdown in section.breakdowns[:1]:
            rows += [_point(row.label, section.run.label, row.estimate) for row in breakdown.rows
                     if row.estimate.known]  # fmt: skip
    if not rows or len(sections) < 2:
        return []
    title = sections[0].breakdowns[0].title
    return [charts.by_group(_file_name(f"{suite.name}-categories"), title, rows)]


def _point(group: str, run: str, estimate: Estimate) -> dict[str, Any]:
    return {
        "group": visible(group), "run": visible(run), "score": estimate.value,
        "low": estimate.low, "high": estimate.high,
    }  # fmt: skip


def _drawn(chart: charts.Chart) -> tuple[charts.Chart, Markup]:
    return chart, Markup(charts.svg(chart))


def _file_name(text: str) -> str:
    """At most 60 characters: a file's name has room for 255 bytes."""
    return re.sub(r"[^\w.-]+", "_", text)[:60]


# --- numbers and helpers of the template -----------------------------------------------------


def _score(value: float, digits: int = 3) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def _change(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.3f}".replace("-", "−")


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f}%"


def _weight(value: float) -> str:
    return f"{value:+g}".replace("-", "−")


def _day(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp)) if stamp else "unknown date"


def _scale(value: float, low: float, high: float) -> str:
    """Where ``value`` lies between ``low`` and ``high``, from 0 to 100."""
    return f"{100 * min(1.0, max(0.0, (value - low) / (high - low))):.2f}"


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
