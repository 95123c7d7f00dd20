import io
import os
import pickle
import random
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpbc.data import load, parquet
from fedpbc.data.parquet import find_shards, picture, read_images
from fedpbc.errors import InputError

COLOUR, GREY = (32, 32, 3), (28, 28, 1)
FILE = Path("train-00000-of-00001.parquet")


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def random_image(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return pixels, Image.fromarray(pixels.squeeze())


@pytest.mark.parametrize("shape", [COLOUR, GREY])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_png_is_decoded_exactly(shape, level):
    pixels, image = random_image(shape)
    np.testing.assert_array_equal(
        picture(FILE, 0, encoded(image, compress_level=level), shape), pixels
    )


@pytest.mark.parametrize(
    ("convert", "kind"),
    [
        (lambda image: image.convert("L"), "PNG"),
        (lambda image: image.quantize(16), "PNG"),
        (lambda image: image, "JPEG"),
    ],
    ids=["grey", "palette", "jpeg"],
)
def test_other_modes_and_formats_become_rgb(convert, kind):
    data = encoded(convert(random_image(COLOUR)[1]), kind)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(picture(FILE, 0, data, COLOUR), expected)


def test_a_name_that_speaks_of_very_many_files(tmp_path):
    (tmp_path / f"train-00000-of-{10**20}.parquet").touch()
    with pytest.raises(InputError, match="every train file of one version"):
        find_shards(tmp_path, "train")


def test_another_size():
    small = encoded(Image.new("RGB", (4, 5)))
    with pytest.raises(InputError, match=r"an image of 4x5 pixels in row 7; .* 32x32 pixels$"):
        picture(FILE, 7, small, COLOUR)


def wrong_filter(data):
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start], "big")
    rows = bytearray(zlib.decompress(data[start + 4 : start + 4 + length]))
    rows[97] = 9
    chunk = b"IDAT" + zlib.compress(bytes(rows))
    head = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    return data[: start - 4] + head + data[start + 8 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no image",
        lambda data: data[:20],
        lambda data: data[:400],
        lambda data: data[:400] + bytes(30) + data[430:],
        wrong_filter,
    ],
    ids=["empty", "text", "head", "half", "flipped", "filter"],
)
def test_damage_is_reported_with_its_row(damage):
    data = damage(encoded(random_image(COLOUR)[1]))
    with pytest.raises(InputError, match=rf"{FILE} has a damaged image in row 2;"):
        picture(FILE, 2, data, COLOUR)


class Pickled:
    """Runs code when it is read back."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def write(folder: Path, split: str = "train", **options: object) -> Path:
    """A file of three images, as the hub has it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(random_image(GREY)[1]), "path": None} for _ in range(3)]
    table = pa.table({"image": images, "label": [0, 1, 2]}, **options)
    file = folder / f"{split}-00000-of-00001.parquet"
    pq.write_table(table, file)
    return file


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder" / "fashion_mnist"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        write(outside, split)
        name = f"{split}-00000-of-00001.parquet"
        (folder / name).symlink_to(outside / name)
    with pytest.raises(InputError, match=r"is a link out of the folder, which is not followed"):
        load("fashion_mnist", tmp_path / "folder")
    # Inside of it they are, and the folder itself may be reached by one.
    for split in ("train", "test"):
        name = f"{split}-00000-of-00001.parquet"
        (folder / name).unlink()
        write(tmp_path / "folder" / "stored", split)
        (folder / name).symlink_to(tmp_path / "folder" / "stored" / name)
    (tmp_path / "shortcut").symlink_to(tmp_path / "folder")
    assert len(load("fashion_mnist", tmp_path / "shortcut").train.labels) == 3


def test_nor_is_a_folder_that_is_one(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / "outside" / "fashion_mnist", split)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "fashion_mnist").symlink_to(tmp_path / "outside" / "fashion_mnist")
    with pytest.raises(InputError, match="is a link out of the folder, which is not followed"):
        load("fashion_mnist", tmp_path / "folder")


def test_the_hubs_cache_links_to_its_blobs(tmp_path):
    repository = tmp_path / "datasets--zalando-datasets--fashion_mnist"
    snapshot = repository / "snapshots" / "0123abc"
    for split in ("train", "test"):
        file = write(snapshot / "fashion_mnist", split)
        blob = repository / "blobs" / split
        blob.parent.mkdir(exist_ok=True)
        file.rename(blob)
        file.symlink_to(Path("../../../blobs") / split)
    assert len(load("fashion_mnist", snapshot).test.labels) == 3
    # The blobs of another repository are outside.
    blob.rename(tmp_path / "blob")
    file.unlink()
    file.symlink_to(tmp_path / "blob")
    with pytest.raises(InputError, match="is a link out of the folder"):
        load("fashion_mnist", snapshot)


def test_a_pipe_or_a_link_to_nothing_or_to_itself(tmp_path):
    name = "train-00000-of-00001.parquet"
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=r"is unreadable \(it is not a regular file\)"):
        find_shards(tmp_path, "train")
    for target in ("missing", name):
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(target)
        with pytest.raises(InputError, match="is unreadable"):
            find_shards(tmp_path, "train")


def test_reading_runs_no_code(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    code = pickle.dumps(Pickled(tmp_path / "ran"))
    # As an extension type of Python, which older versions of Arrow unpickled.
    metadata = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    metadata[b"ARROW:extension:metadata"] = code
    field = pa.field("label", pa.int64(), metadata=metadata)
    images = [{"bytes": code, "path": None}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([pa.field("image", kind), field], metadata={"pandas": code})
    file = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(pa.table([pa.array(images, kind), pa.array([1])], schema=schema), file)
    with pytest.raises(InputError, match="has a damaged image in row 0"):
        read_images([file], "image", GREY, 10)
    assert not (tmp_path / "ran").exists()


def test_no_image_starts_another_program(tmp_path, monkeypatch):
    # Pillow hands PostScript to Ghostscript.
    started = []
    monkeypatch.setattr("subprocess.check_call", lambda *given, **options: started.append(given))
    script = encoded(Image.new("RGB", (32, 32)), "EPS")
    with pytest.raises(InputError, match="has a damaged image in row 0"):
        picture(FILE, 0, script, COLOUR)
    assert not started


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_one_line_or_read(tmp_path, seed):
    file, draw = write(tmp_path), random.Random(seed)
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice([1, 3, 30])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    file.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
    # Anything but an InputError would fail the test.
    with suppress(InputError):
        images, labels, _ = read_images([file], "image", GREY, 10)
        assert len(images) == len(labels)


@pytest.mark.parametrize(
    ("repeats", "rows"), [(0, "0 rows"), (2, "6 rows or more")], ids=["fewer", "more"]
)
def test_another_number_of_rows_than_the_header_says(tmp_path, monkeypatch, repeats, rows):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / FILE
    images = [{"bytes": encoded(random_image(GREY)[1]), "path": None}] * 3
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2]}), file)
    batches = parquet._batches
    monkeypatch.setattr(parquet, "_batches", lambda *given: [*batches(*given)] * repeats)
    with pytest.raises(InputError, match=f"has {rows}, but its header says 3; it should have 3$"):
        read_images([file], shape=GREY, column="image", label="label", classes=3)
