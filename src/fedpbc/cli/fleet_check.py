"""fedpbc fleet check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedpbc.cli.fleet_status import ServersFolder, which_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpbc.deployment.ops.check import ViewCheck

__all__ = ["check", "run_check", "show_checks"]


def check(folder: ServersFolder) -> None:
    """Simulate a fleet's job on the links it had, and compare: exit code 1 if models differ."""
    checks = run_check(folder)
    show_checks(checks)
    if (folder / "links.csv").exists():
        print(which_algorithm(folder))
    if not all(one.is_same for one in checks):
        raise typer.Exit(1)


def run_check(folder: Path) -> list[ViewCheck]:
    """The comparison, with a progress display where there is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from fedpbc.deployment.ops.check import check_job

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating the same rounds", total=None)
        return check_job(
            folder, lambda done, total: progress.update(task, completed=done, total=total)
        )


def show_checks(checks: Sequence[ViewCheck]) -> None:
    """The table, and one line on what it says."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fedpbc.deployment.ops.check import ALLOWED, worst

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("view", no_wrap=True)
    heads = ["after rounds", "largest difference"]
    judged = any(one.fleet_accuracy is not None for one in checks)
    for head in [*heads, *(["fleet test %", "simulator test %"] if judged else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    for one in checks:
        accuracies = [one.fleet_accuracy, one.simulated_accuracy]
        shown = [("–" if a is None else f"{100 * a:.2f}") for a in accuracies if judged]
        table.add_row(one.view, str(one.rounds), f"{one.difference:.1e}", *shown)
    Console().print(table)
    if all(one.is_same for one in checks):
        print(f"the fleet's models are the simulator's: no difference above {ALLOWED:g}")
        return
    off = worst(checks)
    print(
        f"fedpbc: the fleet's models are not the simulator's: the view {off.view} differs by "
        f"{off.difference:.1e}, more than {ALLOWED:g}",
        file=sys.stderr,
    )
