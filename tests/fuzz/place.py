"""The scratch folder of a case: a working folder, and files around it that must not change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

Entry = tuple[str, str]
"""Its type, and a hash of the content or a link's target."""

CANARIES = {
    "above.txt": "above the working folder",
    "home/.config/mine.toml": "rounds = 3\n",
    "home/notes.txt": "at home",
    "work/mine.txt": "beside everything",
    "work/mine/seed-0/config.toml": 'algorithm = "fedavg"\nlinks = "always"\nrounds = 2\n',
    "work/mine/seed-0/metrics.jsonl": '{"round": 1}\n',
    "work/mine/notes.txt": "of a folder beside everything",
}


PRIVATE = (
    "home/notes.txt",
    "work/mine.txt",
    "work/elsewhere/",
    "work/elsewhere-folder/",
    "work/mine/",
)
"""What links in a damaged folder lead to: no command on that folder may read it."""


@dataclass(frozen=True)
class Place:
    """Where a case happens."""

    root: Path
    templates: Path

    @property
    def work(self) -> Path:
        """The working folder of every step."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        """Where temporary files go; empty afterwards."""
        return self.root / "tmp"

    def prepare(self) -> None:
        """Make the folders and the files that must not change."""
        self.temporary.mkdir(parents=True)
        for name, text in CANARIES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file in the working folder."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def snapshot(self) -> dict[str, Entry]:
        """Everything there is, with its content."""
        return dict(entries(self.root, ""))

    def changes(self, before: dict[str, Entry], writes: Iterable[str]) -> list[str]:
        """What changed outside of ``writes``, which are relative to the working folder."""
        allowed = [self.relative(name) for name in writes]
        after = self.snapshot()
        changed = []
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) == after.get(name) or "__pycache__" in name:
                continue
            inside = any(name == a or name.startswith(f"{a}/") or a == "" for a in allowed)
            # A folder on the way to what was asked for.
            parent = any(a.startswith(f"{name}/") for a in allowed) and name not in before
            if name in CANARIES or not (inside or parent):
                verb = (
                    "removed" if name not in after else "new" if name not in before else "changed"
                )
                changed.append(f"{verb}: {name}")
        return changed

    def relative(self, name: str) -> str:
        """A path as a snapshot names it."""
        try:
            # A ~ is left to the shell: the name of a user who does not exist is that of a folder.
            inside = Path(os.path.normpath(self.work / name)).relative_to(self.root).as_posix()
        except ValueError:
            return "/outside"
        return "" if inside == "." else inside


def entries(folder: Path, prefix: str) -> Iterable[tuple[str, Entry]]:
    """All paths below a folder, with type and content; links are not followed."""
    try:
        listed = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        name = prefix + entry.name
        yield name, described(Path(entry.path))
        if entry.is_dir(follow_symlinks=False):
            yield from entries(Path(entry.path), f"{name}/")


def described(path: Path) -> Entry:
    """What stands at a path."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", str(path.readlink())
    if stat.S_ISDIR(mode):
        return "folder", ""
    if not stat.S_ISREG(mode):
        return "special", ""
    return "file", sha256(path.read_bytes()).hexdigest()
