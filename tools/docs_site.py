"""What MkDocs cannot do by itself: a page for every algorithm, and links out of the docs folder.

A page is made of the rows and the details that docs/algorithms.md has about an algorithm, and of
the docstring of its class. So everything is written once.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from fedpbc.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
FOLDER = "algorithm"
HEADINGS = {
    "who trains, from where": "Rule",
    "when": "When to use it",
    "sizes of the model per upload: up, down": "Cost",
    "kept on the server, besides x": "State, and what travels",
    "options": "Options",
    "authors": "Citation",
}
"""By the second column of a table in docs/algorithms.md: what a page calls it."""


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables of a page: the head and the rows of each."""
    found: list[tuple[list[str], list[list[str]]]] = []
    lines = text.splitlines()
    for k, line in enumerate(lines):
        if line.startswith("|---") and k and lines[k - 1].startswith("|"):
            rows = []
            for row in lines[k + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(cells(row))
            found.append((cells(lines[k - 1]), rows))
    return found


def cells(line: str) -> list[str]:
    """The cells of a line; a bar with a backslash is part of a cell."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows_about(name: str, table: tuple[list[str], list[list[str]]]) -> list[list[str]]:
    """The rows of a table that name an algorithm in their first cell."""
    return [row for row in table[1] if f"`{name}`" in row[0]]


def details(name: str, source: str) -> str:
    """What docs/algorithms.md says about an algorithm under "Details"; nothing of most."""
    section = source.partition("\n## Details\n")[2].partition("\n## ")[0]
    # An item ends where the next one begins.
    items = re.split(r"^- ", section, flags=re.M)[1:]
    return next((item.strip() for item in items if item.startswith(f"**{name}**")), "")


def from_subfolder(text: str) -> str:
    """Links of docs/algorithms.md, as they are from a folder below."""
    text = re.sub(r"\]\(#", "](algorithms.md#", text)
    return re.sub(r"\]\((?!https?:)", "](../", text)


def shown_docstring(kind: type) -> str:
    """The docstring of an algorithm, with its formulas as they are written."""
    parts = (inspect.getdoc(kind) or "").split("\n\n")
    return "\n\n".join(f"```text\n{part}\n```" if "←" in part else part for part in parts)


def algorithm_page(name: str) -> str:
    """The page about an algorithm, in Markdown."""
    kind: Any = ALGORITHMS[name]
    source = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    about = {table[0][1]: table for table in tables(source)}
    text = [f"# {name}", "", shown_docstring(kind), ""]
    if kind.memory_aided:
        text += ["† Aided by memory or known statistics: it needs what the others do not.", ""]
    for column, heading in HEADINGS.items():
        table = about[column]
        rows = rows_about(name, table)
        assert rows, f"docs/algorithms.md says nothing of {name} under {heading!r}"
        text += [f"## {heading}", ""]
        for row in rows:
            values = list(zip(table[0], row, strict=True))
            # The name is the page's, unless the row is about one of its options.
            values = values[1:] if "with" not in row[0] else [("variant", row[0]), *values[1:]]
            text += [f"- **{key}**: {from_subfolder(cell)}" for key, cell in values]
            text.append("")
    if more := details(name, source):
        text += ["## Details", "", from_subfolder(more), ""]
    text += [
        "## Try it",
        "",
        "```sh",
        f"fedpbc run --algorithm {name} --links markov --rounds 100",
        f"fedpbc compare --algorithms {name if name != 'fedavg' else 'fedpbc'},fedavg --seeds 0-2",
        "```",
        "",
        "More: [all algorithms side by side](../algorithms.md), [the study](../study.md), "
        "[the reference](../reference.md).",
        "",
    ]
    return "\n".join(text)


def on_config(config: Any) -> Any:
    """Add the pages of the algorithms to the navigation."""
    for entry in config.nav:
        if isinstance(entry, dict) and "Algorithms" in entry:
            entry["Algorithms"] = [{name: f"{FOLDER}/{name}.md"} for name in ALGORITHMS]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the algorithms."""
    from mkdocs.structure.files import File

    for name in ALGORITHMS:
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=algorithm_page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files outside of the docs folder instead of linking to what the site has not got."""
    if page.file.src_uri.startswith(f"{FOLDER}/"):
        return markdown
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)]*)\)", r"\1 (`\2`)", markdown)
