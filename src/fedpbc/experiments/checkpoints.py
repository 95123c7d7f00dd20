"""A run's checkpoints on disk: the last two, each complete or recognisably damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpbc.simulation.last_reports import DamagedReportsError
from fedpbc.storage.removal import remove_entries
from fedpbc.storage.tensors import DamagedCheckpointError, load_state, peek_state, save_state

__all__ = ["Checkpoints", "rounds_of"]

KEPT = 2


class Checkpoints:
    """The files ``checkpoint-R.safetensors`` of a run, R the rounds completed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def paths(self) -> list[Path]:
        """The files, newest first."""
        files = self._directory.glob("checkpoint-*.safetensors")
        numbered = [file for file in files if file.stem.removeprefix("checkpoint-").isdecimal()]
        return sorted(numbered, key=rounds_of, reverse=True)

    def save(self, rounds: int, state: Mapping[str, Any]) -> None:
        """Write the state after so many rounds, and remove all but the last two."""
        save_state(self._directory / f"checkpoint-{rounds:07d}.safetensors", state)
        paths = self.paths()
        # A later one was unusable, or the run would have continued from it; metrics are cut, too.
        later = [path for path in paths if rounds_of(path) > rounds]
        self._remove([*later, *paths[len(later) + KEPT :]])

    def load(self, restore: Callable[[Any], None] = lambda state: None) -> tuple[Any, list[str]]:
        """Return the newest intact state, or None, and what is wrong with newer ones.

        ``restore`` is called with a state. It may find that the last reports, which are in a file
        of their own, are damaged.
        """
        complaints: list[str] = []
        for path in self.paths():
            try:
                state = load_state(path)
                restore(state)
            except DamagedCheckpointError as error:
                complaints.append(str(error))
            except DamagedReportsError as error:
                complaints.append(f"{path} is unusable: {error}")
            else:
                return state, complaints
        return None, complaints

    def peek(self) -> Iterator[Any]:
        """The states of all readable checkpoints, without their tensors."""
        for path in self.paths():
            with suppress(DamagedCheckpointError):  # Nothing can be resumed from those.
                yield peek_state(path)

    def remove(self) -> None:
        """Remove all checkpoints."""
        self._remove(self.paths())

    def _remove(self, paths: Iterable[Path]) -> None:
        remove_entries(self._directory, [path.name for path in paths])


def rounds_of(checkpoint: Path) -> int:
    """The rounds completed when a checkpoint was written."""
    return int(checkpoint.stem.removeprefix("checkpoint-"))
