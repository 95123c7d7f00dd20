"""Any data set by the names of its columns: pictures, texts or numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedpbc.data.columns import (
    find_table,
    is_picture,
    is_text,
    numbers,
    pictures,
    read_columns,
)
from fedpbc.data.dataset import DataSet, Split
from fedpbc.data.hub import download
from fedpbc.data.natural import hold_out_of_each, number_clients
from fedpbc.data.parquet import wrong
from fedpbc.data.text import MAX_LENGTH, encode, next_character_data, vocabulary_of
from fedpbc.errors import InputError

__all__ = ["load_table"]

MAX_CLASSES = 1_000_000
Columns = dict[str, Any]


def load_table(
    folder: Path | None = None,
    name: str = "table",
    repository: str = "",
    *,
    input: str | list[str] = "",
    target: str | list[str] = "",
    target_kind: Literal["auto", "numbers"] = "auto",
    client: str = "",
    config: str = "",
    train: str = "train",
    test: str = "test",
    length: Annotated[int, Ge(1), Le(MAX_LENGTH)] = 80,
) -> DataSet:
    """Any Parquet or CSV files, by the names of their columns.

    Args:
        folder: of the files, or one file; None: downloaded from the hub.
        name: of the data set, for messages.
        repository: of the hub.
        input: the column of pictures or texts; or one or several of numbers, separated by commas.
        target: the column of classes (integers from 0, texts or truth values) or of numbers; or
            several of numbers, separated by commas, such as the labels that a sample may have. With
            texts it may be left out: the target is then the next character.
        target_kind: whether integers are "numbers", as in a regression; "auto": if the loss needs
            them, else classes.
        client: the column that says whose a sample is; without it, samples are partitioned.
        config: the folder in the repository.
        train: the split for training.
        test: the split for testing; without such files, a part of each client's samples is.
        length: of a text, the characters of a sample.
    """
    inputs, targets = _column_names(input), _column_names(target)
    if not all(inputs):
        raise InputError(
            "data.input is missing: name the column of inputs, as in --set data.input=image"
        )
    root = _root(folder, name, repository, [train, test])
    names = list(dict.fromkeys([*inputs, *filter(None, [*targets, client])]))
    expected = f"the columns {', '.join(names)}"
    files = find_table(root, repository, config or None, train)
    columns = read_columns(files, names, expected)
    if not len(columns[names[0]]):
        raise InputError(f"data.dir: {files[0]} has no rows; it should have at least one")
    test_files = _test_files(root, repository, config or None, test, files)
    test_columns = read_columns(test_files, names, expected) if test_files else None
    if test_columns is not None and not len(test_columns[names[0]]):
        raise InputError(f"data.dir: {test_files[0]} has no rows; it should have at least one")
    both = [columns] if test_columns is None else [columns, test_columns]
    if not all(targets):
        return _next_characters(name, both, inputs, client, length)
    each_file = [files[0], *test_files[:1]]
    features, vocabulary = _features(each_file, inputs, both, length)
    labels, classes = _targets(each_file, targets, both, target_kind)
    clients, client_names = _clients(name, client, both)
    if test_columns is None:
        kept, held_out = hold_out_of_each(clients[0], len(labels[0]))
        if not len(held_out):
            raise InputError(
                f"data.dir: {files[0]} has fewer than five rows of each client, too few to keep "
                f"some for testing: name another split with --set data.test=…"
            )
        rows = [(0, kept), (0, held_out)]
    else:
        rows = [(0, np.arange(len(labels[0]))), (1, np.arange(len(labels[1])))]
        if clients[1] is not None:
            # Of clients without training samples nothing can be learned.
            known = np.flatnonzero(clients[1] < len(client_names))
            rows[1] = (1, known)
    if features[0].dtype.kind == "f":
        features = _standardised(features, rows[0][1])
    splits = []
    for k, index in rows:
        owners = clients[k]
        splits.append(
            Split(features[k][index], labels[k][index], None if owners is None else owners[index])
        )
    return DataSet(
        name,
        splits[0],
        splits[1],
        classes,
        client_names=client_names,
        vocabulary=vocabulary,
    )


def _column_names(given: str | list[str]) -> list[str]:
    return [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]


def _root(folder: Path | None, name: str, repository: str, splits: list[str]) -> Path:
    if folder is not None:
        return folder
    if not repository:
        raise InputError("data.dir is missing: name a folder or a file with --data-dir")
    patterns = [f"*{split}*.{kind}" for split in splits for kind in ("parquet", "csv")]
    return download(name, repository, patterns)


def _test_files(
    root: Path, repository: str, config: str | None, split: str, train_files: list[Path]
) -> list[Path]:
    """Return the files for testing; none if there is only one file, or no such split."""
    if root.is_file():
        return []
    try:
        files = find_table(root, repository, config, split)
    except InputError:
        return []
    return [] if files == train_files else files


def _features(
    files: list[Path], inputs: list[str], both: list[Columns], length: int
) -> tuple[list[npt.NDArray[Any]], int]:
    """Return the inputs of each split as an array, and the vocabulary of texts."""
    first = both[0][inputs[0]]
    if len(inputs) == 1 and is_picture(first):
        arrays = [pictures(f, inputs[0], c[inputs[0]]) for f, c in zip(files, both, strict=True)]
        if len({array.shape[1:] for array in arrays}) > 1:
            sizes = " and ".join(str(array.shape[1:]) for array in arrays)
            raise wrong(
                files[-1], f"pictures of another size ({sizes})", "those of the other split"
            )
        return list(arrays), 0
    if len(inputs) == 1 and is_text(first):
        texts = [columns[inputs[0]].to_pylist() for columns in both]
        vocabulary = vocabulary_of(texts[0])
        return [_padded(each, vocabulary, length) for each in texts], len(vocabulary) + 1
    rows = [
        np.hstack([numbers(file, name, columns[name]) for name in inputs])
        for file, columns in zip(files, both, strict=True)
    ]
    return list(rows), 0


def _padded(texts: list[str], vocabulary: tuple[str, ...], length: int) -> npt.NDArray[np.int32]:
    """Return the last characters of each text, after as many 0 as it is too short; 1 is the first
    character of the vocabulary."""
    padded = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in enumerate(texts):
        tokens = encode(text[-length:], vocabulary)
        padded[row, length - len(tokens) :] = tokens + 1
    return padded


def _targets(
    files: list[Path], names: list[str], both: list[Columns], target_kind: str
) -> tuple[list[npt.NDArray[Any]], tuple[str, ...]]:
    """Return the labels of each split, and the names of the classes: none for numbers."""
    import pyarrow as pa

    if target_kind == "numbers" or len(names) > 1:
        return [
            np.hstack([numbers(file, name, columns[name]) for name in names])
            for file, columns in zip(files, both, strict=True)
        ], ()
    name = names[0]
    columns = [each[name] for each in both]
    kind = columns[0].type
    if is_text(columns[0]):
        texts = [np.asarray(column.to_pylist()) for column in columns]
        classes = np.unique(texts[0])
        for file, each in zip(files, texts, strict=True):
            unknown = np.flatnonzero(~np.isin(each, classes))
            if len(unknown):
                row = int(unknown[0])
                known = ", ".join(map(str, classes[:5]))
                raise wrong(
                    file, f"{each[row]!r} in row {row} of {name}", f"a training class: {known}, …"
                )
        labels = [np.searchsorted(classes, each).astype(np.int64) for each in texts]
        return list(labels), tuple(map(str, classes))
    values = [numbers(f, name, column) for f, column in zip(files, columns, strict=True)]
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return list(values), ()
    labels = [each.reshape(-1).astype(np.int64) for each in values]
    count = int(labels[0].max()) + 1
    for file, each in zip(files, labels, strict=True):
        outside = np.flatnonzero((each < 0) | (each >= min(count, MAX_CLASSES)))
        if len(outside):
            row = int(outside[0])
            last = min(count, MAX_CLASSES) - 1
            raise wrong(
                file, f"label {each[row]} in row {row} of {name}", f"labels from 0 to {last}"
            )
    return list(labels), tuple(map(str, range(count)))


def _clients(
    name: str, column: str, both: list[Columns]
) -> tuple[list[npt.NDArray[np.int64] | None], tuple[str, ...]]:
    """Return whose each sample is, and the clients' names; test samples of clients that have none
    for training get a number beyond."""
    if not column:
        return [None] * len(both), ()
    train = np.asarray([str(value) for value in both[0][column].to_pylist()])
    numbers_, names = number_clients(train)
    owners: list[npt.NDArray[np.int64] | None] = [numbers_]
    known = {client: k for k, client in enumerate(names)}
    for columns in both[1:]:
        values = [known.get(str(value), len(names)) for value in columns[column].to_pylist()]
        owners.append(np.asarray(values, dtype=np.int64))
        if min(values) == len(names):
            raise InputError(
                f"data.client is {column!r}, but no client of {name}'s test split has training "
                "samples: leave the test split out with --set data.test=none"
            )
    return owners, names


def _next_characters(
    name: str, both: list[Columns], inputs: list[str], client: str, length: int
) -> DataSet:
    """Return the windows of each client's texts: its rows one after another."""
    if len(inputs) > 1 or not is_text(both[0][inputs[0]]):
        raise InputError(
            "data.target is missing: name the column of targets; only texts have a next character"
        )
    if not client:
        raise InputError(
            "data.client is missing: name the column that says whose a text is, for the next "
            "character"
        )
    train, *test = [_joined_texts(columns, inputs[0], client) for columns in both]
    ordered = sorted(train, key=lambda owner: -len(train[owner]))
    texts = {owner: train[owner] for owner in ordered}
    if test and not any(len(test[0].get(owner, "")) > length for owner in texts):
        raise InputError(
            f"data.client is {client!r}, but no client of {name}'s test split has training texts "
            f"and more than data.length = {length} characters: leave the test split out with "
            "--set data.test=none"
        )
    return next_character_data(name, texts, length, *test)


def _joined_texts(columns: Columns, text: str, client: str) -> dict[str, str]:
    """Return each client's texts, one after another."""
    texts: dict[str, list[str]] = {}
    for owner, each in zip(columns[client].to_pylist(), columns[text].to_pylist(), strict=True):
        texts.setdefault(str(owner), []).append(each)
    return {owner: "\n".join(each) for owner, each in texts.items()}


def _standardised(
    features: list[npt.NDArray[Any]], train: npt.NDArray[np.int64]
) -> list[npt.NDArray[Any]]:
    """Return numbers with mean 0 and deviation 1 over the training samples, in single precision."""
    mean, deviation = features[0][train].mean(axis=0), features[0][train].std(axis=0)
    deviation[deviation == 0] = 1
    return [((each - mean) / deviation).astype(np.float32) for each in features]
