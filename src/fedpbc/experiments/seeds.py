"""The seeds of a comparison: numbers, lists and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Ge

from fedpbc.errors import InputError
from fedpbc.options import check_type

__all__ = ["DEFAULT_SEEDS", "seed_list", "seeds_text"]

DEFAULT_SEEDS = (0, 1, 2)
MAX_SEEDS = 100_000
EXPECTED = 'different whole numbers from 0, such as [0, 1, 2], or a range such as "0-4"'


def seed_list(seeds: Any) -> list[int]:
    """Return seeds that were given as numbers, as ranges in a text, or as both in a list.

    Example:
        >>> seed_list("0-2,7"), seed_list([5, "8-9"]), seed_list(range(3))
        ([0, 1, 2, 7], [5, 8, 9], [0, 1, 2])
    """
    is_array = getattr(seeds, "ndim", None) == 1 and hasattr(seeds, "tolist")
    items: Sequence[Any] = [seeds] if isinstance(seeds, str) else seeds
    if not (is_array or isinstance(items, Sequence)) or not len(items) or len(items) > MAX_SEEDS:
        raise InputError("seeds", seeds, EXPECTED)
    numbers: list[int] = []
    for item in items:
        if isinstance(item, str):
            numbers += _of_text(item)
        elif isinstance(item, bool) or not hasattr(item, "__index__"):
            raise InputError("seeds", seeds, EXPECTED)
        else:
            numbers.append(check_type("seeds", item, Annotated[int, Ge(0)]))
    if not numbers or len(set(numbers)) != len(numbers) or len(numbers) > MAX_SEEDS:
        raise InputError("seeds", seeds, EXPECTED)
    return numbers


def _of_text(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last] if dash else [first]
        # The digits of other scripts, and numbers of thousands of digits, are no seeds.
        if not all(end.isascii() and end.isdecimal() and len(end) < 19 for end in ends):
            raise InputError("seeds", text, EXPECTED)
        start, stop = int(ends[0]), int(ends[-1])
        if stop < start:
            raise InputError("seeds", part, f"a range from low to high: {stop}-{start}")
        if stop - start >= MAX_SEEDS:
            raise InputError("seeds", part, f"at most {MAX_SEEDS:,} numbers")
        numbers += range(start, stop + 1)
    return numbers


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds as a short text, with ranges of three or more.

    Example:
        >>> seeds_text([0, 1, 2, 3, 7, 9, 10])
        '0-3, 7, 9, 10'
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(parts)
