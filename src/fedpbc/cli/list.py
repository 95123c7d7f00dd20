"""fedpbc list."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import Json, Plugin, starting_with
from fedpbc.cli.terminal import say, say_json, say_text, terminal_width
from fedpbc.errors import InputError
from fedpbc.text import printable

if TYPE_CHECKING:
    from fedpbc.report.listing import Choice

__all__ = ["list_"]


KINDS = (
    "algorithms",
    "links",
    "data",
    "models",
    "tasks",
    "engines",
    "views",
    "trackers",
    "options",
)
INDENT = 21
"""Where the descriptions begin."""


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"Only these: {', '.join(KINDS)}.",
            autocompletion=starting_with(KINDS),
        ),
    ] = None,
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """List algorithms, link schemes, data sets, models, engines, views and options."""
    from fedpbc.experiments.plugins import load_plugin
    from fedpbc.options import nearest
    from fedpbc.report.listing import list_choices

    if kind is not None and kind not in KINDS:
        raise InputError("KIND", kind, nearest(kind, KINDS))
    for file in plugin or ():
        load_plugin(str(file))
    choices = list_choices()
    if kind is not None:
        choices = {kind: choices[kind]}
    if as_json:
        say_json(choices)
        return
    width = terminal_width()
    for kind, entries in choices.items():
        say(kind)
        for entry in entries:
            say_text(describe(entry, width))
        say()
    if kind in (None, "algorithms", "links", "options"):
        say(
            "Set any option with --set, such as --set links.gamma=0.2 or --set algorithm.cutoff=20."
        )


def describe(choice: Choice, width: int | None = None) -> str:
    """Return a choice in a line: its name, what it is, and its options.

    In a terminal of this ``width`` it may take several: names remain a column of their own.
    """
    options = f"  [{', '.join(choice['options'])}]" if choice["options"] else ""
    line = f"  {printable(choice['name'], 80):<18} {printable(choice['summary'])}{options}"
    if width is None or width <= 2 * INDENT:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * INDENT, break_long_words=False, break_on_hyphens=False
    )
