"""The server app: Flower's side of the server. Its run configuration names the job's folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.flower.folder import ServerFolder
from fedpbc.flower.ledger import Ledger
from fedpbc.flower.parcel import Parcel, ParcelError
from fedpbc.flower.records import from_records, to_records
from fedpbc.flower.serve import Reply, Server
from fedpbc.flower.settings import read_fleet

__all__ = ["app"]

LOG = logging.getLogger("fedpbc.flower")
LARGEST_LOG = 2**23
LIST_SECONDS = 1.0
"""How often the SuperLink is asked who is there."""
GUESSES = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
}
"""What the SuperLink says where nothing came: it has expired, or a node seems to be offline.

That is no answer: a node may be back before the round is over.
"""

app = ServerApp()


class FlowerPost:
    """Messages over Flower's grid, pushed and pulled by ourselves: its own loop sleeps 3 s."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._nodes: list[int] = []
        self._listed = -LIST_SECONDS

    def nodes(self) -> Iterable[int]:
        """Who is online, by Flower's own heartbeats."""
        if time.monotonic() - self._listed >= LIST_SECONDS:
            self._nodes = list(self._grid.get_node_ids())
            self._listed = time.monotonic()
        return self._nodes

    def send(self, node: int, parcel: Parcel, seconds: float) -> str | None:
        """Push one message."""
        kind = "query" if parcel.kind == "hello" else "train"
        message = Message(to_records(parcel), node, kind, ttl=seconds)
        pushed = list(self._grid.push_messages([message]))
        return pushed[0] or None if pushed else None

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """Pull what is there."""
        if not messages:
            return []
        pulled = self._grid.pull_messages(messages)
        return [_reply(m) for m in pulled if not (m.has_error() and m.error.code in GUESSES)]


def _reply(message: Message) -> Reply:
    about = message.metadata
    if message.has_error():
        reason = f"{message.error.reason or 'it failed'} (code {message.error.code})"
        return Reply(about.reply_to_message_id, about.src_node_id, None, reason)
    try:
        parcel = from_records(message.content)
    except ParcelError as error:
        return Reply(about.reply_to_message_id, about.src_node_id, None, str(error))
    return Reply(about.reply_to_message_id, about.src_node_id, parcel)


def main(grid: Grid, context: Context) -> None:
    """Run the job in the folder that the run's configuration names, to its end."""
    named = str(context.run_config.get("folder", ""))
    if not Path(named or "missing").is_dir():
        raise InputError("folder", named, "the job's folder, as -c 'folder=\"/srv/fleet\"'")
    with logging_to(Path(named) / "server.log"):
        try:
            serve_job(grid, Path(named))
        except FedpbcError as error:
            LOG.error("fedpbc: %s", one_line(error))
            raise
        except Exception:
            LOG.exception("the server app failed")
            raise


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write our lines to a file of the job: Flower throws a server app's output away."""
    handler = RotatingFileHandler(path, maxBytes=LARGEST_LOG, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        handler.close()


def serve_job(grid: Grid, path: Path) -> None:
    """Everything from the folder's ``fleet.toml`` on."""
    settings = read_fleet(path / "fleet.toml")
    x0, layout = settings.first_model()
    with ServerFolder(path) as folder:
        ledger = Ledger(settings.algorithm(x0), settings.training, folder.reports)
        server = Server(
            ledger,
            folder,
            FlowerPost(grid),
            rounds=settings.config.general.rounds,
            layout=layout,
            sent=settings.sent(),
            fleet=settings.fleet,
        )
        server.run()


app.main()(main)
