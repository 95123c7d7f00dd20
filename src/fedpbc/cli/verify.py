"""fedpbc verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedpbc.cli.options import Json
from fedpbc.cli.terminal import command, say, say_json
from fedpbc.errors import FedpbcError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedpbc.experiments.advice.directory import AdviceDirectory
    from fedpbc.experiments.comparison_directory import ComparisonDirectory
    from fedpbc.experiments.integrity import Verification
    from fedpbc.experiments.tuning.directory import TuningDirectory

__all__ = ["verify"]


def verify(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="Folders with runs anywhere below them."),
    ],
    as_json: Json = False,
) -> None:
    """Check that the files of runs are as they were written; nothing is changed."""
    from fedpbc.experiments.integrity import Damage, Verification, verify_run
    from fedpbc.report.load import find_runs

    plans = list(plans_below(folders))
    results = [plan.verify() for plan in plans]
    # What was begun may have no run yet.
    paths = find_runs([folder for folder in folders if not _is_begun(folder, plans)])
    for path in paths:
        if not path.exists() and not (path.parent.parent / "comparison.json").exists():
            results.append(Verification(path, "not begun", note="planned"))
            continue
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
            path = _outermost(repairable[0].path, results)
            remedy = f"; {command('fedpbc', 'resume', path)} repairs it"
        of_search = any(result.state in ("search", "advice") for result in results)
        kinds = "runs, comparisons and searches" if of_search else "runs and comparisons"
        raise FedpbcError(f"{len(damaged)} of {len(results)} {kinds} are damaged{remedy}")


Planned: TypeAlias = "AdviceDirectory | TuningDirectory | ComparisonDirectory"


def plans_below(folders: Sequence[Path]) -> Iterator[Planned]:
    """The comparisons, searches and advice in some folders."""
    from fedpbc.experiments.advice.directory import AdviceDirectory
    from fedpbc.experiments.comparison_directory import ComparisonDirectory
    from fedpbc.experiments.tuning.directory import TuningDirectory
    from fedpbc.storage.directories import folders_below

    for folder in folders:
        for path, subfolders, _ in folders_below(folder):
            kinds = (AdviceDirectory(path), TuningDirectory(path), ComparisonDirectory(path))
            yield from (directory for directory in kinds if directory.was_begun)
            subfolders[:] = [each for each in subfolders if not each.startswith(".")]


def _is_begun(folder: Path, plans: Sequence[Planned]) -> bool:
    """Whether a folder has a plan, and no run below it yet."""
    from fedpbc.report.load import has_runs

    return any(plan.path == folder for plan in plans) and not has_runs(folder)


def _outermost(path: Path, results: Sequence[Verification]) -> Path:
    """What to resume so that a run is repaired: the search or advice that it is part of."""
    for result in results:
        if result.state in ("search", "advice") and path.is_relative_to(result.path):
            # What is wrong with its plan must be fixed first.
            return result.path if all(each.repairable for each in result.damage) else path
    return path


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
