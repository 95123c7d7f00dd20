from __future__ import annotations

from fedpbc.deployment.ops.log_tail import LogTail


def test_only_what_is_added_and_only_whole_lines(tmp_path):
    place = tmp_path / "a.log"
    place.write_bytes(b"old\n")
    tail = LogTail(place)
    assert tail.new_lines() == []
    with place.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert tail.new_lines() == [b"one\n"]
        log.write(b"o\n")
        assert tail.new_lines() == [b"two\n"]
    assert list(tail.last) == ["one", "two"]


def test_a_log_that_is_put_aside_is_read_to_its_end(tmp_path):
    place = tmp_path / "a.log"
    tail = LogTail(place)
    assert tail.new_lines() == []
    place.write_bytes(b"one\n")
    assert tail.new_lines() == [b"one\n"]
    with place.open("ab") as log:
        log.write(b"two\n")
    place.rename(tmp_path / "a.log.1")
    place.write_bytes(b"three\n")
    assert tail.new_lines() == [b"two\n", b"three\n"]
