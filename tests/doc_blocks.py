"""The fenced blocks of README and docs.

A Python block right after the line ``<!-- fragment -->`` needs names that it does not define:
``test_docs_fragments.py`` and ``flower/test_documentation.py`` run it, with stand-ins. The others
of a page run one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FRAGMENT = "<!-- fragment -->"


@dataclass
class Block:
    """A fenced block of a page, the line that it begins in, and the line of text before it."""

    page: str
    language: str
    text: str
    line: int
    before: str

    def run(self, names: dict[str, Any]) -> dict[str, Any]:
        """Run Python code with these names; returns them, with those that it defines."""
        # Empty lines in front, so that an error names the line of the page.
        exec(compile("\n" * (self.line - 1) + self.text, self.page, "exec"), names)
        return names


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    k = 0
    while k < len(lines):
        if lines[k].startswith("```"):
            end = lines.index("```", k + 1)
            before = next((line for line in reversed(lines[:k]) if line.strip()), "")
            found.append(
                Block(str(page), lines[k][3:].strip(), "\n".join(lines[k + 1 : end]), k + 2, before)
            )
            k = end
        k += 1
    return found


def python_blocks(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language == "python" and b.before.strip() != FRAGMENT]


def fragments(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language == "python" and b.before.strip() == FRAGMENT]
