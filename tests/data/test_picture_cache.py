"""Decoded pictures are kept between runs, and used only for the very files they came from."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedpbc.data import picture_cache
from fedpbc.data.picture_cache import cache_folder, cached_pictures


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPBC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(picture_cache, "WORTHWHILE", 3)
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.parquet"
    path.write_bytes(b"encoded")
    return path


class Decoder:
    """Counts how often it is called; its pictures tell which time it was."""

    def __init__(self, count=4, clients=()):
        self.calls, self.count, self.clients = 0, count, clients

    def __call__(self):
        self.calls += 1
        images = np.full((self.count, 2, 2, 3), self.calls, dtype=np.uint8)
        return images, np.arange(self.count), list(self.clients)


def test_pictures_are_decoded_once(cache, file):
    decode = Decoder(clients=["ada", "bob", "ada", "eve"])
    first = cached_pictures([file], ["image"], decode)
    again = cached_pictures([file], ["image"], decode)
    assert decode.calls == 1
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one, other)
    assert again[0].dtype == np.uint8
    assert again[1].dtype == np.int64
    assert again[2] == ["ada", "bob", "ada", "eve"]


def test_other_settings_and_changed_files_are_decoded_again(cache, file):
    decode = Decoder()
    cached_pictures([file], ["image"], decode)
    cached_pictures([file], ["img"], decode)
    assert decode.calls == 2
    # The same size at another time, as after a repair of the file.
    os.utime(file, ns=(1, 1))
    assert cached_pictures([file], ["image"], decode)[0].max() == 3
    file.write_bytes(b"other content")
    os.utime(file, ns=(1, 1))
    assert cached_pictures([file], ["image"], decode)[0].max() == 4


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "folder"])
def test_a_damaged_cache_is_not_used(cache, file, damage):
    decode = Decoder()
    cached_pictures([file], ["image"], decode)
    (stored,) = cache.iterdir()
    content = bytearray(stored.read_bytes())
    if damage == "flipped":
        content[content.index(b"\x01" * 12)] ^= 255
    if damage == "folder":
        stored.unlink()
        stored.mkdir()
    else:
        stored.write_bytes({"short": content[:-40], "empty": b""}.get(damage, content))
    images, _, _ = cached_pictures([file], ["image"], decode)
    assert (images == 2).all()


def test_few_pictures_are_not_worth_a_file(cache, file):
    cached_pictures([file], ["image"], Decoder(count=2))
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(cache, file):
    cache.write_bytes(b"a file in its place")
    decode = Decoder()
    for _ in range(2):
        assert len(cached_pictures([file], ["image"], decode)[0]) == 4
    assert decode.calls == 2


def test_what_was_not_used_for_long_makes_room(cache, file, monkeypatch):
    for k, name in enumerate(("a", "b", "c")):
        cached_pictures([file], [name], Decoder())
        newest = max(cache.iterdir(), key=lambda each: each.stat().st_mtime_ns)
        os.utime(newest, (k, k))
    oldest = min(cache.iterdir(), key=lambda each: each.stat().st_mtime)
    monkeypatch.setattr(picture_cache, "MAX_BYTES", 3 * oldest.stat().st_size)
    cached_pictures([file], ["d"], Decoder())
    assert len(list(cache.iterdir())) == 3
    assert not oldest.exists()


def test_only_the_user_can_read_it(cache, file):
    cached_pictures([file], ["image"], Decoder())
    (stored,) = cache.iterdir()
    assert stored.stat().st_mode & 0o077 == 0
    assert cache.stat().st_mode & 0o077 == 0


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDPBC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedpbc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fedpbc"
    monkeypatch.setenv("FEDPBC_CACHE", "")
    assert cache_folder() is None
    decode = Decoder()
    cached_pictures([], [], decode)
    cached_pictures([], [], decode)
    assert decode.calls == 2
