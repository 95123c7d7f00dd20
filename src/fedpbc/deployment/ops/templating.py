"""Files made from the templates beside this one."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["rendered"]


def rendered(template: str, **values: Any) -> str:
    """A template's text with its values filled in; one that is missing is an error.

    Example:
        >>> print(rendered("dockerignore").splitlines()[0])
        # No key gets into an image.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedpbc.deployment.ops", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    return environment.get_template(f"{template}.j2").render(**values)


def quoted(text: str) -> str:
    """A string as TOML has it.

    Example:
        >>> print(quoted('my "own".py'))
        "my \\"own\\".py"
    """
    return json.dumps(text, ensure_ascii=False)
