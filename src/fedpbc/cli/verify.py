"""fedpbc verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.cli.options import Json
from fedpbc.cli.terminal import command, say, say_json
from fedpbc.errors import FedpbcError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedpbc.experiments.comparison_directory import ComparisonDirectory
    from fedpbc.experiments.integrity import Verification

__all__ = ["verify"]


def verify(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="With runs in it: a run's, a comparison's, any."),
    ],
    as_json: Json = False,
) -> None:
    """Check that the files of runs are as they were written; nothing is changed."""
    from fedpbc.experiments.integrity import Damage, Verification, verify_run
    from fedpbc.report.load import find_runs

    results = [comparison.verify() for comparison in comparisons_below(folders)]
    for path in find_runs(folders):
        try:
            results.append(verify_run(path))
        except FedpbcError as error:
            damage = Damage(path, str(error), repairable=False)
            results.append(Verification(path, "unreadable", (damage,)))
    if as_json:
        say_json([as_dict(result) for result in results])
    else:
        for result in results:
            show(result)
    damaged = [result for result in results if result.damage]
    if damaged:
        repairable = [r for r in damaged if all(each.repairable for each in r.damage)]
        remedy = ""
        if repairable:
            remedy = f"; {command('fedpbc', 'resume', repairable[0].path)} repairs it"
        what = f"{len(damaged)} of {len(results)} runs and comparisons are damaged"
        raise FedpbcError(what + remedy)


def comparisons_below(folders: Sequence[Path]) -> Iterator[ComparisonDirectory]:
    """The comparisons in some folders."""
    from fedpbc.experiments.comparison_directory import ComparisonDirectory
    from fedpbc.storage.directories import folders_below

    for folder in folders:
        for path, subfolders, _ in folders_below(folder):
            comparison = ComparisonDirectory(path)
            if comparison.was_begun:
                yield comparison
            subfolders[:] = [each for each in subfolders if not each.startswith(".")]


def show(result: Verification) -> None:
    """Print what is wrong with a run, or that nothing is."""
    for damage in result.damage:
        say(f"{result.path}: {damage}")
    if not result.damage:
        files = "1 file" if result.checked == 1 else f"{result.checked} files"
        say(f"{result.path}: {result.state}, {result.note or f'{files} as written'}")


def as_dict(result: Verification) -> dict[str, Any]:
    """The JSON object of one run."""
    return {
        "folder": str(result.path),
        "state": result.state,
        "checked": result.checked,
        "note": result.note,
        "damage": [
            {"file": str(each.file), "reason": each.reason, "repairable": each.repairable}
            for each in result.damage
        ],
    }
