"""Command lines of searches, advice, links and wide comparisons, with one or two faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.commands import (
    VALID,
    Line,
    add,
    add_faults,
    entry_of,
    flags,
    step_of,
    values_of,
    write_surroundings,
)
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template

QUICK_MINUTES = 0.05
"""A larger budget may be used up, or nearly."""


def make(random: Random, place: Place) -> Case:
    """A command with up to two faults."""
    write_surroundings(place)
    line = random.choices(list(BASES), list(BASES.values()))[0](random, place)
    if random.random() < 0.2:
        line.sound = False
        own_fault(random, line)
    else:
        add_faults(random, line)
    return Case([limited(line, step_of(line))])


def limited(line: Line, step: Step) -> Step:
    """A step that is interrupted if its budget is that of a real search."""
    if line.command not in (("tune",), ("advise",)):
        return step
    texts = [value for flag, value in line.options if flag == "--minutes"]
    if line.command == ("advise",) and not texts:
        return replace(step, quick=False)
    try:
        minutes = float(texts[-1] or 0) if texts else 0.0
    except ValueError:
        return step
    return step if minutes < QUICK_MINUTES else replace(step, quick=False)


def own_fault(random: Random, line: Line) -> None:
    """A fault in what only these commands have."""
    name = {
        ("tune",): "--space",
        ("compare",): random.choice(("--sweep", "--algorithms", "--baseline", "--seeds")),
    }.get(line.command, "--set")
    if name == "--seeds":
        value = random.choice(
            ("0-", "-1-3", "3-1", "0-99999999999", "0-1,1", "١-٣", "0--1", "", "0-1-2", "1e3-2")
        )
    elif name in ("--algorithms", "--baseline"):
        value = entry_of(random)
    else:
        value = values_of(random)
    line.options.append((name, value))


def tune(random: Random, place: Place) -> Line:
    """A small search."""
    line = Line(("tune",), ["quadratic.toml"], [("--jobs", "1"), ("--out", "out")])
    limit = random.choice(("--candidates", "--candidates", "--budget", "--minutes"))
    line.options.append((limit, random.choice(VALID[limit])))
    pick = random.random()
    if pick < 0.15:
        line.positionals = [random.choice(("digits.toml", "app.toml"))]
        add(random, line, "--validation", "--batch-size")
    if random.random() < 0.5:
        line.options.append(("--algorithms", random.choice(("fedavg", "fedavg,fedau", "mifa"))))
    add(random, line, "--space", "--rounds", "--local-steps", "--learning-rate")
    flags(random, line, "--json", "--overwrite")
    if line.value("--budget"):
        line.sound = False  # Several algorithms may need more.
    if random.random() < 0.15:
        copy_template(place, random.choice(("search", "search-killed")), place.work / "out")
        line.sound = line.sound and ("--overwrite", None) in line.options
    return line


def advise(random: Random, place: Place) -> Line:
    """Advice for which there is no time."""
    line = Line(("advise",), ["quadratic.toml"], [("--jobs", "1"), ("--out", "out")])
    line.options.append(("--minutes", "0.001"))
    if random.random() < 0.3:
        line.positionals = [random.choice(("app.toml", "digits.toml"))]
    add(random, line, "--max-server-models", "--max-local-steps", "--rounds", "--local-steps")
    line.sound = not any(flag.startswith("--max") for flag, _ in line.options)
    if random.random() < 0.2:
        line.options.append(("--no-client-state", None))
        line.sound = False
    flags(random, line, "--json")
    if random.random() < 0.1:
        copy_template(place, random.choice(("advice", "advice-killed")), place.work / "out")
        line.sound = False
    return line


def links(random: Random, place: Place) -> Line:
    """What links are like."""
    line = Line(("links",))
    pick = random.randrange(4)
    if pick == 0:
        line.options = [("--trace", "trace.csv")]
    elif pick == 1:
        line.positionals = [random.choice(("quadratic.toml", "digits.toml", "app.toml"))]
    elif pick == 2:
        copy_template(place, random.choice(("finished", "killed")), place.work / "a")
        line.positionals = ["a"]
    else:
        line.options = [("--rounds", "30"), ("--clients", "3")]
        add(random, line, "--links", "--seed")
    if random.random() < 0.3:
        out = random.choice(("page.html", "picture.png", "numbers.json", "sub/page.html", "x.txt"))
        line.options.append(("--out", out))
        line.sound = False
    flags(random, line, "--json")
    # Some schemes need data, and a trace may be too short.
    line.sound = line.sound and pick in (0, 1)
    return line


def compare(random: Random, place: Place) -> Line:
    """A comparison with labels, sweeps, the ceiling or a baseline; perhaps a wider one."""
    line = Line(("compare",), ["quadratic.toml"], [("--jobs", "1"), ("--out", "out")])
    names = random.choice(("fedavg", "fedavg,fedau:cutoff=3", "fedau:cutoff=3,fedau:cutoff=5"))
    line.options += [("--seeds", random.choice(("0", "0-1"))), ("--algorithms", names)]
    add(random, line, "--sweep", "--rounds")
    if random.random() < 0.3:
        line.options.append(("--baseline", names.partition(",")[0]))
        line.sound = line.value("--sweep") is None
    flags(random, line, "--ceiling", "--json", "--overwrite")
    if random.random() < 0.25:
        copy_template(place, random.choice(("comparison", "comparison-killed")), place.work / "out")
        line.sound = False
        if random.random() < 0.3:
            line.positionals = []  # As in the folder; overwritten, with the settings of no file.
            line.quick = False
    return line


def folder(random: Random, place: Place) -> Line:
    """``resume``, ``report`` and ``verify`` of a search or of advice."""
    name = random.choice(("search", "search-killed", "search-killed-late", "advice"))
    copy_template(place, name, place.work / "a")
    command = random.choice(("resume", "report", "verify"))
    line = Line((command,), ["a"], writes=["a"])
    if command == "resume":
        line.options.append(("--jobs", "1"))
    elif command == "report":
        line.writes = ["a/report.html"]
        if random.random() < 0.3:
            line.options.append(("--baseline", random.choice(("fedavg", hostile.text(random)))))
            line.sound = False
    flags(random, line, *(() if command == "report" else ("--json",)))
    return line


BASES = {tune: 35, advise: 10, links: 25, compare: 22, folder: 8}
