"""fedpbc fleet check."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedpbc.cli.fleet_status import ServerFolder, compare_hint, server_folder
from fedpbc.cli.options import Trust
from fedpbc.cli.terminal import complain, open_console, say, show_fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpbc.deployment.ops.check import ViewCheck

__all__ = ["check", "print_checks", "run_check"]


def check(folder: ServerFolder = None, trust: Trust = False) -> None:
    """Simulate a fleet's job on its recorded links and compare; exit code 1 if models differ."""
    from fedpbc.deployment.ops.check import accepted_changes
    from fedpbc.deployment.ops.consent import check_plugins
    from fedpbc.deployment.ops.status import read_job_settings

    folder = server_folder(folder)
    # Reports a wrong folder before anything else is read.
    read_job_settings(folder)
    check_plugins(folder, trust=trust, app=True)
    checks = run_check(folder)
    print_checks(checks)
    for client, round in sorted(accepted_changes(folder).items()):
        say(f"client {client} has another app or other data since round {round}: this shows")
    if (folder / "links.csv").exists():
        say(compare_hint(folder))
    if not all(check.is_equal for check in checks):
        raise typer.Exit(1)


def run_check(folder: Path) -> list[ViewCheck]:
    """Run the comparison, with a progress bar in a terminal."""
    from rich.progress import Progress

    from fedpbc.deployment.ops.check import check_job

    console = open_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating the same rounds", total=None)
        return check_job(
            folder, lambda done, total: progress.update(task, completed=done, total=total)
        )


def print_checks(checks: Sequence[ViewCheck]) -> None:
    """Print the table of the comparison, and its result in one line."""
    from fedpbc.deployment.ops.check import TOLERANCE
    from fedpbc.report.text_table import TextTable

    table = TextTable()
    table.column("view")
    heads = ["after rounds", "largest difference"]
    has_accuracy = any(check.fleet_accuracy is not None for check in checks)
    for head in [*heads, *(["fleet test %", "simulator test %"] if has_accuracy else [])]:
        table.column(head.replace(" ", "\n", 1), right=True)
    for check in checks:
        accuracies = [check.fleet_accuracy, check.simulated_accuracy] if has_accuracy else []
        cells = ["–" if a is None else f"{100 * a:.2f}" for a in accuracies]
        table.row(check.view, str(check.rounds), f"{check.difference:.1e}", *cells)
    show_fitted(table)
    if all(check.is_equal for check in checks):
        say(f"the fleet's models equal the simulator's: no difference above {TOLERANCE:g}")
        return
    # NaN counts as infinite.
    worst = max(checks, key=lambda c: math.inf if math.isnan(c.difference) else c.difference)
    complain(
        f"the fleet's models do not equal the simulator's: the view {worst.view} differs "
        f"by {worst.difference:.1e}, more than {TOLERANCE:g}; {origin(worst.first)}"
    )


def origin(first: tuple[int, int] | None) -> str:
    """Where a difference begins.

    Example:
        >>> origin((7, 2))
        "the first answer that is not the simulator's is that of client 2 in round 7"
    """
    if first is None:
        return "no logged answer differs: the server's own part does, or its files"
    t, client = first
    return f"the first answer that is not the simulator's is that of client {client} in round {t}"
