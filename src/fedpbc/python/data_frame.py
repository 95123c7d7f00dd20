"""Results as pandas data frames; pandas is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedpbc.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas

__all__ = ["data_frame", "evaluation_rows"]


def data_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("a data frame", "pandas") from None
    return pandas.DataFrame(list(rows))


def evaluation_rows(lines: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """One row for each evaluation of each view: its values, then those of the round."""
    for line in lines:
        shared = {key: value for key, value in line.items() if key not in ("round", "views")}
        for view, values in line["views"].items():
            numbers = {k: v for k, v in values.items() if not isinstance(v, list | tuple)}
            numbers.pop("per_class", None)
            yield {"round": line["round"], "view": view, **numbers, **shared}
