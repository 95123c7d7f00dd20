"""Shakespeare's plays: the next character of what a speaker says, one client per speaker."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpbc.data.columns import find_table, read_columns
from fedpbc.data.dataset import DataSet, Split
from fedpbc.data.hub import download
from fedpbc.data.natural import TEST_PART, hold_out_last, number_clients
from fedpbc.data.text import next_character_data
from fedpbc.errors import InputError

__all__ = [
    "SHAKESPEARE_REPOSITORY",
    "embedded_speakers",
    "load_hub_shakespeare",
    "load_shakespeare",
]

SHAKESPEARE_REPOSITORY = "flwrlabs/shakespeare"
LEAF_LENGTH = 80
LEAF_CHARACTERS = tuple(
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""LEAF's alphabet, in the order of their numbers."""


def embedded_speakers() -> dict[str, str]:
    """Return what each of the 99 speakers says, those with most text first.

    Example:
        >>> texts = embedded_speakers()
        >>> len(texts), next(iter(texts))
        (99, 'GLOUCESTER')
    """
    # Written by tools/make_shakespeare.py.
    resource = files("fedpbc.data") / "embedded" / "shakespeare.npz"
    with as_file(resource) as path, np.load(path, allow_pickle=False) as arrays:
        text, ends = arrays["text"].tobytes().decode("ascii"), arrays["ends"].tolist()
        speakers = arrays["speakers"].tolist()
    starts = [0, *ends[:-1]]
    return {speaker: text[a:b] for speaker, a, b in zip(speakers, starts, ends, strict=True)}


def load_shakespeare(length: int) -> DataSet:
    """Return windows of ``length`` characters; the last fifth of each speaker's text is for tests.

    Example:
        >>> data = load_shakespeare(length=40)
        >>> data.train.inputs.shape[1], len(data.client_names), len(data.classes)
        (40, 99, 65)
    """
    texts = embedded_speakers()
    return next_character_data("shakespeare", texts, length)


def load_hub_shakespeare(folder: Path | None) -> DataSet:
    """Return LEAF's Shakespeare, ``flwrlabs/shakespeare``: 80 characters, and the next one.

    A client is a role of a play. The windows of a role overlap; its last fifth is for testing, and
    the 80 before it are not used.
    """
    if folder is None:
        patterns = ["*.csv", "*.parquet"]
        folder = download("shakespeare_full", SHAKESPEARE_REPOSITORY, patterns)
    files = find_table(folder, SHAKESPEARE_REPOSITORY, None, "train")
    expected = "the columns character_id, x and y (texts)"
    columns = read_columns(files, ["character_id", "x", "y"], expected, texts=True)
    inputs = _windows(files[0], columns["x"].to_pylist(), LEAF_LENGTH, "x")
    labels = _windows(files[0], columns["y"].to_pylist(), 1, "y").reshape(-1)
    clients, names = number_clients(np.asarray(columns["character_id"].to_pylist()))
    kept, held_out = hold_out_last(clients, gap=LEAF_LENGTH)
    if not len(held_out):
        raise InputError(
            f"data.dir: {files[0]} has fewer than {LEAF_LENGTH * TEST_PART} rows of each role, "
            "too few to test with"
        )
    train, test = (
        Split(inputs[rows].astype(np.int32), labels[rows].astype(np.int64), clients[rows])
        for rows in (kept, held_out)
    )
    return DataSet(
        "shakespeare_full",
        train,
        test,
        LEAF_CHARACTERS,
        client_names=names,
        vocabulary=len(LEAF_CHARACTERS),
        next_token=True,
    )


def _windows(file: Path, texts: list[str], length: int, column: str) -> npt.NDArray[np.uint8]:
    """Return the characters' numbers in LEAF's alphabet, rows × length."""
    for row, text in enumerate(texts):
        if len(text) != length:
            raise InputError(
                f"data.dir: {file} has {len(text)} characters in row {row} of its column {column}; "
                f"it should have {length}"
            )
    numbers = np.full(128, 255, dtype=np.uint8)
    numbers[[ord(character) for character in LEAF_CHARACTERS]] = np.arange(len(LEAF_CHARACTERS))
    joined = "".join(texts)
    # What is no ASCII becomes a character that LEAF's alphabet does not have.
    plain = joined if joined.isascii() else "".join(c if c.isascii() else "\0" for c in joined)
    codes = numbers[np.frombuffer(plain.encode("ascii"), dtype=np.uint8)]
    unknown = np.flatnonzero(codes == 255)
    if len(unknown):
        position = int(unknown[0])
        raise InputError(
            f"data.dir: {file} has {joined[position]!r} in row {position // length} of its column "
            f"{column}; it should have only the {len(LEAF_CHARACTERS)} characters of LEAF"
        )
    return codes.reshape(-1, length)
