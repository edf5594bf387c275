"""One HTML file that shows what runs scored, and every document behind it."""

from custom_metrics.report.page import plots, render, write_report
from custom_metrics.report.summary import summarise

__all__ = ["plots", "render", "summarise", "write_report"]
