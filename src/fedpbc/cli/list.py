"""fedpbc list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpbc.cli.options import Json, Plugin
from fedpbc.cli.terminal import say, say_json
from fedpbc.text import printable

if TYPE_CHECKING:
    from fedpbc.report.listing import Choice

__all__ = ["list_"]


def list_(as_json: Json = False, plugin: Plugin = None) -> None:
    """List algorithms, link schemes, data sets, models, engines, views and options."""
    from fedpbc.experiments.plugins import load_plugin
    from fedpbc.report.listing import list_choices

    for file in plugin or ():
        load_plugin(str(file))
    choices = list_choices()
    if as_json:
        say_json(choices)
        return
    for kind, entries in choices.items():
        say(kind)
        for entry in entries:
            say(describe(entry))
        say()
    say("Set any option with --set, such as --set links.gamma=0.2 or --set algorithm.cutoff=20.")


def describe(choice: Choice) -> str:
    """Return a choice as one line: its name, what it is, and its options."""
    options = f"  [{', '.join(choice['options'])}]" if choice["options"] else ""
    return f"  {printable(choice['name'], 80):<18} {printable(choice['summary'])}{options}"
