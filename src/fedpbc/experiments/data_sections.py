"""The sections of a data set and a network: shared settings, and options of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedpbc.data import find_source
from fedpbc.errors import InputError
from fedpbc.experiments.settings import DataSection, ModelSection
from fedpbc.options import checked, options_of

__all__ = ["add_data_defaults", "checked_data", "checked_model", "data_table"]

Sections = dict[str, dict[str, Any]]


def add_data_defaults(top: dict[str, Any], sections: Sections) -> None:
    """Add the settings that suit a data set, where others are not given; in place."""
    source = find_source(_name(sections["data"], DataSection.name))
    sections["model"].setdefault("name", source.model_for(sections["data"]))
    for section, settings in source.settings.items():
        if section and section not in sections:
            names = ", ".join(sections)
            raise InputError(f"a section in the settings of {source.name}", section, names)
        table = sections[section] if section else top
        for name, value in settings.items():
            table.setdefault(name, value)


def checked_data(table: Mapping[str, Any]) -> tuple[DataSection, dict[str, Any]]:
    """Check the section of a data set; returns the shared settings, and its own options."""
    source = find_source(_name(table, DataSection.name))
    shared = options_of(DataSection)
    source_options = {name: value for name, value in table.items() if name not in shared}
    options = source.checked(source_options, also=tuple(shared))
    section = DataSection(
        **checked(DataSection, {k: v for k, v in table.items() if k in shared}, "data")
    )
    return section, options


def checked_model(table: Mapping[str, Any]) -> tuple[ModelSection, dict[str, Any]]:
    """Check the section of a network; returns its name, and its own options."""
    from fedpbc.tasks.model_registry import checked_model_options
    from fedpbc.tasks.networks import find_model

    section = ModelSection(
        **checked(ModelSection, {k: v for k, v in table.items() if k == "name"}, "model")
    )
    model_options = {name: value for name, value in table.items() if name != "name"}
    return section, checked_model_options(find_model(section.name), model_options)


def data_table(section: DataSection, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section as it is written down.

    Left out is what an earlier version did not write, and α where the data has clients of its own.
    """
    table = asdict(section)
    if section.weigh == DataSection.weigh:
        del table["weigh"]
    if section.alpha == DataSection.alpha and find_source(section.name).has_clients(options):
        del table["alpha"]
    return {**table, **options}


def _name(table: Mapping[str, Any], default: str) -> Any:
    return table.get("name", default)
