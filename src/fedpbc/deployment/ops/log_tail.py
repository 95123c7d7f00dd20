"""The lines that another process adds to a log."""

from __future__ import annotations

from collections import deque
from pathlib import Path

__all__ = ["LogTail"]


class LogTail:
    """Follows a log from its present end on, also where it is put aside (``.1``) for a new one.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp(), "a.log")
        >>> tail = LogTail(place)
        >>> _ = place.write_bytes(b"one\\ntwo")
        >>> tail.new_lines()
        [b'one\\n']
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._rest = (0, 0), b""
        self.last: deque[str] = deque(maxlen=10)
        if path.exists():
            status = path.stat()
            # Which file it is, and how much of it has been read.
            self._seen = status.st_ino, status.st_size

    def new_lines(self) -> list[bytes]:
        """What was added since the last time, in whole lines."""
        found: list[bytes] = []
        aside = self._path.with_name(self._path.name + ".1")
        for path in (aside, self._path):
            try:
                number = path.stat().st_ino
                if path is aside and number != self._seen[0]:
                    continue
                begin = self._seen[1] if number == self._seen[0] else 0
                with path.open("rb") as file:
                    file.seek(begin)
                    added = file.read()
            except FileNotFoundError:
                continue
            self._seen = number, begin + len(added)
            *whole, self._rest = (self._rest + added).split(b"\n")
            found += [line + b"\n" for line in whole]
        self.last.extend(line.decode(errors="replace").strip() for line in found)
        return found
