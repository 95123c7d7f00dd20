import io
import zlib

import numpy as np
import pytest
from PIL import Image

from fedpbc.data import png

COLOUR, GREY = (32, 32, 3), (28, 28, 1)


def packed(picture, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(file, kind, **options)
    return file.getvalue()


def pictures(count, shape, seed=0):
    # Smooth as well as noisy rows, which encoders filter differently.
    random = np.random.default_rng(seed)
    steps = random.integers(0, 9, (count, *shape)).cumsum(axis=1).cumsum(axis=2)
    noise = random.integers(0, 256, (count, *shape))
    return np.where(random.random((count, shape[0], 1, 1)) < 0.3, noise, steps).astype(np.uint8)


def chunks(data):
    position = 8
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        yield data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        position += 12 + length


def rebuilt(parts):
    whole = b"\x89PNG\r\n\x1a\n"
    for kind, content in parts:
        checksum = zlib.crc32(kind + content).to_bytes(4, "big")
        whole += len(content).to_bytes(4, "big") + kind + content + checksum
    return whole


@pytest.mark.parametrize("shape", [COLOUR, GREY])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_plain_pictures_come_back_the_quick_way(shape, level, monkeypatch):
    monkeypatch.setattr(png, "_decode_one", None)
    expected = pictures(40, shape)
    decoded = png.decode([packed(p, compress_level=level) for p in expected], shape)
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("shape", [COLOUR, GREY])
def test_every_filter_in_every_row(shape):
    # Any bytes are a picture, however filtered: no encoder would mix filters so thoroughly.
    height, width, channels = shape
    random = np.random.default_rng(1)
    header = dict(chunks(packed(pictures(1, shape)[0])))[b"IHDR"]
    files = []
    for _ in range(50):
        rows = random.integers(0, 256, (height, 1 + width * channels), dtype=np.uint8)
        rows[:, 0] = random.integers(0, 5, height)
        data = zlib.compress(rows.tobytes())
        files.append(rebuilt([(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]))
    expected = [np.asarray(Image.open(io.BytesIO(file))).reshape(shape) for file in files]
    np.testing.assert_array_equal(png.decode(files, shape), expected)


def test_unusual_pictures_among_plain_ones():
    plain = pictures(3, COLOUR)
    grey = Image.fromarray(plain[0]).convert("L")
    palette = Image.fromarray(plain[1]).quantize(16)
    files = [packed(plain[0]), b"", packed(plain[1]), b"", packed(plain[2])]
    for place, unusual in ((1, grey), (3, palette)):
        file = io.BytesIO()
        unusual.save(file, "PNG")
        files[place] = file.getvalue()
    decoded = png.decode(files, COLOUR)
    np.testing.assert_array_equal(decoded[[0, 2, 4]], plain)
    np.testing.assert_array_equal(decoded[1], np.asarray(grey.convert("RGB")))
    np.testing.assert_array_equal(decoded[3], np.asarray(palette.convert("RGB")))


def test_data_in_several_chunks_with_others_between():
    picture = pictures(1, COLOUR)[0]
    parts = dict(chunks(packed(picture)))
    cut = len(parts[b"IDAT"]) // 2
    split = rebuilt(
        [
            (b"IHDR", parts[b"IHDR"]),
            (b"tEXt", b"Comment\0IEND IDAT"),
            (b"IDAT", parts[b"IDAT"][:cut]),
            (b"IDAT", parts[b"IDAT"][cut:]),
            (b"IEND", b""),
        ]
    )
    assert png._plain_rows(split, COLOUR) is not None
    np.testing.assert_array_equal(png.decode([split], COLOUR)[0], picture)


def test_no_pictures():
    assert png.decode([], GREY).shape == (0, 28, 28, 1)


def test_another_size():
    small = packed(np.zeros((5, 4, 3), np.uint8))
    with pytest.raises(png.PictureError, match="a picture of 4x5 pixels") as caught:
        png.decode([packed(pictures(1, COLOUR)[0]), small], COLOUR)
    assert caught.value.position == 1


def wrong_filter(data):
    parts = dict(chunks(data))
    rows = bytearray(zlib.decompress(parts[b"IDAT"]))
    rows[97] = 9
    parts[b"IDAT"] = zlib.compress(bytes(rows))
    return rebuilt(parts.items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no picture",
        lambda data: data[:20],
        lambda data: data[:400],
        lambda data: data[:400] + bytes(30) + data[430:],
        wrong_filter,
    ],
    ids=["empty", "text", "head", "half", "flipped", "filter"],
)
def test_damage_is_noticed_and_placed(damage):
    good = [packed(p) for p in pictures(3, COLOUR)]
    with pytest.raises(png.PictureError, match="a damaged picture") as caught:
        png.decode([good[0], good[1], damage(good[2])], COLOUR)
    assert caught.value.position == 2
