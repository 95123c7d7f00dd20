"""A server's processes: SuperLink, door, what starts the server app, and the job itself."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import socket
import sys
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedpbc.deployment.address import HERE, free_port
from fedpbc.deployment.ops.launch import Launch, need_flower
from fedpbc.deployment.ops.log_tail import LogTail
from fedpbc.deployment.ops.superlink import SuperLinkControl, clients_of_keys
from fedpbc.deployment.ops.supervisor import Supervisor
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.server_certificate import check_certificate
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.errors import FedpbcError, InputError, Verbatim, one_line
from fedpbc.storage.atomic import write_atomically

__all__ = ["ServerProcesses"]

LOG = logging.getLogger("fedpbc.deployment")
BEGIN_SECONDS = 60.0
"""How long a server app may take to begin."""
MOST_FAILURES = 5
"""How often it may fail in the same round."""
SUBMIT_SECONDS = 120.0
"""How long handing in the job may take."""
NO_ADDRESS = re.compile(r"bind on a|gaierror|address already in use|assign requested address", re.I)
"""What a door says that cannot listen where it should."""
ROOM = 2**20
"""Bytes of an answer beside its model."""


class ServerProcesses:
    """Runs the job of a folder to its end, whatever dies in between."""

    def __init__(
        self,
        folder: Path,
        supervisor: Supervisor,
        *,
        insecure: bool = False,
    ) -> None:
        """Check everything, and start nothing yet.

        Args:
            folder: with ``fleet.toml``, ``certificates`` and ``keys``.
            supervisor: keeps the processes.
            insecure: no encryption, and no keys.
        """
        need_flower()
        self.folder, self.supervisor = folder.resolve(), supervisor
        self.settings = read_fleet(folder / "fleet.toml")
        self.listen = self.settings.fleet.address
        certificates = None if insecure else self.folder / "certificates"
        self._known = KeyDirectory(self.folder / "keys")
        self._left_out: set[str] = set()
        self._ends: datetime | None = None
        self._warned = datetime.min.replace(tzinfo=UTC)
        if certificates is not None:
            self._ends = check_certificate(certificates)
            self._warn_of_end()
            if not self._keys_now():
                right = f"client-0.pub to {self._last_key}, or say --insecure"
                raise InputError("keys", Verbatim(f"{self.folder / 'keys'} without a key"), right)
        x0, _ = self.settings.first_model()
        self._largest = x0.numel() * x0.element_size() + ROOM
        self.launch = Launch(self.folder / "flower", HERE, free_port(), certificates, insecure)
        self._control = SuperLinkControl(self.launch)
        # None: nobody has been told yet.
        self._keys: dict[bytes, int] | None = None
        self._complaint = ""
        self._log = LogTail(self.folder / "server.log")
        self._submitted = 0.0
        self._was_there = False
        self._failed_at: list[int] = []

    def start(self) -> None:
        """Start everything."""
        self.launch.prepare()
        environment = self.launch.environment()
        database = self.launch.home / "superlink.db"
        self.supervisor.start("superlink", self.launch.superlink(database), environment)
        self._register(patience=60.0)
        self.supervisor.start("door", self._door(), environment)
        self.supervisor.start("superexec", self.launch.superexec(), environment)
        self._submit()

    def _door(self) -> list[str]:
        own = ["--listen", str(self.listen), "--superlink", self.launch.address]
        own += ["--largest-answer", str(self._largest)]
        if not self.launch.insecure:
            own += ["--certificates", str(self.launch.certificates)]
            own += ["--keys", str(self.folder / "keys")]
        return [sys.executable, "-m", "fedpbc.deployment.server.gateway", *own]

    def _register(self, patience: float) -> None:
        """Let in who has a key here; also those that were added, or taken away, meanwhile."""
        pinned: dict[int, int] | None = None
        insecure = self.launch.insecure
        keys = {} if insecure else self._keys_now()
        if keys == self._keys:
            return
        if insecure:
            # Nobody is registered, but a job can be submitted only once the SuperLink is there.
            wait_for(self.launch.port, patience)
        else:
            pinned = self._control.register(keys, patience)
            LOG.info("%d keys are registered", len(pinned))
        self._keys = keys
        write_atomically(self.folder / "nodes.json", json.dumps({"pinned": pinned}))

    def _keys_now(self) -> dict[bytes, int]:
        """Whose keys there are; files that are nobody's are each one warning."""
        known = self._known.now()
        keys = clients_of_keys(known, self.settings.clients)
        nobodys = {name for key, name in known.items() if b64decode(key) not in keys}
        for name in sorted(nobodys - self._left_out):
            right = f"the keys of this job are client-0.pub to {self._last_key}"
            LOG.warning("%s.pub is left out: %s", name, right)
        self._left_out = nobodys
        return keys

    @property
    def _last_key(self) -> str:
        return f"client-{self.settings.clients - 1}.pub"

    def _submit(self) -> None:
        """Submit the job, or submit it again: it goes on where its folder says it was."""
        environment = self.launch.environment()
        submit = self.launch.submit(self.folder)
        went_well, said = self.supervisor.run(submit, environment, SUBMIT_SECONDS)
        self._submitted, self._was_there = time.monotonic(), False
        if not went_well:
            # The SuperLink may be on its way up again.
            LOG.warning("the job cannot be submitted: %s", end_of(said))

    def tend(self) -> bool:
        """To be called every second or so; gives whether the job is done."""
        done = self._tend()
        for line in self._log.new_lines():
            self.supervisor.say("server", line)
        return done

    def _warn_of_end(self) -> None:
        """A line a day while the certificate that is in use ends soon."""
        now = datetime.now(UTC)
        if self._ends is None or now - self._warned < timedelta(days=1):
            return
        left = self._ends - now
        if left < timedelta(days=30):
            when = f"expires in {left.days} days" if left > timedelta(0) else "has expired"
            does = "'fedpbc fleet renew' makes a new one; restart the server then"
            LOG.warning("the server's certificate %s: %s", when, does)
            self._warned = now

    def _tend(self) -> bool:
        self._warn_of_end()
        if is_finished(self.folder, self.settings):
            return True
        if self.supervisor.quick_deaths("door") >= MOST_FAILURES:
            raise self._shut(end_of(" ".join(self.supervisor.last_words("door")[-3:])))
        self._register_again()
        if is_held(self.folder):
            self._was_there = True
        elif self._was_there or time.monotonic() - self._submitted > BEGIN_SECONDS:
            # It may have ended between the two looks.
            if is_finished(self.folder, self.settings):
                return True
            self._count_failure()
            LOG.warning("the server app has ended; the job is submitted again")
            self._submit()
        return False

    def _shut(self, said: str) -> FedpbcError:
        if NO_ADDRESS.search(said):
            right = f"an address that is free here ({said})"
            return InputError("listen", str(self.listen), right)
        said = said or "it said nothing"
        return FedpbcError(
            f"the door ends again and again: {said}; when that is mended, the same command goes on"
        )

    def _register_again(self) -> None:
        try:
            # There is more to tend to: if the SuperLink is away, it is asked again the next time.
            self._register(patience=1.0)
        except FedpbcError as error:
            # A file that is wrong now was right before: those that were let in stay.
            if str(error) != self._complaint:
                LOG.warning("keys are left as they were: %s", error)
            self._complaint = str(error)
        else:
            self._complaint = ""

    def _count_failure(self) -> None:
        at = rounds_done(self.folder)
        self._failed_at = [*[t for t in self._failed_at if t == at], at]
        if len(self._failed_at) >= MOST_FAILURES:
            said = [*self._log.last, *map(bytes.decode, self._log.new_lines())]
            reason = end_of(said[-1]) if said else "it said nothing"
            raise FedpbcError(
                f"the server app fails again and again in round {at}: {reason}; "
                "when that is mended, the same command goes on"
            )


def end_of(text: str) -> str:
    """The end of some output, on one line."""
    return " ".join(text.split())[-300:]


def wait_for(port: int, patience: float) -> None:
    """Until something answers at a port of this machine."""
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((HERE, port), timeout=1.0).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise FedpbcError(f"the SuperLink does not answer: {one_line(error)}") from None
        time.sleep(0.2)


def is_finished(folder: Path, settings: FleetSettings) -> bool:
    """Whether the job of a folder has had all its rounds."""
    try:
        done = json.loads((folder / "finished.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(done["rounds"] >= settings.config.general.rounds)


def is_held(folder: Path) -> bool:
    """Whether a server app is at work in a folder."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def rounds_done(folder: Path) -> int:
    """How many rounds are in the log."""
    try:
        return (folder / "rounds.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
