#!/usr/bin/env python3
"""Make the data sets that lie inside the package, src/fedpbc/data/embedded/*.npz.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb fashion
    python tools/make_embedded_data.py fashion/usr/share/datasets/fashion-mnist

The folder holds Fashion-MNIST's four IDX files, gzipped or not. The digits come from scikit-learn,
if it is installed (it is no dependency of the project); else their file is left as it is.

What is picked follows from the sources alone:

- fashion: of each class the first 1,000 training and first 200 test pictures, in the files' order;
- digits: sorted by class and otherwise as they are, every fifth scan is for testing: 1,437 and 360.

The same Python writes the same bytes every time. Another version of zlib may compress them
otherwise; the arrays are the same.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

EMBEDDED = Path(__file__).resolve().parent.parent / "src/fedpbc/data/embedded"
Bytes = npt.NDArray[np.uint8]


def read_idx(folder: Path, name: str) -> Bytes:
    """An array of bytes in the IDX format: 0, 0, 8 (bytes), axes, their lengths, the data."""
    plain, packed = folder / name, folder / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{folder / name} is no IDX file of bytes")
    axes = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def first_of_each_class(labels: Bytes, count: int) -> npt.NDArray[np.int64]:
    """The indices, in order, of the first `count` samples of every class."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)]))


def make_fashion(folder: Path) -> dict[str, Bytes]:
    """Fashion-MNIST, 1,000 + 200 pictures a class."""
    arrays = {}
    for split, prefix, count in (("train", "train", 1000), ("test", "t10k", 200)):
        labels = read_idx(folder, f"{prefix}-labels-idx1-ubyte")
        chosen = first_of_each_class(labels, count)
        arrays[f"{split}_inputs"] = read_idx(folder, f"{prefix}-images-idx3-ubyte")[chosen][
            ..., None
        ]
        arrays[f"{split}_labels"] = labels[chosen]
    return arrays


def make_digits() -> dict[str, Bytes]:
    """scikit-learn's digits, their values 0 to 16 as they are."""
    digits = importlib.import_module("sklearn.datasets").load_digits()
    labels = digits.target.astype(np.uint8)
    chosen = np.zeros(len(labels), dtype=bool)
    # By class first: the writers wrote 0 to 9 in turn, so every fifth scan would be a 0 or a 5.
    chosen[np.argsort(labels, kind="stable")[::5]] = True
    inputs = digits.images.astype(np.uint8)[..., None]
    return {
        "train_inputs": inputs[~chosen],
        "train_labels": labels[~chosen],
        "test_inputs": inputs[chosen],
        "test_labels": labels[chosen],
    }


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """One deflated .npz; NumPy dates its members 1980, so equal arrays make equal bytes."""
    np.savez_compressed(path, **arrays)
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    print(f"{path}: {path.stat().st_size:,} bytes: {shapes}")


def main() -> None:
    """Write what can be made into the package, or another folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder with Fashion-MNIST's IDX files")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="where to write")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "fashion.npz", make_fashion(options.folder))
    try:
        digits = make_digits()
    except ImportError:
        print("digits.npz is left as it is: scikit-learn is not installed")
    else:
        write(options.out / "digits.npz", digits)


if __name__ == "__main__":
    main()
