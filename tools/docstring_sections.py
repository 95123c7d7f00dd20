"""An extension of Griffe, which reads the docstrings for the site's reference.

The docstrings are written for `help()` and doctest. Griffe shows code only under ``Examples:``;
under ``Example:`` it would be a paragraph. Nor does it know Sphinx's roles. Defaults are declared
once, in the settings: a signature that names them there would not tell a reader anything.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import griffe


def site_docstring(text: str) -> str:
    """A docstring as the site shows it."""
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)
    return re.sub(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`", r"`\1`", text)


def shown_default(expression: str, module: str) -> str:
    """A default as a reader wants it: ``General.rounds`` is 500.

    Example:
        >>> shown_default("General.rounds", "fedpbc.experiments.settings")
        '500'
    """
    if not re.fullmatch(r"[A-Z]\w*\.[a-z]\w*", expression):
        return expression
    section, name = expression.split(".")
    value = getattr(getattr(importlib.import_module(module), section), name)
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else expression


class DocstringSections(griffe.Extension):  # type: ignore[misc]
    """Examples become code, and roles become names."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = site_docstring(obj.docstring.value)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the defaults themselves."""
        for parameter in func.parameters:
            if parameter.default is not None:
                parameter.default = shown_default(str(parameter.default), func.module.path)
