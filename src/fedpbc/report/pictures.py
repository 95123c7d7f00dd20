"""Pictures as part of a page: vector graphics, where there is a figure to draw."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedpbc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["embedded_figure", "embedded_picture", "svg_of"]

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


def svg_of(figure: Figure) -> bytes:
    """Return a figure as SVG; the same numbers make the same text.

    Example:
        >>> from matplotlib.figure import Figure
        >>> figure = Figure()
        >>> svg_of(figure) == svg_of(figure), b"<svg" in svg_of(figure)
        (True, True)
    """
    from matplotlib import rc_context

    content = io.BytesIO()
    # Names of parts are drawn at random otherwise.
    with rc_context({"svg.hashsalt": "fedpbc"}):
        figure.savefig(content, format="svg", dpi=150, metadata={"Date": None})
    return content.getvalue()


def embedded_figure(figure: Figure) -> str:
    """Return a figure as a data URL."""
    return _data_url(svg_of(figure), ".svg")


def embedded_picture(picture: Path) -> str:
    """Return a PNG or SVG file as a data URL."""
    try:
        return _data_url(picture.read_bytes(), picture.suffix)
    except OSError as error:
        raise InputError("picture", str(picture), f"a file ({error.strerror})") from None


def _data_url(content: bytes, ending: str) -> str:
    return f"data:{KINDS[ending]};base64,{base64.b64encode(content).decode()}"
