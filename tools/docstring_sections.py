"""An extension of Griffe, which reads the docstrings for the site's reference.

The docstrings are written for `help()` and doctest. Griffe shows code only under ``Examples:``;
under ``Example:`` it would be a paragraph. Nor does it know Sphinx's roles.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def site_docstring(text: str) -> str:
    """A docstring as the site shows it."""
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)
    return re.sub(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`", r"`\1`", text)


class DocstringSections(griffe.Extension):  # type: ignore[misc]
    """Examples become code, and roles become names."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = site_docstring(obj.docstring.value)
