"""Render the files of a new fleet from the templates in ``templates/``."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """Fill in a template; a missing value is an error.

    Example:
        >>> print(render("dockerignore").splitlines()[1])
        *
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedpbc.deployment.ops", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A JSON string is a TOML string, too.
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    return environment.get_template(f"{template}.j2").render(**values)
