"""A fleet's status as one self-contained HTML page, written once or while the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpbc.deployment.ops.fleet_history import FleetHistory
from fedpbc.deployment.ops.status import ClientStatus, FleetLog, FleetStatus
from fedpbc.deployment.ops.status_text import changes, format_bytes, idle_warning, summary
from fedpbc.deployment.ops.view_accuracy import ViewAccuracies, view_accuracies
from fedpbc.report.client_charts import timetable_image
from fedpbc.report.page import check_report_path, render_page
from fedpbc.report.page_tables import PageTable, TableCell
from fedpbc.storage.atomic import write_atomically
from fedpbc.text import format_duration, shell_quoted

__all__ = ["StatusPage"]

POLL_SECONDS = 2.0
RELOAD_SECONDS = 5
"""After which an open page reloads itself; so often it is written anew, since times pass."""
SHOWN_CLIENTS = 30
"""Of more, the table shows those absent longest first, and all on request."""
TRAIT_OF_LINK = {"answered": "state-finished", "refused": "state-failed"}


class StatusPage:
    """The page about a fleet.

    Args:
        folder: the server's.
        path: of the page; only an older report is overwritten.
        title: its heading.
    """

    def __init__(self, folder: Path, path: Path, title: str) -> None:
        check_report_path(path)
        self.folder, self.path, self.title = folder, path, title
        self._history = FleetHistory()
        self._log = FleetLog(folder, self._history)
        self._models = ViewAccuracies([])
        self._models_stamp: list[tuple[str, int]] = []

    def write(self, *, live: bool = False) -> FleetStatus:
        """Write the page, and return what it shows; a live one reloads itself."""
        status = self._log.status()
        write_atomically(self.path, self._render(status, live=RELOAD_SECONDS if live else 0))
        return status

    def watch(
        self,
        on_change: Callable[[FleetStatus], None] = lambda status: None,
        *,
        every: float = POLL_SECONDS,
    ) -> bool:
        """Write the page until the job is over; False if it was interrupted.

        ``on_change`` is called when another round is done.
        """
        rounds, written = -1, -float(RELOAD_SECONDS)
        try:
            while True:
                status = self._log.status()
                if status.rounds_done != rounds or time.monotonic() - written >= RELOAD_SECONDS:
                    status, written = self.write(live=True), time.monotonic()
                    if status.rounds_done != rounds:
                        rounds = status.rounds_done
                        on_change(status)
                if status.is_over:
                    return True
                time.sleep(every)
        except KeyboardInterrupt:
            return False
        finally:
            if rounds >= 0:
                # The last version does not reload itself.
                self.write()

    def _render(self, status: FleetStatus, live: int) -> bytes:
        charts = self._charts(status)
        return render_page(
            "fleet.html.j2",
            self.title,
            [{"number": 0, "charts": charts}] if status.rounds_done else [],
            live=live,
            status=status,
            summary=summary(status),
            warnings=[line for line in (idle_warning(status), changes(status)) if line],
            facts=_facts(status),
            timetable=charts["fleet"],
            clients=_clients_table(status),
            models=_models_table(self._accuracies()),
            events=_events_table(self._history),
            commands=_commands(status, self.folder),
        )

    def _charts(self, status: FleetStatus) -> dict[str, Any]:
        """What the page's scripts draw; the fields that they need of every group are empty."""
        up, rounds = self._history.timetable(len(status.clients)), self._history.curves()
        return {
            "curves": {},
            "values": [],
            "staleness": rounds,
            "rounds": rounds,
            "fleet": {
                "timetable": timetable_image(up) if up.size else "",
                "first_round": self._history.first_shown,
                "shown_rounds": up.shape[0],
                "shown_clients": up.shape[1],
                "rounds": status.rounds_done,
                "clients": len(status.clients),
            },
        }

    def _accuracies(self) -> ViewAccuracies:
        """Evaluate the models again only if the server has written others."""
        stamp = sorted(
            (path.name, path.stat().st_mtime_ns)
            for path in (self.folder / "models").glob("*.safetensors")
            if path.is_file()
        )
        if stamp != self._models_stamp:
            self._models, self._models_stamp = view_accuracies(self.folder), stamp
        return self._models


