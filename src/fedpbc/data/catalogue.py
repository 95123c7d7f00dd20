"""The data sets that have a name in this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from fedpbc.data.class_names import CHARACTERS, CLOTHES, DIGITS, FINE, OBJECTS, SUPERCLASSES
from fedpbc.data.dataset import DataSet
from fedpbc.data.shakespeare import (
    SHAKESPEARE_REPOSITORY,
    load_hub_shakespeare,
    load_shakespeare,
)
from fedpbc.data.sources import SOURCES, Source, load_pictures
from fedpbc.data.synthetic import SyntheticClients, load_synthetic
from fedpbc.data.table import load_table
from fedpbc.data.text import MAX_LENGTH
from fedpbc.registration import summary_of

__all__: list[str] = []


def cifar100(folder: Path | None = None, *, labels: Literal["fine", "coarse"] = "fine") -> DataSet:
    """CIFAR-100: 50,000 + 10,000 colour images of 100 classes, or 20 coarse ones."""
    source = Source(
        name="cifar100",
        summary="",
        classes=FINE if labels == "fine" else SUPERCLASSES,
        shape=(32, 32, 3),
        repository="uoft-cs/cifar100",
        config="cifar100",
        column="img",
        label=f"{labels}_label",
        crop_padding=4,
        flip=True,
    )
    return load_pictures(source, folder)


def shakespeare(*, length: Annotated[int, Ge(1), Le(MAX_LENGTH)] = 32) -> DataSet:
    """Shakespeare's plays: the next character of 99 speakers, one client per speaker; built in."""
    return load_shakespeare(length)


def shakespeare_full(folder: Path | None = None) -> DataSet:
    """Shakespeare's works as in LEAF: the character after 80 others, one client per role."""
    return load_hub_shakespeare(folder)


def synthetic(
    *,
    samples: Annotated[int, Ge(1), Le(100_000)] = SyntheticClients.samples,
    features: Annotated[int, Ge(1), Le(100_000)] = SyntheticClients.features,
    classes: Annotated[int, Ge(2), Le(10_000)] = SyntheticClients.classes,
    model_spread: Annotated[float, Ge(0), Le(1000)] = SyntheticClients.model_spread,
    input_spread: Annotated[float, Ge(0), Le(1000)] = SyntheticClients.input_spread,
) -> DataSet:
    """Numbers generated for each client when it trains, for any number of clients."""
    return load_synthetic(
        SyntheticClients(
            samples=samples,
            features=features,
            classes=classes,
            model_spread=model_spread,
            input_spread=input_spread,
        )
    )


NEXT_CHARACTER: dict[str, dict[str, Any]] = {
    "": {"rounds": 60},
    "train": {"optimizer": "adam", "learning_rate": 0.04},
    "data": {"train_samples": 1000},
}
"""Settings for the next character: with plain SGD the LSTM would predict the space for hundreds of
rounds."""

_SOURCES = (
    Source(
        name="fashion",
        summary="10,000 + 2,000 images of Fashion-MNIST, inside the package",
        classes=CLOTHES,
        shape=(28, 28, 1),
    ),
    Source(
        name="digits",
        summary="scikit-learn's 1,797 scans of digits, inside the package",
        classes=DIGITS,
        shape=(8, 8, 1),
    ),
    Source(
        name="cifar10",
        summary="CIFAR-10: 50,000 + 10,000 colour images of ten objects",
        classes=OBJECTS,
        shape=(32, 32, 3),
        repository="uoft-cs/cifar10",
        config="plain_text",
        column="img",
        crop_padding=4,
        flip=True,
        model="cnn_cifar10",
    ),
    Source(
        name="svhn",
        summary="SVHN: 73,257 + 26,032 colour images of digits on house numbers",
        classes=DIGITS,
        shape=(32, 32, 3),
        repository="ufldl-stanford/svhn",
        config="cropped_digits",
        crop_padding=4,
        model="cnn_svhn",
    ),
    Source(
        name="cinic10",
        summary="CINIC-10: 90,000 + 90,000 colour images of CIFAR-10's ten objects",
        classes=OBJECTS,
        shape=(32, 32, 3),
        repository="flwrlabs/cinic10",
        config="data",
        crop_padding=4,
        flip=True,
        model="cnn_cinic10",
    ),
    Source(
        name="mnist",
        summary="MNIST: 60,000 + 10,000 scans of digits",
        classes=DIGITS,
        shape=(28, 28, 1),
        repository="ylecun/mnist",
        config="mnist",
    ),
    Source(
        name="fashion_mnist",
        summary="Fashion-MNIST in full: 60,000 + 10,000 images of clothes",
        classes=CLOTHES,
        shape=(28, 28, 1),
        repository="zalando-datasets/fashion_mnist",
        config="fashion_mnist",
    ),
    Source(
        name="femnist",
        summary="FEMNIST: 814,255 characters by 3,597 writers, one client per writer",
        classes=CHARACTERS,
        shape=(28, 28, 1),
        repository="flwrlabs/femnist",
        config="data",
        label="character",
        client="writer_id",
        splits=("train",),
        model="cnn_svhn",
    ),
    Source(
        name="tiny_imagenet",
        summary="Tiny-ImageNet: 100,000 + 10,000 colour images of 200 classes, 64x64",
        classes=tuple(map(str, range(200))),
        shape=(64, 64, 3),
        repository="zh-plus/tiny-imagenet",
        config="data",
        splits=("train", "valid"),
        crop_padding=4,
        flip=True,
        model="resnet18_gn",
    ),
    Source(
        name="cifar100",
        summary=summary_of(cifar100),
        classes=FINE,
        shape=(32, 32, 3),
        repository="uoft-cs/cifar100",
        config="cifar100",
        model="resnet20_gn",
        function=cifar100,
    ),
    Source(
        name="shakespeare",
        summary=summary_of(shakespeare),
        model="lstm",
        settings=NEXT_CHARACTER,
        function=shakespeare,
        natural=True,
    ),
    Source(
        name="shakespeare_full",
        summary=summary_of(shakespeare_full),
        repository=SHAKESPEARE_REPOSITORY,
        model="lstm",
        settings=NEXT_CHARACTER,
        function=shakespeare_full,
        natural=True,
    ),
    Source(
        name="synthetic",
        summary=summary_of(synthetic),
        function=synthetic,
        natural=True,
    ),
    Source(
        name="table",
        summary="Your own Parquet or CSV files in --data-dir, by the names of their columns",
        function=load_table,
    ),
)

SOURCES |= {source.name: source for source in _SOURCES}
