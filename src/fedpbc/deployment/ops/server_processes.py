"""A server's processes: SuperLink, gateway and SuperExec, and the job that they run."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import sys
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedpbc.deployment.address import LOOPBACK, Address, free_port, parse_address
from fedpbc.deployment.log_lines import cleaned
from fedpbc.deployment.ops.flower_commands import FlowerCommands, require_flower
from fedpbc.deployment.ops.log_tail import LogTail
from fedpbc.deployment.ops.superlink import SuperLinkControl, clients_by_key
from fedpbc.deployment.ops.supervisor import Supervisor
from fedpbc.deployment.security.certificates import check_server_certificate
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.server.round_log import ROUND_LOG
from fedpbc.deployment.server.server_directory import damaged_results, rounds_finished
from fedpbc.deployment.server.upload_check import UploadCheck
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import open_regular_file

__all__ = ["ServerProcesses"]

LOG = logging.getLogger("fedpbc.deployment")
APP_START_SECONDS = 60.0
"""How long the server app may take to start."""
SUBMIT_SECONDS = 120.0
"""How long submitting the job may take."""
MAX_FAILURES = 5
"""How often in a row the gateway, or the server app in one round, may fail."""
BIND_ERROR = re.compile(r"bind on a|gaierror|address already in use|assign requested address", re.I)
"""Matches the output of a gateway that cannot listen at its address."""
ANSWER_OVERHEAD = 2**20
"""Bytes of an answer in addition to its vectors."""


class ServerProcesses:
    """Runs the job of a server's folder to its end, whichever process fails meanwhile."""

    def __init__(self, folder: Path, supervisor: Supervisor, *, insecure: bool = False) -> None:
        """Check ``fleet.toml``, ``certificates`` and ``keys``; nothing is started yet."""
        require_flower()
        self.folder, self.supervisor = folder.resolve(), supervisor
        self.settings = read_fleet(folder / "fleet.toml")
        self.listen = parse_address(self.settings.fleet.listen, "fleet.listen")
        certificates = None if insecure else self.folder / "certificates"
        self._key_directory = KeyDirectory(self.folder / "keys")
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
        x0, _ = self.settings.first_model()
        uploads = UploadCheck(self.settings.algorithm(x0))
        self._largest_answer = uploads.largest + ANSWER_OVERHEAD
        superlink = Address(LOOPBACK, free_port())
        self.commands = FlowerCommands(self.folder / "flower", superlink, certificates, insecure)
        self._control = SuperLinkControl(self.commands)
        # None: nothing has been registered yet.
        self._registered: dict[bytes, int] | None = None
        self._registration_error = ""
        self._log = LogTail(self.folder / "server.log")
        self._submitted_at = 0.0
        self._app_was_running = False
        self._failed_rounds: list[int] = []
        self._damaged: set[str] = set()

    def start(self) -> None:
        """Start all processes and submit the job."""
        self.commands.prepare_server()
        environment = self.commands.environment()
        database = self.commands.home / "superlink.db"
        self.supervisor.start("superlink", self.commands.superlink(database), environment)
        self._register(timeout=60.0)
        self.supervisor.start("gateway", self._gateway_command(), environment)
        self.supervisor.start("superexec", self.commands.superexec(), environment)
        self._submit()

    def _gateway_command(self) -> list[str]:
        options = ["--listen", str(self.listen), "--superlink", str(self.commands.server)]
        options += ["--largest-answer", str(self._largest_answer)]
        if not self.commands.insecure:
            options += ["--certificates", str(self.commands.certificates)]
            options += ["--keys", str(self.folder / "keys")]
        return [sys.executable, "-m", "fedpbc.deployment.server.gateway", *options]

    def _register(self, timeout: float) -> None:
        """Register the keys in the folder, and pin their nodes to clients, if they changed."""
        pinned: dict[int, int] | None = None
        insecure = self.commands.insecure
        keys = {} if insecure else self._read_keys()
        if keys == self._registered:
            return
        if insecure:
            # There is nothing to register, but submitting the job needs a running SuperLink.
            self._control.wait_until_up(timeout)
        else:
            pinned = self._control.register(keys, timeout)
            LOG.info("%d keys registered", len(pinned))
        self._registered = keys
        write_atomically(self.folder / "nodes.json", json.dumps({"pinned": pinned}))

    def _read_keys(self) -> dict[bytes, int]:
        """Map each key to its client; a file of no client is logged once."""
        names_by_key = self._key_directory.names_by_key()
        client_of = clients_by_key(names_by_key, self.settings.clients)
        ignored = {n for key, n in names_by_key.items() if b64decode(key) not in client_of}
        for name in sorted(ignored - self._ignored_keys):
            expected = f"the keys of this job are client-0.pub to {self._last_key}"
            LOG.warning("%s.pub is ignored: %s", name, expected)
        self._ignored_keys = ignored
        return client_of

    def _submit(self) -> None:
        """Submit the job, which resumes it if its folder has a checkpoint."""
        succeeded, output = self.supervisor.run(
            self.commands.submit(self.folder), self.commands.environment(), SUBMIT_SECONDS
        )
        self._submitted_at, self._app_was_running = time.monotonic(), False
        if not succeeded:
            # The SuperLink may be restarting.
            LOG.warning("cannot submit the job: %s", end_of_output(output))

    def step(self) -> bool:
        """Supervise the job; to be called about once per second. Returns whether it is done."""
        is_done = self._step()
        for line in self._log.new_lines():
            self.supervisor.log("server", cleaned(line))
        return is_done

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

    def _step(self) -> bool:
        self._warn_of_expiry()
        if self._is_finished():
            return True
        gateway = self.supervisor.service("gateway")
        if gateway.quick_exits >= MAX_FAILURES:
            raise self._gateway_error(" ".join(gateway.last_output[-3:]))
        self._update_registration()
        if is_locked(self.folder):
            self._app_was_running = True
        elif self._app_was_running or time.monotonic() - self._submitted_at > APP_START_SECONDS:
            # It may have finished between the two checks.
            if self._is_finished():
                return True
            self._count_failure()
            LOG.warning("the server app has ended: submitting the job again")
            self._submit()
        return False

    def _is_finished(self) -> bool:
        """Whether the job has done all its rounds, and its results are as they were written."""
        if rounds_finished(self.folder) < self.settings.config.general.rounds:
            return False
        damaged = damaged_results(self.folder)
        for name in damaged:
            if name not in self._damaged:
                # The server app does so from its last checkpoint.
                LOG.warning("%s is missing or damaged: the job is resumed to write it again", name)
        self._damaged.update(damaged)
        return not damaged

    def _gateway_error(self, output: str) -> FedpbcError:
        reason = end_of_output(output)
        if BIND_ERROR.search(reason):
            expected = f"an address of this machine that is not in use ({reason})"
            return InputError("listen", str(self.listen), expected)
        return FedpbcError(
            f"the gateway keeps failing: {reason}; fix this and run the same command to resume"
        )

    def _update_registration(self) -> None:
        try:
            # A short timeout, because there is more to supervise; the next step tries again.
            self._register(timeout=1.0)
        except FedpbcError as error:
            if str(error) != self._registration_error:
                LOG.warning("the registered keys stay unchanged: %s", error)
            self._registration_error = str(error)
        else:
            self._registration_error = ""

    def _count_failure(self) -> None:
        current = count_lines(self.folder / ROUND_LOG)
        self._failed_rounds = [t for t in self._failed_rounds if t == current] + [current]
        if len(self._failed_rounds) >= MAX_FAILURES:
            lines = [*self._log.last, *map(bytes.decode, self._log.new_lines())]
            raise FedpbcError(
                f"the server app keeps failing in round {current}: "
                f"{end_of_output(lines[-1] if lines else '')}; "
                "fix this and run the same command to resume"
            )


def end_of_output(text: str) -> str:
    """Return the end of a process's output on one line.

    Example:
        >>> end_of_output("a\\nb"), end_of_output("")
        ('a b', 'no output')
    """
    return " ".join(text.split())[-300:] or "no output"


def count_lines(path: Path) -> int:
    """Return how many lines a file has, whatever is in them; 0 if it cannot be read."""
    try:
        with open_regular_file(path, follow_links=False) as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def is_locked(folder: Path) -> bool:
    """Return whether a server app is running in a server's folder."""
    try:
        with open_regular_file(folder / ".lock", follow_links=False) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
