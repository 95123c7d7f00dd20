"""Temporary folders that do not outlive their process, not even one that is killed."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_folder"]

CLEANER = """
read -r _
tries=0
while [ -e "$0" ] && [ $tries -lt 100 ]; do
    rm -rf -- "$0" 2>/dev/null || sleep 0.1
    tries=$((tries + 1))
done
"""
"""Waits until nobody has the other end of its input; whoever still writes gets ten seconds."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder that only this user can read; it is removed however this process ends.

    No process can clean up after SIGKILL, so that a shell waits beside this one for its end.

    Example:
        >>> with scratch_folder() as folder:
        ...     folder.is_dir()
        True
        >>> folder.exists()
        False
    """
    with tempfile.TemporaryDirectory(prefix="fedpbc-") as name:
        try:
            cleaner = subprocess.Popen(
                ["sh", "-c", CLEANER, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # What ends this process's group, such as Ctrl-C, is not meant for it.
                start_new_session=True,
            )
        except OSError:  # No shell, or no more processes: then only a kill leaves the folder.
            yield Path(name)
            return
        try:
            yield Path(name)
        finally:
            assert cleaner.stdin is not None
            cleaner.stdin.close()
            cleaner.wait()
