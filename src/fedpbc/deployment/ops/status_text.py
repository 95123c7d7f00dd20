"""A fleet's status in sentences, for a terminal and for a page."""

from __future__ import annotations

import time

from fedpbc.deployment.ops.status import FleetStatus
from fedpbc.text import format_duration

__all__ = ["changes", "format_bytes", "idle_warning", "progress", "summary", "totals", "traffic"]

IDLE_ROUNDS, IDLE_SECONDS = 3, 60
"""Warn if no round has ended in the time of so many rounds plus so many seconds."""


def summary(status: FleetStatus) -> str:
    """Return one line about the whole fleet."""
    return "; ".join(filter(None, [not_running(status), progress(status)]))


def not_running(status: FleetStatus) -> str:
    """That no server runs, and since when; empty if one does, or if the job is over.

    Example:
        >>> from fedpbc.deployment.ops.status import StatusSettings
        >>> job = StatusSettings(20, 2, "fedpbc", 60.0, 2)
        >>> not_running(FleetStatus(job, 0, [], None, None, is_running=False))
        'the server has not been started'
    """
    if status.is_running or status.is_over:
        return ""
    if status.last_sign is None:
        return "the server has not been started"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.last_sign))
    return f"the server is not running since {when}"


def progress(status: FleetStatus) -> str:
    """How far the job is."""
    job = status.job
    if not status.rounds_done:
        if status.connected < job.wait_for:
            return f"waiting for clients: {status.connected} of {job.wait_for} connected"
        connected = f"{status.connected} of {job.clients} clients connected"
        return f"{connected}; round 1 of {job.rounds}{' is running' if status.is_running else ''}"
    line = f"{job.algorithm}: {status.rounds_done} of {job.rounds} rounds done"
    line += f"; {status.answered} of {job.clients} clients answered in the last"
    if not status.is_over and status.seconds_left is not None:
        line += f"; about {format_duration(status.seconds_left)} left"
    return line


def totals(status: FleetStatus, shown: int) -> str:
    """Summarize all clients in one line."""
    clients, parts = status.clients, []
    if shown < len(clients):
        parts.append(f"the {shown} of {len(clients):,} clients absent longest")
    missing = len(status.members) - status.connected
    if missing:
        parts.append(f"{missing:,} never connected")
    staleness = [client.staleness for client in status.members]
    if status.rounds_done and staleness:
        mean = sum(staleness) / len(staleness)
        parts.append(f"staleness: mean {mean:.1f}, maximum {max(staleness)}")
    refused = sum(client.refused for client in clients)
    if refused:
        parts.append(f"{refused} answers refused: see the server's log for the reasons")
    return "; ".join(parts)


def traffic(status: FleetStatus) -> str:
    """Return how many bytes of vectors were sent and received; empty if the log has no bytes."""
    if not status.rounds_done or status.bytes_up is None or status.bytes_down is None:
        return ""
    received, sent = format_bytes(status.bytes_up), format_bytes(status.bytes_down)
    return f"vectors: {received} received, {sent} sent"


def changes(status: FleetStatus) -> str:
    """Return who is refused for another app or other data; empty if nobody is."""
    if not status.changed:
        return ""
    listed = [f"client {client} has {what}" for client, what in sorted(status.changed.items())]
    rest = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"{'; '.join(listed[:3])}{rest}: 'fedpbc fleet accept' accepts it"


def idle_warning(status: FleetStatus) -> str:
    """Return a line if the server runs, but seems to hang."""
    idle = status.idle_seconds or 0.0
    limit = IDLE_ROUNDS * status.job.round_seconds + IDLE_SECONDS
    if status.is_over or not status.is_running or not status.rounds_done or idle < limit:
        return ""
    return f"no round has ended for {format_duration(idle)}: does the server hang?"


def format_bytes(count: int) -> str:
    """Format a number of bytes.

    Example:
        >>> format_bytes(999), format_bytes(31_400), format_bytes(2_000_000_000)
        ('999 B', '31.4 kB', '2.0 GB')
    """
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
