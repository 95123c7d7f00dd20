"""The data sets known by name, and where each comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.data.parquet import find_shards, read_pictures
from fedpbc.errors import FedpbcError, InputError, MissingExtraError, Verbatim
from fedpbc.options import nearest

__all__ = ["SOURCES", "DataSet", "Source", "Split", "load"]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels.

    Pictures are uint8 [N, H, W, C]; labels become int64 [N].

    Example:
        >>> Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1])).labels.dtype
        dtype('int64')
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(self.inputs):
            given = Verbatim(f"{labels.dtype} of shape {labels.shape}")
            raise InputError("labels", given, f"one integer for each of {len(self.inputs)} samples")
        object.__setattr__(self, "labels", labels.astype(np.int64, copy=False))


@dataclass(frozen=True, eq=False)
class DataSet:
    """What is learned from and what is tested on; one's own data as well as a known set.

    `crop_padding` and `flip` say how training pictures may be changed without changing their class.

    Example:
        >>> split = Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1]))
        >>> DataSet("mine", train=split, test=split, classes=("cat", "dog")).fingerprint()[:8]
        'ee1f7bb2'
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    crop_padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            if len(split.labels) == 0:
                raise InputError("data", Verbatim("empty"), "at least one sample in train and test")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                right = f"from 0 to {len(self.classes) - 1}, one for each class"
                raise InputError("labels", Verbatim(f"from {low} to {high}"), right)

    def fingerprint(self) -> str:
        """A hash of all samples and labels: a resumed run tells by it that its data changed.

        Example:
            >>> load("digits").fingerprint() == load("digits").fingerprint()
            True
        """
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            for array in (split.inputs, split.labels):
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it should look like.

    `repository` and `config` are the hub's repository and the folder in it, `column` the pictures'
    column; without a repository the data lies in the package itself.

    Example:
        >>> SOURCES["svhn"].repository, SOURCES["svhn"].config
        ('ufldl-stanford/svhn', 'cropped_digits')
    """

    name: str
    summary: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    repository: str = ""
    config: str = ""
    column: str = "image"
    crop_padding: int = 0
    flip: bool = False


_TEN_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_THINGS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="fashion",
            summary="10,000 + 2,000 pictures of Fashion-MNIST, inside the package",
            classes=_CLOTHES,
            shape=(28, 28, 1),
        ),
        Source(
            name="digits",
            summary="scikit-learn's 1,797 scans of digits, inside the package",
            classes=_TEN_DIGITS,
            shape=(8, 8, 1),
        ),
        Source(
            name="cifar10",
            summary="CIFAR-10: 50,000 + 10,000 colour pictures of ten things",
            classes=_THINGS,
            shape=(32, 32, 3),
            repository="uoft-cs/cifar10",
            config="plain_text",
            column="img",
            crop_padding=4,
            flip=True,
        ),
        Source(
            name="svhn",
            summary="SVHN: 73,257 + 26,032 colour pictures of house numbers' digits",
            classes=_TEN_DIGITS,
            shape=(32, 32, 3),
            repository="ufldl-stanford/svhn",
            config="cropped_digits",
            crop_padding=4,
        ),
        Source(
            name="cinic10",
            summary="CINIC-10: 90,000 + 90,000 colour pictures of CIFAR-10's ten things",
            classes=_THINGS,
            shape=(32, 32, 3),
            repository="flwrlabs/cinic10",
            config="data",
            crop_padding=4,
            flip=True,
        ),
        Source(
            name="mnist",
            summary="MNIST: 60,000 + 10,000 scans of digits",
            classes=_TEN_DIGITS,
            shape=(28, 28, 1),
            repository="ylecun/mnist",
            config="mnist",
        ),
        Source(
            name="fashion_mnist",
            summary="Fashion-MNIST in full: 60,000 + 10,000 pictures of clothes",
            classes=_CLOTHES,
            shape=(28, 28, 1),
            repository="zalando-datasets/fashion_mnist",
            config="fashion_mnist",
        ),
    )
}


def load(name: str, folder: Path | str | None = None) -> DataSet:
    """A known data set: from the package, from a folder of Parquet files, or from the hub.

    A folder may hold the hub's repositories (`uoft-cs/cifar10/plain_text/…`), one of them
    (`plain_text/…`) or the files themselves (`train-00000-of-00001.parquet`, …).

    Example:
        >>> digits = load("digits")
        >>> digits.train.inputs.shape, len(digits.test.labels)
        ((1437, 8, 8, 1), 360)
    """
    source = SOURCES.get(name)
    if source is None:
        raise InputError("data.name", name, nearest(name, SOURCES))
    if not source.repository:
        if folder is not None:
            right = f"left out for {name}, which lies in the package"
            raise InputError("data.dir", str(folder), right)
        train, test = _embedded(name)
    else:
        place = _download(source) if folder is None else Path(folder).expanduser()
        train, test = _from_parquet(place, source)
    return DataSet(name, train, test, source.classes, source.crop_padding, source.flip)


def _embedded(name: str) -> tuple[Split, Split]:
    # Made by tools/make_embedded_data.py.
    resource = files("fedpbc.data") / "embedded" / f"{name}.npz"
    with as_file(resource) as path, np.load(path) as arrays:
        train = Split(arrays["train_inputs"], arrays["train_labels"])
        return train, Split(arrays["test_inputs"], arrays["test_labels"])


def _download(source: Source) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(f"downloading {source.name}", "hub") from error
    try:
        # Named one by one, for SVHN's half a million extra pictures and its other configurations
        # need not be fetched.
        patterns = [f"{source.config}/{split}-*.parquet" for split in ("train", "test")]
        return Path(
            huggingface_hub.snapshot_download(
                source.repository, repo_type="dataset", allow_patterns=patterns
            )
        )
    except Exception as error:  # the network fails in more ways than can be listed
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise FedpbcError(
            f"{source.name} cannot be downloaded from the hub's {source.repository} ({reason}): "
            "check the connection, or name a folder of its Parquet files with --data-dir"
        ) from error


def _from_parquet(folder: Path, source: Source) -> tuple[Split, Split]:
    if not folder.is_dir():
        raise InputError("data.dir", str(folder), "an existing folder")
    for place in _places(folder, source):
        shards = {split: find_shards(place, split) for split in ("train", "test")}
        if any(shards.values()):
            break
    splits = []
    for split, paths in shards.items():
        if not paths:
            right = f"a folder with {source.repository}/{source.config}/{split}-*.parquet"
            raise InputError("data.dir", Verbatim(f"{folder} without {split} pictures"), right)
        read = read_pictures(paths, source.column, source.shape, len(source.classes))
        if len(read[1]) == 0:
            right = "a file with at least one picture"
            raise InputError("data.dir", Verbatim(f"{paths[0]} without pictures"), right)
        splits.append(Split(*read))
    return splits[0], splits[1]


def _places(folder: Path, source: Source) -> Iterator[Path]:
    yield folder / source.repository / source.config
    yield folder / source.config
    yield folder
