"""Format numbers and tables, as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["digits", "duration", "machine_line", "markdown_table", "percent", "write_json"]


def digits(number: float) -> str:
    """Three digits, and no exponent for large numbers."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def percent(share: float) -> str:
    """Two digits."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Three digits, in a unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{digits(seconds * scale)} {unit}"
    return f"{digits(seconds * 1e9)} ns"


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    padded = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in (heads, *lines)
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def machine_line(machine: dict[str, Any]) -> str:
    """What it was measured on."""
    return (
        f"{machine['processor']}, {machine['cores']} cores ({machine['instructions']}), "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}, "
        f"PyTorch {machine['torch']}"
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """With an end of line, as text files have."""
    path.write_text(json.dumps(content, indent=1) + "\n")
