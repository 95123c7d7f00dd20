"""Texts as numbers: a vocabulary of characters, and windows in which the next one is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedpbc.data.dataset import DataSet, Split
from fedpbc.data.natural import TEST_PART
from fedpbc.errors import InputError

__all__ = [
    "MAX_LENGTH",
    "UNKNOWN",
    "code_points",
    "encode",
    "next_character_data",
    "next_characters",
    "vocabulary_of",
]

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
    is_known = places < len(known)
    is_known[is_known] = known[places[is_known]] == points[is_known]
    return np.where(is_known, places, len(known)).astype(np.int32)


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


def next_character_data(
    name: str, texts: Mapping[str, str], length: int, test_texts: Mapping[str, str] | None = None
) -> DataSet:
    """Return the windows of each client's text.

    The last fifth of each text is for testing, unless there are ``test_texts``.

    Example:
        >>> texts = {"Ann": "to be or not " * 5, "Ben": "to sleep " * 5}
        >>> data = next_character_data("mine", texts, length=2)
        >>> data.client_names, data.train.inputs.shape, len(data.classes)
        (('Ann', 'Ben'), (42, 2), 11)
    """
    if test_texts is None:
        cuts = [len(text) - len(text) // TEST_PART for text in texts.values()]
        train = [text[:cut] for text, cut in zip(texts.values(), cuts, strict=True)]
        test = [text[cut:] for text, cut in zip(texts.values(), cuts, strict=True)]
    else:
        train = list(texts.values())
        test = [test_texts.get(client, "") for client in texts]
    vocabulary = vocabulary_of(train)
    shortest = min(range(len(train)), key=lambda k: len(train[k]))
    if not len(next_characters(encode(train[shortest], vocabulary), length)[0]):
        client, count = list(texts)[shortest], len(train[shortest])
        raise InputError(
            "data.length", length, f"smaller: {client!r} has {count} characters to train"
        )
    return DataSet(
        name,
        _split(train, vocabulary, length),
        _split(test, vocabulary, length),
        vocabulary,
        client_names=tuple(texts),
        vocabulary=len(vocabulary),
        next_token=True,
    )


def _split(texts: list[str], vocabulary: tuple[str, ...], length: int) -> Split:
    """Return the windows of each client's text, one client after another."""
    windows = [next_characters(encode(text, vocabulary), length) for text in texts]
    return Split(
        np.concatenate([inputs for inputs, _ in windows]),
        np.concatenate([targets for _, targets in windows]),
        np.repeat(np.arange(len(texts)), [len(inputs) for inputs, _ in windows]),
    )
