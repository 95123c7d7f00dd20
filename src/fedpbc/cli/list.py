"""fedpbc list."""

from __future__ import annotations

import json

from fedpbc.cli.options import Json, Plugin

__all__ = ["list_"]


def list_(as_json: Json = False, plugin: Plugin = None) -> None:
    """List algorithms, link schemes, data sets, models, engines, views and options."""
    from fedpbc.experiments.plugins import load_plugin
    from fedpbc.report.listing import list_choices, print_choices

    for file in plugin or ():
        load_plugin(str(file))
    choices = list_choices()
    if as_json:
        print(json.dumps(choices, indent=2))
    else:
        print_choices(choices)
