"""One HTML file that shows what runs scored, and every document behind it."""

from custom_metrics.report.page import plots, render, write_report

__all__ = ["plots", "render", "write_report"]
