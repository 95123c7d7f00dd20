"""A server's processes: the gateway, and the server, which runs the job."""

from __future__ import annotations

import logging
import re
import sys
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedpbc.deployment.address import parse_address
from fedpbc.deployment.ops.flower_check import require_flower
from fedpbc.deployment.ops.supervisor import Service, Supervisor, end_of_output
from fedpbc.deployment.security.certificates import check_server_certificate
from fedpbc.deployment.security.key_directory import KeyDirectory, clients_by_key
from fedpbc.deployment.security.node_identity import node_number
from fedpbc.deployment.security.pinned_nodes import clients_before, write_pinned
from fedpbc.deployment.server.finished_job import damaged_results, rounds_finished
from fedpbc.deployment.server.round_log import ROUND_LOG
from fedpbc.deployment.server.upload_check import REPLY_OVERHEAD, UploadCheck
from fedpbc.deployment.settings import read_fleet
from fedpbc.deployment.sockets import socket_for
from fedpbc.errors import FedpbcError, InputError, TryAgainError
from fedpbc.limits import MAX_CLIENTS
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.storage.files import open_regular_file

__all__ = ["ServerProcesses"]

LOG = logging.getLogger("fedpbc.deployment")
MAX_FAILURES = 5
"""How often in a row the gateway, or the server in one round, may fail."""
WRONG_INPUT = 2
"""The exit code of a server that would fail again."""
BIND_ERROR = re.compile(r"bind on a|gaierror|address already in use|assign requested address", re.I)
"""Matches the output of a gateway that cannot listen at its address."""


