"""Results for people: tables and plots."""

from fedpbc.report.plot import plot_comparison
from fedpbc.report.table import markdown_table

__all__ = ["markdown_table", "plot_comparison"]
