"""Texts as numbers: a vocabulary of characters, and windows in which the next one is predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_LENGTH", "UNKNOWN", "code_points", "encode", "next_characters", "vocabulary_of"]

Tokens = npt.NDArray[np.int32]
MAX_LENGTH = 10_000
"""Characters of a sample."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character that no training text has."""


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the characters of a text as numbers of Unicode."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def vocabulary_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Return all characters in these texts, in the order of Unicode, and one for all others.

    Example:
        >>> vocabulary_of(["to be", "or not"])[:4]
        (' ', 'b', 'e', 'n')
    """
    characters = sorted(set().union(*texts) - {UNKNOWN})
    return (*characters, UNKNOWN)


def encode(text: str, vocabulary: Sequence[str]) -> Tokens:
    """Return the place of each character in a sorted vocabulary whose last entry is for others.

    Example:
        >>> encode("bad", ("a", "b", UNKNOWN)).tolist()
        [1, 0, 2]
    """
    known = code_points("".join(vocabulary[:-1]))
    points = code_points(text)
    places = np.searchsorted(known, points)
    found = places < len(known)
    found[found] = known[places[found]] == points[found]
    return np.where(found, places, len(known)).astype(np.int32)


def next_characters(tokens: Tokens, length: int) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Return windows of a text without overlap, and for each position the character after it.

    What is left at the end, shorter than a window, is not used.

    Example:
        >>> inputs, targets = next_characters(np.array([1, 2, 3, 4, 5, 6], dtype=np.int32), 2)
        >>> inputs.tolist(), targets.tolist()
        ([[1, 2], [3, 4]], [[2, 3], [4, 5]])
    """
    count = max(0, len(tokens) - 1) // length
    inputs = tokens[: count * length].reshape(count, length)
    targets = tokens[1 : count * length + 1].reshape(count, length)
    return inputs, targets.astype(np.int64)
