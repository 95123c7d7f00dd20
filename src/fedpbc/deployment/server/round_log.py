"""The server's log of rounds, ``rounds.jsonl``: one line of JSON per round. Imports no torch.

A line that is complete but not what a server writes is damage, and is reported. The last line may
be incomplete: the server is writing it, or was killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from fedpbc.errors import FedpbcError
from fedpbc.limits import MAX_INTEGER, parse_json
from fedpbc.storage.files import open_regular_file

__all__ = ["BYTES", "ROUND_LOG", "parse_round", "read_rounds"]

ROUND_LOG = "rounds.jsonl"
LONGEST_LINE = 1 << 28
"""Bytes: a line has about forty per client."""
TIMES = ("began_s", "ended_s", "at")
CLIENT_LISTS = ("active", "selected", "refused")
LATER_LISTS = ("changed", "joined", "left")
"""Not in the logs of earlier versions: clients whose change of app or data was accepted, and who
joined or left before the round."""
BYTES = ("bytes_up", "bytes_down")
"""Of the vectors that arrived and were sent in a round; not in the logs of earlier versions."""


def read_rounds(folder: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Read the rounds of a job, as text and as values; a FedpbcError names a damaged line."""
    path = folder / ROUND_LOG
    try:
        file = open_regular_file(path, follow_links=False)
    except FileNotFoundError:
        return
    with file:
        number = 0
        while (text := file.readline(LONGEST_LINE)).endswith(b"\n"):
            yield text, parse_round(text, number, path)
            number += 1


def parse_round(text: bytes, number: int, path: Path) -> dict[str, Any]:
    """Parse the line of round ``number``; errors name the file."""
    try:
        line = parse_json(text)
        if not isinstance(line, dict) or line.get("round") != number:
            raise ValueError(f"it should be that of round {number}")
        if not all(is_finite(line.get(name)) for name in TIMES):
            raise ValueError("it lacks a time")
        if not all(is_client_list(line.get(name)) for name in CLIENT_LISTS):
            raise ValueError("it lacks a list of clients")
        if not all(is_client_list(line.get(name, [])) for name in LATER_LISTS):
            raise ValueError("a list of clients is malformed")
        if not isinstance(line.get("everyone"), bool):
            raise ValueError("'everyone' is missing")
        if not all(is_count(line.get(name, 0)) for name in BYTES):
            raise ValueError("its bytes are not a count")
    except ValueError as error:
        raise FedpbcError(f"{path} is damaged in line {number + 1}: {error}") from None
    return line


def is_finite(value: object) -> bool:
    """Whether it is a number that can be calculated with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MAX_INTEGER and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether it is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER


def is_client_list(value: object) -> TypeGuard[list[int]]:
    """Whether it is a list of clients' numbers."""
    return isinstance(value, list) and all(map(is_count, value))
