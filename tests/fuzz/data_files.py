"""Folders of a data set's Parquet files."""

from __future__ import annotations

import io
import os
from random import Random
from typing import Any

from tests.fuzz import hostile
from tests.fuzz.apart import apart
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import template

TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
CODE = """\
from fedpbc import load
data = load({name!r}, {folder!r})
print(len(data.train.labels), data.fingerprint()[:8])
"""


def make(random: Random, place: Place) -> Case:
    """A data set that is loaded, or a small run on it."""
    folder = place.work / "data"
    source = template(place, "data")
    sound = random.random() < 0.1
    place.write(f"data/{TRAIN}", (source / TRAIN).read_bytes())
    place.write(f"data/{TEST}", (source / TEST).read_bytes())
    if not sound:
        for _ in range(random.choice((1, 1, 2))):
            random.choice((damage, damage, rename, another_table, special))(random, folder)
    if random.random() < 0.7:
        name = (
            "mnist" if sound or random.random() < 0.9 else random.choice(("cifar10", "digits", "x"))
        )
        code = CODE.format(name=name, folder="data")
        return Case([Step(code=code, expect="success" if sound else "any")])
    words = ("run", "--data", "mnist", "--data-dir", "data", "--model", "softmax", "--rounds", "1")
    words += ("--clients", "2", "--local-steps", "1", "--out", "out", "--links", "always")
    return Case([Step(words, expect="success" if sound else "any", writes=("out",))])


def parquet(images: list[Any], labels: list[Any], **columns: Any) -> bytes:
    """A table of encoded images and labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({"image": images, "label": labels, **columns}), file)
    return file.getvalue()


def picture(size: tuple[int, int] = (28, 28), mode: str = "L", kind: str = "PNG") -> bytes:
    """An encoded image."""
    from PIL import Image

    file = io.BytesIO()
    Image.new(mode, size, 7 if mode == "L" else None).save(file, kind)
    return file.getvalue()


def damage(random: Random, folder: Any) -> None:
    """Bytes of a file are not what they were."""
    path = folder / random.choice((TRAIN, TEST))
    if path.is_file():
        path.write_bytes(hostile.mutate(random, path.read_bytes()))


def rename(random: Random, folder: Any) -> None:
    """A file is missing, has another name, or is there twice."""
    path = folder / random.choice((TRAIN, TEST))
    if path.is_file():
        name = random.choice(
            (
                *("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test.parquet"),
                *("train-0-of-1.parquet", "train-00000-of-00000.parquet", "x\x1b[31m.parquet"),
                *("train-00000-of-99999999999999999999.parquet", "train-\udcff.parquet"),
            )
        )
        if random.random() < 0.5:
            path.rename(folder / name)
        else:
            (folder / name).write_bytes(path.read_bytes())


def another_table(random: Random, folder: Any) -> None:
    """A table of another form, or with other images."""
    image: Any = random.choice(
        (
            {"bytes": picture((27, 28))},
            {"bytes": picture(mode="RGB")},
            {"bytes": picture(kind="JPEG")},
            {"bytes": picture((20_000, 3), mode="1")},
            {"bytes": picture()[: random.randrange(60)]},
            {"bytes": b"\x1b[31m"},
            {"bytes": None},
            {"path": "mine.txt"},
            {"bytes": hostile.mutate(random, picture())},
            {"bytes": None, "path": "/etc/passwd"},
            "text",
            None,
            3,
        )
    )
    label: Any = random.choice((0, 9, 10, -1, None, 2**40, 1.5, "3", True))
    rows = random.choice((0, 1, 5))
    extra = {hostile.text(random): [1] * rows} if random.random() < 0.2 else {}
    path = folder / random.choice((TRAIN, TEST))

    def write() -> None:
        try:
            content = parquet([image] * rows, [label] * rows, **extra)
        except (ValueError, TypeError, UnicodeError, NotImplementedError):
            content = b"PAR1"
        path.write_bytes(content)

    # Arrow starts threads.
    if not path.is_dir() and not path.is_fifo() and not path.is_symlink():
        apart(write)


def special(random: Random, folder: Any) -> None:
    """No regular file."""
    path = folder / random.choice((TRAIN, TEST))
    if not path.is_file():
        return
    path.unlink()
    pick = random.randrange(5)
    if pick == 0:
        os.mkfifo(path)
    elif pick == 1:
        path.mkdir()
    elif pick == 2:
        path.symlink_to(random.choice(("/dev/zero", "nope", path.name, "../mine.txt")))
    elif pick == 3:
        path.write_bytes(b"")
