import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpbc.data.parquet import _decode
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
        _decode(FILE, 0, encoded(image, compress_level=level), shape), pixels
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
    np.testing.assert_array_equal(_decode(FILE, 0, data, COLOUR), expected)


def test_another_size():
    small = encoded(Image.new("RGB", (4, 5)))
    with pytest.raises(InputError, match=r"an image of 4x5 pixels in row 7; .* 32x32 pixels$"):
        _decode(FILE, 7, small, COLOUR)


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
        _decode(FILE, 2, data, COLOUR)
