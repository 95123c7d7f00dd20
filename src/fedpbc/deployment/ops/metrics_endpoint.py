"""A fleet's status for Prometheus, as text over HTTP, on loopback only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedpbc.deployment.address import LOOPBACK
from fedpbc.deployment.ops.status import FleetLog, FleetStatus
from fedpbc.errors import FedpbcError, InputError
from fedpbc.text import printable

__all__ = ["metrics_served", "metrics_text"]

LOG = logging.getLogger("fedpbc.deployment")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_SECONDS = 5.0
"""How long a client of the endpoint may take for a request."""

Values = list[tuple[str, float]]


def metrics_text(status: FleetStatus) -> str:
    """A status in Prometheus' text format.

    Example:
        >>> from fedpbc.deployment.ops.status import StatusSettings
        >>> job = StatusSettings(
        ...     rounds=5, clients=0, algorithm="fedpbc", round_seconds=9, wait_for=1
        ... )
        >>> metrics_text(FleetStatus(job, 2, [], 27.0, 1.0)).splitlines()[2]
        'fedpbc_fleet_rounds_done 2'
    """
    # Of one that has left, nothing changes any more but its staleness, which would raise alarms.
    clients = status.members
    totals: list[tuple[str, str, str, float | None]] = [
        ("rounds_done", "gauge", "Rounds that are over.", status.rounds_done),
        ("rounds", "gauge", "Rounds of the job.", status.job.rounds),
        ("clients", "gauge", "Clients of the job.", status.job.clients),
        ("clients_connected", "gauge", "Clients that have ever connected.", status.connected),
        ("clients_answered", "gauge", "Clients counted in the last round.", status.answered),
        ("clients_changed", "gauge", "Clients refused for a change.", len(status.changed)),
        ("seconds_left", "gauge", "Estimated time to the end of the job.", status.seconds_left),
        ("idle_seconds", "gauge", "Since the last round ended.", status.idle_seconds),
        ("received_bytes_total", "counter", "Vectors in answers.", status.bytes_up),
        ("sent_bytes_total", "counter", "Vectors in messages.", status.bytes_down),
    ]
    lines: list[str] = []
    for name, kind, help, value in totals:
        if value is not None:
            lines += _metric(name, kind, help, [("", value)])
    for name, kind, help, values in (
        ("client_answered", "gauge", "Counted in the last round.", [c.answered for c in clients]),
        ("client_staleness_rounds", "gauge", "t - tau.", [c.staleness for c in clients]),
        ("client_refused_total", "counter", "Rounds refused in.", [c.refused for c in clients]),
    ):
        pairs = zip(clients, values, strict=True)
        lines += _metric(
            name, kind, help, [(f'{{client="{c.client}"}}', float(value)) for c, value in pairs]
        )
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, kind: str, help: str, values: Values) -> list[str]:
    full = f"fedpbc_fleet_{name}"
    described = [f"# HELP {full} {help}", f"# TYPE {full} {kind}"]
    return [*described, *(f"{full}{labels} {value:.15g}" for labels, value in values)]


@contextmanager
def metrics_served(folder: Path, port: int) -> Iterator[int | None]:
    """Serve the metrics of a server's folder while in the context; 0: not at all.

    Yields the port.
    """
    if not port:
        yield None
        return
    log, lock = FleetLog(folder), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is here")
                return
            try:
                # A log is read incrementally, by one reader at a time.
                with lock:
                    body = metrics_text(log.status()).encode()
            except (FedpbcError, OSError) as error:
                self.send_error(503, printable(str(error), 200))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: whoever asks does so every few seconds."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        expected = f"a port of this machine that is not in use ({error.strerror})"
        raise InputError("fleet.metrics_port", port, expected) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    LOG.info("metrics are at http://%s:%d/metrics", LOOPBACK, port)
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
