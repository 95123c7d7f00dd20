"""Named data sets and where each comes from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedpbc.data.parquet import find_shards, read_images
from fedpbc.data.partition import check_labels
from fedpbc.errors import FedpbcError, InputError, MissingExtraError
from fedpbc.limits import check_path, numbers_of
from fedpbc.options import check_fields, check_kind, nearest
from fedpbc.storage.files import expanded

__all__ = ["SOURCES", "DataSet", "Source", "Split", "load"]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels.

    Images are uint8 [N, H, W, C]; labels are converted to int64 [N].

    Example:
        >>> Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1])).labels.dtype
        dtype('int64')
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        labels, inputs = numbers_of("labels", self.labels), numbers_of("inputs", self.inputs)
        if inputs.ndim < 1 or inputs.dtype.kind not in "biuf":
            raise InputError(f"inputs are {inputs.dtype} of shape {inputs.shape}, no samples")
        object.__setattr__(self, "inputs", inputs)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(self.inputs):
            raise InputError(
                f"labels are {labels.dtype} of shape {labels.shape}, "
                f"but should be one integer for each of {len(self.inputs)} samples"
            )
        object.__setattr__(self, "labels", labels.astype(np.int64, copy=False))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples: a named data set or the user's own.

    `crop_padding` and `flip` set the augmentation that leaves the class of an image unchanged.

    Example:
        >>> split = Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1]))
        >>> DataSet("mine", train=split, test=split, classes=("cat", "dog")).fingerprint()[:8]
        'ee1f7bb2'
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    crop_padding: Annotated[int, Ge(0)] = 0
    flip: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_kind("classes", self.classes, (tuple, list), "the names of the classes")
        for name, split in (("train", self.train), ("test", self.test)):
            check_kind(name, split, Split, "a Split")
            check_labels(split.labels, len(self.classes))

    def fingerprint(self) -> str:
        """Return a hash of all samples and labels, by which a resumed run detects changed data."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            for array in (split.inputs, split.labels):
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what shape it has.

    `repository` and `config` name the hub's repository and the folder in it, `column` the image
    column. Without a repository the data is part of the package.
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
_OBJECTS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="fashion",
            summary="10,000 + 2,000 images of Fashion-MNIST, inside the package",
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
            summary="CIFAR-10: 50,000 + 10,000 colour images of ten objects",
            classes=_OBJECTS,
            shape=(32, 32, 3),
            repository="uoft-cs/cifar10",
            config="plain_text",
            column="img",
            crop_padding=4,
            flip=True,
        ),
        Source(
            name="svhn",
            summary="SVHN: 73,257 + 26,032 colour images of digits on house numbers",
            classes=_TEN_DIGITS,
            shape=(32, 32, 3),
            repository="ufldl-stanford/svhn",
            config="cropped_digits",
            crop_padding=4,
        ),
        Source(
            name="cinic10",
            summary="CINIC-10: 90,000 + 90,000 colour images of CIFAR-10's ten objects",
            classes=_OBJECTS,
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
            summary="Fashion-MNIST in full: 60,000 + 10,000 images of clothes",
            classes=_CLOTHES,
            shape=(28, 28, 1),
            repository="zalando-datasets/fashion_mnist",
            config="fashion_mnist",
        ),
    )
}


def load(name: str, folder: Path | str | None = None) -> DataSet:
    """Load a named data set from the package, from a folder of Parquet files, or from the hub.

    A folder may hold the hub's repositories (`uoft-cs/cifar10/plain_text/…`), one of them
    (`plain_text/…`) or the files themselves (`train-00000-of-00001.parquet`, …).

    Example:
        >>> digits = load("digits")
        >>> digits.train.inputs.shape, len(digits.test.labels)
        ((1437, 8, 8, 1), 360)
    """
    source = SOURCES.get(name) if isinstance(name, str) else None
    if source is None:
        raise InputError("data.name", name, nearest(str(name), SOURCES))
    if folder is not None:
        check_path(folder, "data.dir")
    if not source.repository:
        if folder is not None:
            expected = f"left out for {name}, which is part of the package"
            raise InputError("data.dir", str(folder), expected)
        train, test = _load_embedded(name)
    else:
        root = _download(source) if folder is None else expanded(folder, "data.dir")
        train, test = _load_parquet(root, source)
    return DataSet(name, train, test, source.classes, source.crop_padding, source.flip)


def _load_embedded(name: str) -> tuple[Split, Split]:
    # Written by tools/make_embedded_data.py.
    resource = files("fedpbc.data") / "embedded" / f"{name}.npz"
    with as_file(resource) as path, np.load(path, allow_pickle=False) as arrays:
        train = Split(arrays["train_inputs"], arrays["train_labels"])
        return train, Split(arrays["test_inputs"], arrays["test_labels"])


def _download(source: Source) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(f"downloading {source.name}", "hub") from error
    try:
        # Not the whole repository: SVHN's has half a million extra images and another format.
        patterns = [f"{source.config}/{split}-*.parquet" for split in ("train", "test")]
        folder = huggingface_hub.snapshot_download(
            source.repository, repo_type="dataset", allow_patterns=patterns
        )
        return Path(folder)
    except Exception as error:  # network errors have many types
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise FedpbcError(
            f"{source.name} cannot be downloaded from the hub's {source.repository} ({reason}): "
            "check the connection, or name a folder of its Parquet files with --data-dir"
        ) from error


def _load_parquet(root: Path, source: Source) -> tuple[Split, Split]:
    if not root.is_dir():
        raise InputError("data.dir", str(root), "an existing folder")
    for folder in (root / source.repository / source.config, root / source.config, root):
        shards = {split: find_shards(folder, split, root) for split in ("train", "test")}
        if any(shards.values()):
            break
    splits = []
    for split, paths in shards.items():
        if not paths:
            raise InputError(
                f"data.dir: {root} has no {split} images; "
                f"it should have {source.repository}/{source.config}/{split}-*.parquet"
            )
        images, labels = read_images(paths, source.column, source.shape, len(source.classes))
        if len(labels) == 0:
            raise InputError(f"data.dir: {paths[0]} has no images; it should have at least one")
        splits.append(Split(images, labels))
    return splits[0], splits[1]
