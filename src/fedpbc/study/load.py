"""A configuration's values: a TOML file, then options, then ``--set``, each over the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.choices import parse_value
from fedpbc.errors import InputError
from fedpbc.limits import check_path, check_text, check_values
from fedpbc.study.spec import dotted, patched, read_values, tables

__all__ = ["load"]


def load(
    file: Path | None = None,
    options: Mapping[str, Any] | None = None,
    assignments: Sequence[str] | None = None,
    *,
    trace: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """The nested values of a configuration, for :meth:`Run.of` or :meth:`Study.of`.

    Options are values by dotted key; None is skipped. ``trace`` is a recorded trace for the links,
    or the folder of a fleet's server, which also has a model, data and rounds; ``trust`` allows the
    code that it names.

    Example:
        >>> load(None, {"links": "markov", "seed": None}, ["links.p=0.5"])
        {'links': {'name': 'markov', 'p': 0.5}}
    """
    values = {} if file is None else read_values(file)
    given = {key: value for key, value in (options or {}).items() if value is not None}
    if trace is not None and Path(trace).is_dir():
        from fedpbc.experiments.fleet_trace import fleet_values, links_of

        trace = links_of(Path(trace))
        values = patched(tables(fleet_values(trace, {**values, **given}, trust=trust)), values)
    if "task.app" in given:
        # Another task than the file's, which may describe a whole run.
        values = {key: v for key, v in values.items() if key not in ("task", "data", "model")}
    changes = []
    for key, value in given.items():
        changes.append(_change(values, key, value))
        values = patched(values, changes[-1])
    if trace is not None:
        for change in _trace(values, trace, given.get("links")):
            changes.append(change)
            values = patched(values, change)
    for assignment in assignments or ():
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise InputError("--set", assignment, "KEY=VALUE, such as links.gamma=0.2")
        check_text(key, "--set")
        changes.append(_change(values, key, parse_value(text, key)))
        values = patched(values, changes[-1])
    check_values(values)
    for change in changes:
        for path, value in _leaves(change):
            if not _has(values, path):
                raise InputError(
                    f"{'.'.join(path)} is {value!r}, but a later '{path[0]}' replaces it: leave "
                    "one out"
                )
    return values


def _change(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The patch of one assignment; what it stands in must be a table."""
    parts = key.split(".")
    if not all(parts):
        raise InputError("--set", key, "a key such as links.gamma")
    table: Any = values
    for part in parts[:-1]:
        table = table.get(part, {})
        if not isinstance(table, Mapping):
            raise InputError(f"{key} cannot be set: {part} is {table!r}, and no table")
    return tables(dotted(key, value))


def _trace(values: Mapping[str, Any], file: Path, links: Any) -> list[dict[str, Any]]:
    """A recorded trace as links; a fleet's log has its number of clients, too."""
    from fedpbc.links.trace import fleet_log_settings

    check_path(file, "--trace")
    if links not in (None, "trace"):
        raise InputError("--trace", str(file), f"left out with --links {links}")
    links = {"name": "trace", "file": str(file)}
    header = fleet_log_settings(str(file))
    if header is None:
        return [{"links": links}]
    task = values.get("task", {})
    # A quadratic task has as many clients as targets.
    counts = "clients" not in values and task.get("name", "app") in ("app", "classification")
    return [{"links": links}, *([{"clients": header[1]}] if counts else [])]


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _has(values: Any, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
