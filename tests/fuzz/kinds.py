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
        Kind("commands", commands.make, 300),
        Kind("configurations", configurations.make, 240),
        Kind("calls", calls.make, 220),
        Kind("traces", traces.make, 70),
        Kind("timetables", timetables.make, 100),
        Kind("data", data_files.make, 30),
        Kind("plugins", plugins.make, 60),
        Kind("apps", apps.make, 30),
        Kind("searches", searches.make, 40),
        Kind("fleets", fleets.make, 60),
        Kind("strategies", strategies.make, 70),
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
