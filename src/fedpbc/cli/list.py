"""fedpbc list."""

from __future__ import annotations

import json

from fedpbc.cli.options import Json, Plugin

__all__ = ["list_"]


def list_(
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """Show what there is: algorithms, link schemes, data, models, engines, views, options."""
    from fedpbc.report.listing import list_choices, print_choices

    if plugin:
        from fedpbc.experiments.plugins import load_plugin

        for file in plugin:
            load_plugin(str(file))
    choices = list_choices()
    if as_json:
        print(json.dumps(choices, indent=2))
    else:
        print_choices(choices)
