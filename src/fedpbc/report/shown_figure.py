"""A figure that a notebook shows."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

__all__ = ["ShownFigure"]


class ShownFigure(Figure):
    """A Matplotlib figure that is shown as a cell's result, whatever the backend."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=72)
        return buffer.getvalue()
