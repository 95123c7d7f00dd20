"""Files that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_secret"]


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first byte on; the old one or the new one.

    Example:
        >>> import stat, tempfile
        >>> place = Path(tempfile.mkdtemp()) / "node.key"
        >>> write_secret(place, b"whole")
        >>> place.read_bytes(), oct(stat.S_IMODE(place.stat().st_mode))
        (b'whole', '0o600')
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
