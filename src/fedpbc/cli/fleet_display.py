"""Show a fleet's status: as a table in a terminal, and as one line per round elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedpbc.cli.terminal import open_console, say
from fedpbc.deployment.ops.status import ClientStatus, FleetLog, FleetStatus
from fedpbc.deployment.ops.status_text import (
    changes,
    idle_warning,
    progress,
    summary,
    totals,
    traffic,
)
from fedpbc.report.text_table import plain
from fedpbc.text import format_duration

__all__ = ["fleet_table", "watch"]

MAX_CLIENTS = 30
"""Clients in the table; of more, those that were absent longest."""
GAP = "  "
OTHER_LINES = 10
"""Lines of the display in addition to its clients."""
REFRESH_SECONDS = 1.0

Links = Mapping[int, bool]
"""Whether each client's link is up."""


def fleet_table(
    status: FleetStatus,
    *,
    width: int = 80,
    max_clients: int = MAX_CLIENTS,
    links: Links | None = None,
) -> Group:
    """Return a table of the clients between a summary and totals.

    ``links`` are known only in a demo, which cuts them.
    """
    clients = status.longest_absent(max_clients)
    rows = [[_link(client, links), *_numbers(client)] for client in clients]
    nodes = [plain("–" if client.node is None else client.node) for client in clients]
    # In a narrow terminal only the node's number is truncated: it is long, and serves only to find
    # the node in the server's log.
    heads = ["link", "last\ncontact", "ago", "rounds\nowed", "stale-\nness", "refused"]
    widths = [
        max([len(part) for part in head.split("\n")] + [len(row[k]) for row in rows])
        for k, head in enumerate(heads)
    ]
    left = width - len(GAP) * (len(heads) + 1) - len("client") - sum(widths)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("node", no_wrap=True, overflow="ellipsis", max_width=max(left, 6))
    for k, head in enumerate(heads):
        table.add_column(head, justify="right" if k else "left", no_wrap=True)
    for client, node, row in zip(clients, nodes, rows, strict=True):
        table.add_row(str(client.client), node, *row)
    parts: list[RenderableType] = [plain(summary(status), limit=300), Text(), table, Text()]
    parts += [
        plain(line, limit=300)
        for line in (
            totals(status, len(clients)),
            traffic(status),
            changes(status),
            idle_warning(status),
        )
        if line
    ]
    return Group(*parts)


def _link(client: ClientStatus, links: Links | None) -> Text:
    if links is not None:
        up = links.get(client.client)
        return Text("–") if up is None else Text("up") if up else Text("cut", style="bold red")
    style = "" if client.answered else "bold red" if client.is_refused else "yellow"
    return plain(client.link, style)


def _numbers(client: ClientStatus) -> list[Text]:
    ago = client.seconds_ago
    values = [
        client.last_round,
        None if ago is None else format_duration(ago),
        client.owed,
        client.staleness,
        client.refused or None,
    ]
    return [plain("–" if value is None else value) for value in values]


def list_cut_links(links: Links | None) -> str:
    """Return the clients whose links are cut, to append to a line.

    Example:
        >>> list_cut_links({0: True, 1: False, 2: False})
        '; cut: 1, 2'
    """
    cut = [str(client) for client, up in (links or {}).items() if not up]
    text = ", ".join(cut[:10]) + (f" and {len(cut) - 10} more" if len(cut) > 10 else "")
    return f"; cut: {text}" if cut else ""


def watch(
    folder: Path,
    *,
    console: Console | None = None,
    is_over: Callable[[FleetStatus], bool] = lambda status: status.is_over,
    links: Callable[[], Links | None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> FleetStatus:
    """Show a fleet until it is over, and return its last status.

    In a terminal the table is updated in place; elsewhere one line per round is printed.
    """
    log, console = FleetLog(folder), console or open_console()
    status = log.status()
    if not console.is_terminal:
        printed = ("", True)
        while True:
            current = progress(status).partition(";")[0], status.is_running
            if current != printed:
                say(summary(status) + list_cut_links(links()), flush=True)
                printed = current
            if is_over(status):
                return status
            sleep(REFRESH_SECONDS)
            status = log.status()

    def table() -> Group:
        max_clients = max(3, min(MAX_CLIENTS, console.height - OTHER_LINES))
        return fleet_table(status, width=console.width, max_clients=max_clients, links=links())

    with Live(table(), console=console, auto_refresh=False) as live:
        while not is_over(status):
            sleep(REFRESH_SECONDS)
            status = log.status()
            live.update(table(), refresh=True)
    return status
