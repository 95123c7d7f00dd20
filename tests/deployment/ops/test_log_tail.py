from __future__ import annotations

from fedpbc.deployment.ops.log_tail import LogTail


def test_only_new_and_complete_lines(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"old\n")
    tail = LogTail(path)
    assert tail.new_lines() == []
    with path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert tail.new_lines() == [b"one\n"]
        log.write(b"o\n")
        assert tail.new_lines() == [b"two\n"]
    assert list(tail.last) == ["one", "two"]


def test_a_rotated_log_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.log"
    tail = LogTail(path)
    assert tail.new_lines() == []
    path.write_bytes(b"one\n")
    assert tail.new_lines() == [b"one\n"]
    with path.open("ab") as log:
        log.write(b"two\n")
    path.rename(tmp_path / "a.log.1")
    path.write_bytes(b"three\n")
    assert tail.new_lines() == [b"two\n", b"three\n"]
