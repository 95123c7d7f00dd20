"""Which clients leave a job for good: ``left.json`` in the server's folder, a list of numbers.

``fedpbc fleet leave`` writes it; a running server reads it before each round. Imports no torch.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fedpbc.deployment.server.round_log import is_client_list
from fedpbc.errors import FedpbcError, one_line
from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_own_file

__all__ = ["Departures", "let_leave", "read_departures"]

LOG = logging.getLogger("fedpbc.deployment")
LEFT = "left.json"


class Departures:
    """The clients that are to leave, read again when the file changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[int, list[int]] = 0, []

    def clients(self) -> list[int]:
        """Who is to leave, or has left; of a damaged file, who was in it before."""
        try:
            modified = (self.folder / LEFT).stat().st_mtime_ns
            if modified != self._read[0]:
                self._read = modified, self._read[1]
                self._read = modified, read_departures(self.folder)
        except FileNotFoundError:
            self._read = 0, []
        except (OSError, FedpbcError) as error:
            LOG.warning("ignored %s: %s", LEFT, one_line(error))
        return self._read[1]


def read_departures(folder: Path) -> list[int]:
    """Read the file; a FedpbcError if it is damaged."""
    try:
        clients = parse_json(read_own_file(folder, LEFT, 1 << 26))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise FedpbcError(f"{folder / LEFT} is damaged: {one_line(error)}") from None
    if not is_client_list(clients):
        raise FedpbcError(f"{folder / LEFT} is damaged: it should be a list of clients")
    return clients


def let_leave(folder: Path, clients: list[int]) -> None:
    """Let clients leave before the next round."""
    every = sorted({*read_departures(folder), *clients})
    write_atomically(folder / LEFT, json.dumps(every) + "\n")
