"""The configurations that a search writes: its choice, for every command that takes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpbc.errors import FedpbcError
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.experiments.tuning.result import TuningResult
from fedpbc.limits import parse_toml
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text

__all__ = ["write_choice"]


def write_choice(directory: TuningDirectory, result: TuningResult) -> None:
    """Write tuned.toml with all algorithms, and tuned-ALGORITHM.toml for each.

    An algorithm of which every candidate diverged is left out.
    """
    text, _ = result.plan.self_contained()
    shared = parse_toml(text)
    options: dict[str, Mapping[str, Any]] = shared.pop("algorithms")
    for key in ("tune", "seeds"):
        shared.pop(key)
    tables: dict[str, dict[str, Any]] = {}
    for tuned in result.algorithms:
        if tuned.best is None:
            continue
        table: dict[str, Any] = {"name": tuned.algorithm, **options[tuned.algorithm]}
        sections = {key: dict(value) for key, value in table.items() if isinstance(value, Mapping)}
        table = {key: value for key, value in table.items() if key not in sections}
        for key, value in tuned.best.settings.items():
            section, _, option = key.partition(".")
            target = table if section == "algorithm" else sections.setdefault(section, {})
            target[option] = value
        merged = {
            section: {**shared.get(section, {}), **values} for section, values in sections.items()
        }
        content = {**shared, **merged, "algorithm": table}
        write_atomically(directory.tuned_file(tuned.algorithm), toml_text(content))
        tables[tuned.algorithm] = {
            **{key: value for key, value in table.items() if key != "name"},
            **sections,
        }
    if not tables:
        raise FedpbcError("every candidate diverged: try smaller step sizes with --space")
    write_atomically(directory.tuned_path, toml_text({**shared, "algorithms": tables}))
