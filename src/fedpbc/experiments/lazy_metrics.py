"""The evaluations of a finished run, each parsed and checked when it is looked at.

A report of hundreds of runs shows a few hundred of each run's evaluations, which may be thousands.
That the file is whole is known from its checksum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from fedpbc.errors import InputError
from fedpbc.experiments.result_schema import metrics_check
from fedpbc.limits import parse_json

__all__ = ["LazyMetrics"]


class LazyMetrics(Sequence[Mapping[str, Any]]):
    """The lines of metrics.jsonl, complete and unchanged; raises InputError for a wrong one.

    Example:
        >>> config = {"rounds": 1, "evaluate_every": 1}
        >>> len(LazyMetrics(b"{}\\n", config))
        1
    """

    def __init__(self, content: bytes, config: Mapping[str, Any]) -> None:
        self._lines: list[Any] = [line for line in content.split(b"\n") if line]
        self._check = metrics_check(config)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        line = self._lines[index]
        if isinstance(line, bytes):
            position = index % len(self)
            try:
                line = parse_json(line.decode())
            except ValueError:
                raise InputError(
                    f"metrics.jsonl line {position + 1} is not a JSON object"
                ) from None
            self._check(position + 1, line)
            self._lines[position] = line
        parsed: Mapping[str, Any] = line
        return parsed
