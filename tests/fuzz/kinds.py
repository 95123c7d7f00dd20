"""The kinds of cases, and how often each is among them."""

from __future__ import annotations

from tests.fuzz import (
    apps,
    calls,
    commands,
    configurations,
    damages,
    data_files,
    fleets,
    plugins,
    search_folders,
    searches,
    strategies,
    timetables,
    traces,
)
from tests.fuzz.case import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("commands", commands.make, 250),
        Kind("configurations", configurations.make, 300),
        Kind("calls", calls.make, 240),
        Kind("traces", traces.make, 60),
        Kind("timetables", timetables.make, 120),
        Kind("data", data_files.make, 20),
        Kind("plugins", plugins.make, 80),
        Kind("apps", apps.make, 30),
        Kind("searches", searches.make, 20),
        Kind("fleets", fleets.make, 80),
        Kind("strategies", strategies.make, 80),
        Kind("runs", damages.runs, 550, damage=True),
        Kind("comparisons", damages.comparisons, 150, damage=True),
        Kind("running", damages.running, 50, damage=True),
        Kind("foreign", damages.foreign, 100, damage=True),
        Kind("fleet-folders", damages.fleets, 150, damage=True),
        Kind("search-folders", search_folders.searches, 60, damage=True),
        Kind("advice-folders", search_folders.advice, 20, damage=True),
        Kind("replaced", search_folders.comparisons, 40, damage=True),
        Kind("paper-folders", search_folders.papers, 50, damage=True),
    )
}
