"""The lines that another process adds to a log."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

__all__ = ["Tail"]


class Tail:
    """Follows a log from its present end on, also where it is put aside for a new one.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp(), "a.log")
        >>> tail = Tail(place)
        >>> _ = place.write_bytes(b"one\\ntwo")
        >>> tail.new_lines()
        [b'one\\n']
        >>> tail.close()
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        self.last: deque[str] = deque(maxlen=10)
        if path.exists():
            self._file = path.open("rb")
            self._file.seek(0, 2)

    def new_lines(self) -> list[bytes]:
        """What was added since the last time, in whole lines."""
        found: list[bytes] = []
        while True:
            if self._file is None:
                if not self._path.exists():
                    break
                self._file = self._path.open("rb")
            *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
            found += [line + b"\n" for line in whole]
            if self._is_current():
                break
            # It was put aside, and has been read to its end.
            self.close()
        self.last.extend(line.decode(errors="replace").strip() for line in found)
        return found

    def _is_current(self) -> bool:
        assert self._file is not None
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return True
        return now.st_ino == os.fstat(self._file.fileno()).st_ino

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