class ServerProcesses:
    """Runs the job of a server's folder to its end, whichever process fails meanwhile."""

    def __init__(self, folder: Path, supervisor: Supervisor, *, insecure: bool = False) -> None:
        """Check ``fleet.toml``, ``certificates`` and ``keys``; nothing is started yet."""
        require_flower()
        self.folder, self.supervisor = folder.resolve(), supervisor
        self.settings = read_fleet(folder / "fleet.toml")
        self.listen = parse_address(self.settings.fleet.listen, "fleet.listen")
        certificates = self._certificates = None if insecure else self.folder / "certificates"
        self._key_directory = KeyDirectory(self.folder / "keys", clients_before(self.folder))
        self._last_key = f"client-{self.settings.clients - 1}.pub"
        self._ignored_keys: set[str] = set()
        self._certificate_end: datetime | None = None
        self._warned_at = datetime.min.replace(tzinfo=UTC)
        if certificates is not None:
            self._certificate_end = check_server_certificate(certificates)
            self._warn_of_expiry()
            if not self._read_keys():
                raise InputError(
                    f"{self.folder / 'keys'} contains no key: it should contain client-0.pub to "
                    f"{self._last_key}; or use --insecure"
                )
        parts = ModelParts.of(*self.settings.first_model())
        uploads = UploadCheck(self.settings.algorithm(parts.x0), parts)
        self._largest_answer = uploads.largest + REPLY_OVERHEAD
        self.socket = socket_for(self.folder, ".server")
        # None: nothing has been pinned yet.
        self._pinned: dict[bytes, int] | None = None
        self._exits = 0
        self._failed_rounds: list[int] = []
        self._damaged: set[str] = set()

    def start(self) -> None:
        """Start the gateway, and the server, which starts or resumes the job."""
        self._pin_keys()
        self.supervisor.start("server", self._server_command())
        self.supervisor.start("gateway", self._gateway_command())

    def _server_command(self) -> list[str]:
        options = [str(self.folder), "--socket", str(self.socket)]
        options += ["--insecure"] if self._certificates is None else []
        return [sys.executable, "-m", "fedpbc.deployment.server.server_process", *options]

    def _gateway_command(self) -> list[str]:
        options = ["--listen", str(self.listen), "--server", f"unix:{self.socket}"]
        options += ["--largest-answer", str(self._largest_answer)]
        if self._certificates is not None:
            options += ["--certificates", str(self._certificates)]
            options += ["--keys", str(self.folder / "keys")]
        return [sys.executable, "-m", "fedpbc.deployment.server.gateway", *options]

    def _pin_keys(self) -> None:
        """Tell the server which node is which client, if the keys in the folder changed."""
        keys = {} if self._certificates is None else self._read_keys()
        if keys == self._pinned:
            return
        pinned = {node_number(key): client for key, client in keys.items()}
        write_pinned(self.folder, None if self._certificates is None else pinned)
        LOG.info("%d keys known", len(pinned))
        self._pinned = keys

    def _read_keys(self) -> dict[bytes, int]:
        """Map each key to its client; a file of no client is logged once."""
        names_by_key = self._key_directory.names_by_key()
        clients = MAX_CLIENTS if self.settings.clients_can_join else self.settings.clients
        client_of = clients_by_key(names_by_key, clients)
        ignored = {n for key, n in names_by_key.items() if b64decode(key) not in client_of}
        for name in sorted(ignored - self._ignored_keys):
            expected = f"the keys of this job are client-0.pub to {self._last_key}"
            LOG.warning("%s.pub is ignored: %s", name, expected)
        self._ignored_keys = ignored
        return client_of

    def _warn_of_expiry(self) -> None:
        """Log a warning once per day in the certificate's last 30 days."""
        now = datetime.now(UTC)
        if self._certificate_end is None or now - self._warned_at < timedelta(days=1):
            return
        left = self._certificate_end - now
        if left < timedelta(days=30):
            state = f"expires in {left.days} days" if left > timedelta(0) else "has expired"
            remedy = "run 'fedpbc fleet renew', then restart the server"
            LOG.warning("the server's certificate %s: %s", state, remedy)
            self._warned_at = now

    def step(self) -> bool:
        """Supervise the job; to be called about once per second. Returns whether it is done."""
        self._warn_of_expiry()
        if self._is_finished():
            return True
        gateway = self.supervisor.service("gateway")
        if gateway.quick_exits >= MAX_FAILURES:
            raise self._gateway_error(" ".join(gateway.last_output[-3:]))
        self._pin_keys()
        server = self.supervisor.service("server")
        if server.exits > self._exits:
            # It may have finished between the two checks.
            if self._is_finished():
                return True
            self._exits = server.exits
            self._count_failure(server)
        return False

    def _is_finished(self) -> bool:
        """Whether the job has done all its rounds, and its results are as they were written."""
        if rounds_finished(self.folder) < self.settings.config.general.rounds:
            return False
        damaged = damaged_results(self.folder)
        for name in damaged:
            if name not in self._damaged:
                # The server does so from its last checkpoint.
                LOG.warning("%s is missing or damaged: the job is resumed to write it again", name)
        self._damaged.update(damaged)
        return not damaged

    def _gateway_error(self, output: str) -> FedpbcError:
        reason = end_of_output(output)
        if BIND_ERROR.search(reason):
            expected = f"an address of this machine that is not in use ({reason})"
            return InputError("listen", str(self.listen), expected)
        return TryAgainError(
            f"the gateway keeps failing: {reason}; fix this and run the same command to resume"
        )

    def _count_failure(self, server: Service) -> None:
        current = count_lines(self.folder / ROUND_LOG)
        self._failed_rounds = [t for t in self._failed_rounds if t == current] + [current]
        reason = end_of_output(server.last_output[-1] if server.last_output else "")
        if server.exit_code == WRONG_INPUT:
            raise FedpbcError(f"the server cannot go on: {reason}")
        if len(self._failed_rounds) >= MAX_FAILURES:
            raise TryAgainError(
                f"the server keeps failing in round {current}: {reason}; "
                "fix this and run the same command to resume"
            )


def count_lines(path: Path) -> int:
    """Return how many lines a file has, whatever is in them; 0 if it cannot be read."""
    try:
        with open_regular_file(path, follow_links=False) as file:
            return sum(1 for _ in file)
    except OSError:
        return 0
