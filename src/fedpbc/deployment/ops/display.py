"""How a fleet's state is shown to people: a table, and a line where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedpbc.deployment.ops.status import ClientStatus, FleetLog, FleetStatus

__all__ = ["fleet_table", "in_words", "line_of", "watch"]

MOST = 30
"""So many clients are shown; of more, those that were away longest."""
GAP = "  "
AROUND = 9
"""Lines that the table needs beside its clients."""
LOOK_EVERY = 1.0
QUIET_ROUNDS, QUIET_SECONDS = 3, 60
"""After so many rounds' time and so many seconds without a new round something is wrong."""

Links = Mapping[int, bool]


def fleet_table(
    status: FleetStatus, *, width: int = 80, most: int = MOST, links: Links | None = None
) -> Group:
    """The table, a line above it and one below.

    Args:
        status: how the fleet does.
        width: of the terminal.
        most: clients that are shown.
        links: whether each link is up, where that is known: in a demo, which cuts them.
    """
    shown = status.worst(most)
    rows = [[_link(one, links), *_numbers(one)] for one in shown]
    nodes = ["–" if one.node is None else str(one.node) for one in shown]
    # All numbers are shown whole, but for the node's where the terminal is narrow: it is long, and
    # there only to be found again in the server's log.
    heads = ["link", "last\ncontact", "ago", "rounds\nowed", "stale-\nness", "refused"]
    wide = [
        max([len(part) for part in head.split("\n")] + [len(row[k]) for row in rows])
        for k, head in enumerate(heads)
    ]
    left = width - len(GAP) * (len(heads) + 1) - len("client") - sum(wide)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("node", no_wrap=True, overflow="ellipsis", max_width=max(left, 6))
    for k, head in enumerate(heads):
        table.add_column(head, justify="right" if k else "left", no_wrap=True)
    for one, node, row in zip(shown, nodes, rows, strict=True):
        table.add_row(str(one.client), node, *row)
    parts: list[RenderableType] = [Text(line_of(status)), Text(), table, Text()]
    parts += [Text(line) for line in (totals(status, len(shown)), silence_of(status)) if line]
    return Group(*parts)


def _link(one: ClientStatus, links: Links | None) -> Text:
    if links is not None:
        up = links.get(one.client)
        return Text("–") if up is None else Text("up") if up else Text("cut", style="bold red")
    style = "" if one.answered else "bold red" if one.is_refused else "yellow"
    return Text(one.link, style=style)


def _numbers(one: ClientStatus) -> list[Text]:
    shown = [
        one.last_round,
        None if one.seconds_ago is None else in_words(one.seconds_ago),
        one.owed,
        one.staleness,
        one.refused or None,
    ]
    return [Text("–" if number is None else str(number)) for number in shown]


def line_of(status: FleetStatus) -> str:
    """A line on the whole fleet.

    Example:
        >>> from fedpbc.deployment.ops.status import Plan
        >>> line_of(FleetStatus(Plan(10, 0, "fedpbc", 60.0, 3), 0, [], None, None))
        'waiting: 0 clients heard, the first round begins with 3'
    """
    plan = status.plan
    if not status.done:
        known = f"{status.heard} clients heard" if status.heard != 1 else "1 client heard"
        if status.heard >= plan.wait_for:
            return f"{known}; round 1 of {plan.rounds} is under way"
        return f"waiting: {known}, the first round begins with {plan.wait_for}"
    line = f"{plan.algorithm}: {status.done} of {plan.rounds} rounds done"
    line += f"; {status.answered} of {plan.clients} answered in the last"
    if not status.is_over and status.seconds_left is not None:
        line += f"; about {in_words(status.seconds_left)} left"
    return line


def totals(status: FleetStatus, shown: int) -> str:
    """What the table adds up to."""
    everyone = status.clients
    parts = []
    if shown < len(everyone):
        parts.append(f"the {shown} of {len(everyone):,} that were away longest")
    never = len(everyone) - status.heard
    if never:
        parts.append(f"{never:,} never heard")
    stale = [one.staleness for one in everyone]
    if status.done and stale:
        parts.append(f"staleness: mean {sum(stale) / len(stale):.1f}, at most {max(stale)}")
    refused = sum(one.refused for one in everyone)
    if refused:
        parts.append(f"{refused} answers refused: the server's log says why")
    return "; ".join(parts)


def silence_of(status: FleetStatus) -> str:
    """A line where the server seems to be gone."""
    long = QUIET_ROUNDS * status.plan.round_seconds + QUIET_SECONDS
    if status.is_over or not status.done or (status.quiet_for or 0.0) < long:
        return ""
    return f"no round has ended for {in_words(status.quiet_for or 0.0)}: is the server running?"


def in_words(seconds: float) -> str:
    """A time, short.

    Example:
        >>> in_words(8.2), in_words(200), in_words(9000), in_words(200000)
        ('8 s', '3 min', '2.5 h', '2.3 d')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def told_cut(links: Links | None) -> str:
    """Whose links are cut, for a line.

    Example:
        >>> told_cut({0: True, 1: False, 2: False})
        '; cut now: 1, 2'
    """
    cut = [str(i) for i, up in (links or {}).items() if not up]
    shown = ", ".join(cut[:10]) + (f" and {len(cut) - 10} more" if len(cut) > 10 else "")
    return f"; cut now: {shown}" if cut else ""


def watch(
    folder: Path,
    *,
    console: Console | None = None,
    is_over: Callable[[FleetStatus], bool] = lambda status: status.is_over,
    links: Callable[[], Links | None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> FleetStatus:
    """Show a fleet until it is over or somebody presses Ctrl-C; gives how it was at last.

    In a terminal the table is kept current; elsewhere there is a line a round.
    """
    log, console = FleetLog(folder), console or Console()
    status = log.status()
    if not console.is_terminal:
        told = ""
        while True:
            line = line_of(status)
            mark = line.partition(";")[0]
            if mark != told:
                print(line + told_cut(links()), flush=True)
                told = mark
            if is_over(status):
                return status
            sleep(LOOK_EVERY)
            status = log.status()

    def table() -> Group:
        most = max(3, min(MOST, console.height - AROUND))
        return fleet_table(status, width=console.width, most=most, links=links())

    with Live(table(), console=console, auto_refresh=False) as live:
        while not is_over(status):
            sleep(LOOK_EVERY)
            status = log.status()
            live.update(table(), refresh=True)
    return status
