"""Follow the log that another process writes."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from fedpbc.storage.files import open_regular_file

__all__ = ["LogTail"]


class LogTail:
    """Reads the lines appended to a log after construction, across a rotation to ``.1``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The file that was read last, as an inode, and how many of its bytes.
        self._position, self._partial = (0, 0), b""
        self.last: deque[str] = deque(maxlen=10)
        if path.exists():
            status = path.stat()
            self._position = status.st_ino, status.st_size

    def new_lines(self) -> list[bytes]:
        """Return the complete lines appended since the last call."""
        lines: list[bytes] = []
        rotated = self._path.with_name(self._path.name + ".1")
        for path in (rotated, self._path):
            try:
                inode = path.stat().st_ino
                if path is rotated and inode != self._position[0]:
                    continue
                start = self._position[1] if inode == self._position[0] else 0
                with open_regular_file(path, follow_links=False) as file:
                    file.seek(start)
                    added = file.read()
            except OSError:
                continue
            self._position = inode, start + len(added)
            *complete, self._partial = (self._partial + added).split(b"\n")
            lines += [line + b"\n" for line in complete]
        self.last.extend(line.decode(errors="replace").strip() for line in lines)
        return lines
