"""The configurations that a search writes: its choice, for every command that takes one."""

from __future__ import annotations

from typing import Any

from fedpbc.errors import FedpbcError
from fedpbc.experiments.entries import Entry, entries_of
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.experiments.tuning.result import TuningResult
from fedpbc.experiments.tuning.search_space import Settings
from fedpbc.limits import parse_toml
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text

__all__ = ["tuned_entry", "write_choice"]


def write_choice(directory: TuningDirectory, result: TuningResult) -> None:
    """Write tuned.toml with all entries, and tuned-LABEL.toml for each.

    An entry of which every candidate diverged is left out. The view to deploy is chosen with the
    settings, on the held-out samples: a comparison on the test data need not choose it.
    """
    text, _ = result.plan.self_contained()
    shared = parse_toml(text)
    entries = {entry.label: entry for entry in entries_of(shared.pop("algorithms"))}
    for key in ("tune", "seeds"):
        shared.pop(key)
    tables: dict[str, dict[str, Any]] = {}
    for tuned in result.entries:
        if tuned.best is not None:
            chosen = tuned_entry(entries[tuned.label], tuned.best.settings)
            if tuned.best.score is not None:
                chosen = chosen.with_value("deploy_view", tuned.best.score.view)
            file = directory.tuned_file(tuned.label)
            write_atomically(file, toml_text(chosen.applied_to(shared)))
            tables[tuned.label] = chosen.table()
    if not tables:
        raise FedpbcError("every candidate diverged: try smaller step sizes with --space")
    write_atomically(directory.tuned_path, toml_text({**shared, "algorithms": tables}))


def tuned_entry(entry: Entry, settings: Settings) -> Entry:
    """The entry with the settings of a candidate.

    Example:
        >>> tuned_entry(Entry("fedau", "fedau"), {"algorithm.cutoff": 5}).table()
        {'cutoff': 5}
    """
    for key, value in settings.items():
        entry = entry.with_value(key.removeprefix("algorithm."), value)
    return entry