def _facts(status: FleetStatus) -> list[tuple[str, str]]:
    """Names and values that a reader looks for first."""
    members, job = status.members, status.job
    facts = [
        ("algorithm", job.algorithm),
        ("rounds done", f"{status.rounds_done:,} of {job.rounds:,}"),
        ("a round takes at most", format_duration(job.round_seconds)),
        ("clients", f"{job.clients:,}"),
        ("ever connected", f"{status.connected:,}"),
    ]
    if not status.rounds_done:
        return facts
    if status.seconds_left is not None and not status.is_over:
        end = time.strftime("%H:%M", time.localtime(time.time() + status.seconds_left))
        facts.insert(2, ("time left", f"{format_duration(status.seconds_left)}, until {end}"))
    facts.append(("answered in the last round", f"{status.answered:,}"))
    if members:
        staleness = [client.staleness for client in members]
        mean = sum(staleness) / len(staleness)
        facts.append(("staleness", f"mean {mean:.1f}, largest {max(staleness):,}"))
    facts.append(("answers refused", f"{sum(client.refused for client in status.clients):,}"))
    if status.bytes_up is not None and status.bytes_down is not None:
        facts.append(("received", format_bytes(status.bytes_up)))
        facts.append(("sent", format_bytes(status.bytes_down)))
    return facts


def _clients_table(status: FleetStatus) -> PageTable:
    rows = [_client_row(client, status.changed.get(client.client)) for client in status.clients]
    head = ["client", "link", "since round", "for", "last contact", "ago"]
    head += ["rounds owed", "staleness", "refused", "node"]
    shown = {client.client for client in status.longest_absent(SHOWN_CLIENTS)} | {*status.changed}
    return PageTable(
        "",
        head,
        rows,
        dimmed={k for k, client in enumerate(status.clients) if client.has_left},
        others={k for k, client in enumerate(status.clients) if client.client not in shown},
        few_and_all=("clients absent longest", "clients"),
        label="Clients",
    )


def _client_row(client: ClientStatus, changed: str | None) -> list[TableCell]:
    link = client.link.partition(" since ")[0]
    tags = [("", f"has {changed}")] if changed else []
    return [
        TableCell(str(client.client), client.client),
        TableCell(link, tags=tags, kind=f"text {TRAIT_OF_LINK.get(link, '')}".strip()),
        _number(client.since_round),
        _duration(client.since_seconds),
        _number(client.last_round),
        _duration(client.seconds_ago),
        _number(None if client.has_left else client.owed),
        _number(None if client.has_left else client.staleness),
        _number(client.refused or None),
        TableCell("–" if client.node is None else str(client.node)),
    ]


def _number(value: int | None) -> TableCell:
    return TableCell("–" if value is None else f"{value:,}", value)


def _duration(seconds: float | None) -> TableCell:
    return TableCell("–" if seconds is None else format_duration(seconds), seconds)


def _models_table(models: ViewAccuracies) -> PageTable | None:
    if not models.views and not models.reason:
        return None
    rows = [
        [
            TableCell(each.view, kind="text"),
            _number(each.rounds),
            TableCell("–" if each.accuracy is None else f"{100 * each.accuracy:.2f}"),
            TableCell(f"models/{each.view}.safetensors", kind="text"),
        ]
        for each in models.views
    ]
    head = ["view", "after rounds", "test accuracy, %", "file"]
    notes = [models.reason] if models.reason else []
    return PageTable("", head, rows, notes=notes, label="Models")


def _events_table(history: FleetHistory) -> PageTable | None:
    if not history.events:
        return None
    rows = [
        [
            TableCell(f"{round:,}", round),
            TableCell(time.strftime("%Y-%m-%d %H:%M", time.localtime(at)), at, kind="text"),
            TableCell(f"client {client} {text}", kind="text"),
        ]
        for round, at, client, text in reversed(history.events)
    ]
    return PageTable("", ["before round", "when", "what"], rows, label="Joined, left, accepted")


def _commands(status: FleetStatus, folder: Path) -> list[tuple[str, str]]:
    """What to do next: a command and what it does."""
    quoted_folder = shell_quoted(folder)
    if status.is_over:
        return [
            (f"fedpbc fleet check {quoted_folder}", "compares the models with a simulation"),
            (
                f"fedpbc compare --trace {quoted_folder}",
                "which algorithm performs best on these links",
            ),
        ]
    lines = [
        (f"fedpbc fleet status {quoted_folder} --watch", "the same in a terminal"),
        (f"fedpbc report {quoted_folder} --watch", "keeps this page up to date"),
    ]
    if status.changed:
        what = "lists who is refused for another app or other data"
        lines.insert(0, (f"fedpbc fleet accept {quoted_folder}", what))
    return lines
