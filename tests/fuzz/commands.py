"""Command lines: valid ones with one or two faults, from the options that the commands declare."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template, write_inputs

VALID: dict[str, tuple[str, ...]] = {
    "--rounds": ("1", "2", "3"),
    "--clients": ("3",),
    "--seed": ("0", "1", "12"),
    "--seeds": ("0", "0,1", "0-1"),
    "--sweep": ("train.decay=true,false", "learning_rate=0.1,0.2", "links.p=0.3,0.9"),
    "--algorithm": ("fedpbc", "fedavg", "mifa", "scaffold", "fedau", "f3ast", "fedawe", "fedvarp"),
    "--algorithms": ("fedpbc", "fedavg,fedpbc", "fedau", "fedau:cutoff=3,fedavg:rounds=2"),
    "--baseline": ("fedavg", "fedpbc"),
    "--candidates": ("1", "2", "3"),
    "--budget": ("20", "40"),
    "--minutes": ("0.001",),
    "--max-local-steps": ("500",),
    "--max-server-models": ("2", "100"),
    "--space": ("learning_rate=0.05,0.1", "global_learning_rate=1,0.5", "train.learning_rate=0.1"),
    "--validation": ("0.2", "0.5"),
    "--data": ("digits",),
    "--model": ("softmax", "mlp"),
    "--learning-rate": ("0.1", "0.01", "1e-3"),
    "--global-learning-rate": ("1.0", "0.5"),
    "--local-steps": ("1", "2"),
    "--batch-size": ("1", "4", "16"),
    "--engine": ("auto", "serial", "stacked"),
    "--workers": ("0", "1"),
    "--device": ("cpu",),
    "--views": ("server", "server,averaged", "averaged"),
    "--reported": ("memory", "disk"),
    "--evaluate-every": ("1", "2"),
    "--jobs": ("1",),
    "--plugin": ("plugin.py",),
    "--app": ("app.py",),
    "--trace": ("trace.csv",),
    "--table": ("timetable.npy",),
    "--targets": ("targets.npy",),
    "--p": ("0.5", "0.5,0.2,0.9", "0.1,1"),
    "--host": ("127.0.0.1", "fleet.example.org", "::1"),
    "--port": ("8443",),
    "--round-seconds": ("60", "0.5"),
    "--days": ("1", "825"),
    "--step-size": ("0.05",),
    "--lipschitz": ("1", "2.5"),
    "--sigma": ("0", "1"),
    "--zeta": ("0", "1"),
    "--beta": ("0", "0.5"),
    "--gap": ("1",),
    "--title": ("a title",),
    "--tuned": ("no",),
    "--client": ("0",),
    "--replace": ("0", "1"),
    "--nodes": ("1",),
}
ONLY_WRONG = {"--jobs", "--nodes", "--workers"}
"""Where a larger number is right, and starts as many processes."""
NEVER = {"--watch", "--help", "--version", "--install-completion"}
ENGINES = ("auto", "serial", "stacked", "Serial", "", "none", "pool ", "\x1b[31m", "gpu")
DEVICES = ("cpu", "cuda", "cuda:1", "mps", "meta", "cpu:99", "xpu", "\x1b[31m", "cuda:-1", "")
LONG = re.compile(r"(?<![0-9.eE-])(?!8443)[0-9][0-9_]{3,18}(?![0-9])")
"""Numbers with which a command may rightly take hours."""


@dataclass
class Line:
    """A command line that can still be changed."""

    command: tuple[str, ...]
    positionals: list[str] = field(default_factory=list)
    options: list[tuple[str, str | None]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    sound: bool = True
    quick: bool = True

    def words(self) -> tuple[str, ...]:
        """The arguments."""
        words = [*self.command, *self.positionals]
        for flag, value in self.options:
            words += [flag] if value is None else [flag, value]
        # A NUL cannot be in an argument.
        return tuple(word.replace("\0", "") for word in words)

    def value(self, flag: str) -> str | None:
        """The last value of an option."""
        return next((value for f, value in reversed(self.options) if f == flag), None)


def make(random: Random, place: Place) -> Case:
    """A command with up to two faults."""
    write_surroundings(place)
    base = random.choices(list(BASES), list(BASES.values()))[0]
    line = base(random, place)
    add_faults(random, line)
    return Case([step_of(line)])


def write_surroundings(place: Place) -> None:
    """The files that commands read, and what stands in the place of some."""
    write_inputs(place.work)
    os.mkfifo(place.work / "fifo")
    os.mkfifo(place.work / "fifo.csv")
    os.mkfifo(place.work / "fifo.npy")
    (place.work / "loop").symlink_to("loop")


def add_faults(random: Random, line: Line) -> None:
    """Up to two faults."""
    for _ in range(random.choices((0, 1, 2), (15, 60, 25))[0]):
        line.sound = False
        random.choices(list(FAULTS), list(FAULTS.values()))[0](random, line)


def step_of(line: Line) -> Step:
    """The line as a step, with what it may change."""
    words = line.words()
    outs = [value for flag, value in line.options if flag in ("--out", "--state") and value]
    writes = (*line.writes, *(outs or ("runs", "paper", "report.html")))
    if line.command == ("report",) and not outs:
        # A fault may have named another folder.
        writes += tuple(f"{folder}/report.html" for folder in line.positionals[:1])
    if line.command == ("fleet", "init"):
        writes += tuple(line.positionals)  # A fault may have changed the folder's name.
    quick = line.quick and not any(LONG.search(word) for word in words[1:])
    return Step(
        words,
        expect="success" if line.sound else "any",
        writes=writes,
        quick=quick,
        may_differ=line.command == ("fleet", "check"),
    )


def run(random: Random, place: Place) -> Line:
    """A small run."""
    line = Line(("run",), ["quadratic.toml"], [("--out", "out")])
    if random.random() < 0.3:
        line.positionals = ["digits.toml"]
        add(random, line, "--algorithm", "--seed", "--batch-size", "--model", "--views")
        add(random, line, "--links", "--downlink")
    else:
        add(random, line, "--algorithm", "--seed", "--learning-rate", "--local-steps")
        if random.random() < 0.2:
            line.options += [("--links", "table"), ("--set", "links.file=timetable.npy")]
        elif random.random() < 0.2:
            line.options += [("--trace", "trace.csv")]
    add(random, line, "--rounds", "--engine", "--evaluate-every", "--global-learning-rate")
    flags(random, line, "--json", "--overwrite")
    views = line.value("--views")
    if views and line.value("--algorithm") not in (None, "fedpbc", "fedavg"):
        line.sound = False
    if random.random() < 0.2:
        copy_template(place, random.choice(("finished", "killed")), place.work / "out")
        line.sound = line.sound and ("--overwrite", None) in line.options
    return line


def compare(random: Random, place: Place) -> Line:
    """A small comparison."""
    line = Line(("compare",), ["quadratic.toml"], [("--jobs", "1"), ("--seeds", "0")])
    line.options += [("--algorithms", random.choice(VALID["--algorithms"])), ("--out", "out")]
    add(random, line, "--rounds", "--local-steps", "--engine", "--sweep")
    flags(random, line, "--json", "--overwrite", "--ceiling")
    return line


def links(random: Random, place: Place) -> Line:
    """The statistics of some links."""
    line = Line(("links",))
    pick = random.randrange(4)
    if pick == 0:
        line.options += [("--trace", "trace.csv"), ("--rounds", "3")]
    elif pick == 1:
        line.positionals = [random.choice(("quadratic.toml", "digits.toml", "app.toml"))]
    elif pick == 2:
        copy_template(place, random.choice(("finished", "killed")), place.work / "a")
        line.positionals = ["a"]
    else:
        line.options += [("--app", "app.py"), ("--clients", "3"), ("--rounds", "30")]
    if random.random() < 0.3:
        line.options += [("--out", random.choice(("links.html", "links.png", "links.json")))]
    flags(random, line, "--json")
    return line


def theory(random: Random, place: Place) -> Line:
    """What the theory says about something."""
    line = Line(("theory",))
    pick = random.randrange(5)
    if pick == 0:
        line.options += [("--p", random.choice(VALID["--p"]))]
    elif pick == 1:
        line.options += [("--table", "timetable.npy")]
    elif pick == 2:
        line.positionals = [random.choice(("quadratic.toml", "digits.toml"))]
    elif pick == 3:
        copy_template(place, random.choice(("finished", "killed")), place.work / "a")
        line.positionals = ["a"]
    else:
        line.options += [("--p", "0.5,0.2,0.9"), ("--targets", "targets.npy")]
    add(random, line, "--step-size", "--local-steps", "--sigma", "--zeta", "--beta", "--gap")
    if random.random() < 0.2:
        line.options += [("--out", "clients.csv")]
    flags(random, line, "--json")
    # Which constants are allowed depends on the rest.
    line.sound = pick == 0
    return line


def report(random: Random, place: Place) -> Line:
    """A page about a run or two."""
    copy_template(place, random.choice(("finished", "killed", "finished-digits")), place.work / "a")
    line = Line(("report",), ["a"], writes=["a/report.html"])
    if random.random() < 0.2:
        line.positionals.append("a")
    add(random, line, "--title")
    if random.random() < 0.3:
        line.options += [("--out", random.choice(("page.html", "sub/page.html", "mine.txt")))]
        line.sound = False
    return line


def resume(random: Random, place: Place) -> Line:
    """The rest of a run."""
    name = random.choice(("finished", "killed", "killed-disk", "comparison-killed"))
    copy_template(place, name, place.work / "a")
    line = Line(("resume",), ["a"], writes=["a"])
    if name.startswith("comparison"):
        line.options += [("--jobs", "1")]
    flags(random, line, "--json")
    return line


def verify(random: Random, place: Place) -> Line:
    """Whether folders are as they were written."""
    names = random.sample(("finished", "killed", "comparison", "search"), random.choice((1, 1, 2)))
    for name in names:
        copy_template(place, name, place.work / name)
    line = Line(("verify",), names)
    flags(random, line, "--json")
    return line


def list_(random: Random, place: Place) -> Line:
    """What there is."""
    line = Line(("list",))
    flags(random, line, "--json")
    add(random, line, "--plugin")
    return line


def fleet_init(random: Random, place: Place) -> Line:
    """A new fleet."""
    line = Line(("fleet", "init"), ["fleet"], [("--clients", "2")], writes=["fleet"])
    line.options += [("--host", random.choice(VALID["--host"]))]
    add(random, line, "--port", "--rounds", "--days", "--data", "--algorithm", "--round-seconds")
    flags(random, line, "--insecure")
    return line


def fleet_folder(random: Random, place: Place) -> Line:
    """Something about a fleet that exists."""
    name = random.choice(("add", "renew", "status", "check", "accept", "leave"))
    line = Line(("fleet", name), ["fleet"], writes=["fleet"])
    if name in ("accept", "leave") or random.random() < 0.2:
        copy_template(place, "job", place.work / "fleet")
        if name in ("accept", "leave"):
            line.options += [("--client", random.choice(("0", "1", "2", "3", "-1", "x")))]
    else:
        copy_template(place, random.choice(("fleet", "fleet-insecure")), place.work / "fleet")
        if name in ("status", "check"):
            line.positionals = ["fleet/server"]
    add(random, line, *(("--replace",) if name == "add" else ()))
    # Without keys there is nothing to replace.
    line.sound = (
        name == "add" and not line.options and not (place.work / "fleet/rounds.jsonl").exists()
    )
    return line


def paper(random: Random, place: Place) -> Line:
    """A figure or table of the paper, tiny where that can be asked for."""
    figure = random.choice(("fig2", "fig5", "fig6", "fig3", "table1", "table2", "ablation", "tune"))
    line = Line(("paper",), [figure], [("--out", "out")], quick=False)
    if figure.startswith("fig"):
        # What is right takes long.
        line.options.append(("--seeds", random.choice(("x", "-1", "", "1-0"))))
        line.sound = False
    else:
        line.options += [("--data", "digits"), ("--seeds", "0"), ("--jobs", "1")]
        line.options += [("--rounds", random.choice(("1", "2"))), ("--set", "clients=3")]
        line.options += [("--algorithms", "fedavg"), ("--links", "bernoulli")]
        # Which of these belong together is for the command to say.
        line.sound = False
    if random.random() < 0.4:
        tuned = (*VALID["--tuned"], "quadratic.toml", hostile.path(random), "fifo", "tuned.toml")
        line.options.append(("--tuned", random.choice(tuned)))
        place.write("tuned.toml", hostile.toml_value(random).encode("utf-8", "replace"))
    flags(random, line, "--quick", "--json", "--overwrite")
    return line


def nothing(random: Random, place: Place) -> Line:
    """Any command without anything, or one that does not exist."""
    line = Line(random.choice((*_commands(), ("nope",), ("fleet", "nope"), ())), sound=False)
    if line.command in _LONG_LIVED or line.command in _TRAINING:
        line.options = [("--nope", None)]
    return line


_TRAINING = {("run",), ("compare",), ("tune",), ("advise",)}
"""Without a configuration, they do an experiment of the usual size."""
_LONG_LIVED = {("fleet", "demo"), ("fleet", "server"), ("fleet", "device"), ("trainer",)}


def long_lived(random: Random, place: Place) -> Line:
    """A command that works until it is stopped, with something missing."""
    name = random.choice(sorted(_LONG_LIVED))
    if name == ("fleet", "demo"):
        options = [("--nodes", random.choice(("0", "-1", "x", "")))]
        return Line(name, [], options, sound=False, quick=False)
    if name == ("trainer",):
        options = [("--client", random.choice(("-1", "x", "0"))), ("--state", hostile.path(random))]
        if options[0][1] == "0":
            options.append(("--device", "nope"))
        return Line(name, [], options, sound=False, quick=False)
    return Line(name, [hostile.path(random)], sound=False, quick=False)


BASES = {
    run: 34,
    compare: 8,
    theory: 16,
    links: 4,
    report: 6,
    resume: 8,
    verify: 2,
    list_: 4,
    fleet_init: 6,
    fleet_folder: 6,
    paper: 3,
    nothing: 4,
    long_lived: 1,
}


def right_values(name: str) -> tuple[str, ...]:
    """Values that are right for an option; none where they are not known."""
    return link_schemes() if name in ("--links", "--downlink") else VALID.get(name, ())


@cache
def link_schemes() -> tuple[str, ...]:
    """Every link scheme that needs no file."""
    from fedpbc.links import SCHEMES

    files = {name for name, kind in SCHEMES.items() if "file" in kind.options}
    return tuple(sorted(set(SCHEMES) - files))


def add(random: Random, line: Line, *names: str) -> None:
    """Add some of these options with values that are right."""
    for name in names:
        if random.random() < 0.25:
            line.options.append((name, random.choice(right_values(name))))


def flags(random: Random, line: Line, *names: str) -> None:
    """Add some of these flags."""
    line.options += [(name, None) for name in names if random.random() < 0.2]


def any_option(random: Random, line: Line) -> None:
    """One of the command's own options, with a value of any kind."""
    declared = _declared(line.command)
    if not declared:
        return
    name = random.choice(sorted(declared))
    if declared[name] == "flag":
        line.options.append((name, None))
    else:
        line.options.append((name, value_of(random, name, declared[name])))


def other_value(random: Random, line: Line) -> None:
    """Another value in the place of one."""
    valued = [k for k, (_, value) in enumerate(line.options) if value is not None]
    if valued:
        k = random.choice(valued)
        name = line.options[k][0]
        line.options[k] = name, value_of(random, name, _declared(line.command).get(name, "text"))
    else:
        any_option(random, line)


def setting(random: Random, line: Line) -> None:
    """``--set`` with any setting and any value."""
    key = random.choice(setting_keys())
    pick = random.random()
    if pick < 0.1:
        key = random.choice(("", ".", "a..b", "links", "links.name.x", "algorithms.x.y", "task"))
    elif pick < 0.15:
        key = hostile.text(random)
    line.options.append(("--set", f"{key}={set_value(random, key)}"))


def set_value(random: Random, key: str) -> str:
    """A value of a setting, as TOML or not."""
    last = key.rpartition(".")[2]
    if last in ("engine", "track", "ray_address"):
        return random.choice(ENGINES)
    if last in ("workers",):
        return random.choice(("0", "-1", "x", "1.5", "10" * 200))
    if last in ("file", "targets", "dir", "p", "plugins", "app") and random.random() < 0.5:
        return hostile.path(random)
    valid = right_values(f"--{last.replace('_', '-')}")
    if valid and random.random() < 0.2:
        return random.choice(valid)
    return hostile.toml_value(random).replace("\0", "")


def misspelled(random: Random, line: Line) -> None:
    """An option that does not exist."""
    name = random.choice(
        ("--round", "--nope", "-x", "--", "---", "--set", "--rounds=", "-", "--out=")
    )
    value = random.choice((None, "1", hostile.text(random)))
    line.options.append((name, value))


def twice(random: Random, line: Line) -> None:
    """An option a second time, with another value."""
    if line.options:
        name, value = random.choice(line.options)
        kind = _declared(line.command).get(name, "text")
        line.options.append((name, None if value is None else value_of(random, name, kind)))


def other_positional(random: Random, line: Line) -> None:
    """Something else in the place of a file or folder, one too many, or none."""
    pick = random.randrange(4)
    if pick == 0 and line.positionals and line.command not in _LONG_LIVED:
        line.positionals.pop()
        # Without its file, a run has the default length.
        line.options.append(("--rounds", "0"))
    elif pick == 1:
        line.positionals.append(hostile.path(random))
    elif line.positionals:
        line.positionals[0] = hostile.path(random)
        if line.command in _TRAINING:
            line.options.append(("--rounds", "0"))


FAULTS = {
    any_option: 30,
    other_value: 15,
    setting: 35,
    misspelled: 5,
    twice: 5,
    other_positional: 10,
}


def value_of(random: Random, name: str, kind: str) -> str:
    """A value of an option: right, or of a kind that has broken programs."""
    if name in ONLY_WRONG:
        return random.choice(("0", "-1", "", "x", "1.5", "-" + "9" * 30, "nan"))
    if name == "--engine":
        return random.choice(ENGINES)
    if name in ("--ray-address", "--track"):
        return random.choice(("", "nope", "\x1b[31m", "tensorboard,nope", ",", "a" * 5000))
    if name == "--device":
        return random.choice(DEVICES)
    if name == "--set":
        key = random.choice(setting_keys())
        return random.choice(
            (key, f"{key}={set_value(random, key)}", f"={key}", hostile.text(random))
        )
    if name in ("--out", "--state"):
        return out_path(random)
    if name in ("--plugin", "--app") and random.random() < 0.7:
        return random.choice(("plugin.py", "app.py", "trace.csv", hostile.path(random)))
    if name in ("--space", "--sweep") and random.random() < 0.7:
        return values_of(random)
    if name in ("--algorithms", "--baseline") and random.random() < 0.5:
        return entry_of(random)
    valid = right_values(name)
    if valid and random.random() < 0.35:
        return random.choice(valid)
    if kind == "path":
        return random.choice((hostile.path(random), "trace.csv", "targets.npy", "quadratic.toml"))
    if kind == "int":
        return random.choice((str(hostile.integer(random)), "1.0", "1e3", hostile.text(random)))
    if kind == "float":
        return random.choice((repr(hostile.number(random)), hostile.text(random)))
    return hostile.text(random)


def values_of(random: Random) -> str:
    """A setting with several values, as for ``--space`` and ``--sweep``."""
    key = random.choice((*setting_keys(), "learning_rate", "fedau.cutoff", "nope", ""))
    items = [set_value(random, key) for _ in range(random.choice((0, 1, 2, 3)))]
    return f"{key}{random.choice(('=', '=', '=', ''))}{','.join(items)}"


def entry_of(random: Random) -> str:
    """An algorithm with settings of its own, or what looks like one."""
    name = random.choice(("fedau", "fedavg", "ceiling", "nope", "..", hostile.text(random)))
    key = random.choice((*setting_keys(), "cutoff", "learning_rate", "name", ""))
    entry = f"{name}:{key}={set_value(random, key)}"
    return random.choice((entry, entry, f"{entry},{entry}", f"fedavg,{entry}", f"{name}:", name))


def out_path(random: Random) -> str:
    """A folder to write to; one that is somebody else's must be refused."""
    return random.choice(
        (
            *("out", "new", "new/deep/er", ".", "..", "mine", "mine.txt", "mine.txt/x", "home"),
            *("/dev/null", "/dev/full", "/proc/nope/x", "~nosuchuser/x", "fifo", "loop", "loop/x"),
            *("a" * 300, "x\x1b[31m", "x\udcff", "line\nbreak", "x\u202ey", "x[/b]", "out/../out"),
            *("clients.csv", "page.html", "-", " ", "trace.csv"),
        )
    )


@cache
def setting_keys() -> tuple[str, ...]:
    """Every setting by its dotted name, those of algorithms and link schemes included."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.experiments.settings import SECTIONS, General
    from fedpbc.links import SCHEMES
    from fedpbc.options import options_of

    keys = [*options_of(General)]
    for section, settings in SECTIONS.items():
        keys += [f"{section}.{name}" for name in options_of(settings)]
    for scheme in SCHEMES.values():
        keys += [f"{links}.{name}" for links in ("links", "downlink") for name in scheme.options]
    for kind in ALGORITHMS.values():
        keys += [f"algorithm.{name}" for name in options_of(kind.__init__)]
        keys += [f"algorithms.{kind.name}.{name}" for name in options_of(kind.__init__)]
    keys += [
        f"{links}.{name}" for links in ("links", "downlink") for name in ("p", "sigma", "delta")
    ]
    return tuple(sorted({*keys, "algorithms", "seeds", "seed", "name"}))


@cache
def _commands() -> tuple[tuple[str, ...], ...]:
    """All commands by name."""
    from fedpbc.cli.app import command_tree

    names: list[tuple[str, ...]] = []
    group: Any = command_tree()
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        names += [(name, sub) for sub in inner] if inner else [(name,)]
    return tuple(sorted(names))


@cache
def _declared(command: tuple[str, ...]) -> dict[str, str]:
    """The options of a command, and the kind of value that each has."""
    from fedpbc.cli.app import command_tree

    found: Any = command_tree()
    for name in command:
        found = getattr(found, "commands", {}).get(name)
        if found is None:
            return {}
    options = {}
    for parameter in found.params:
        for flag in parameter.opts:
            if flag.startswith("--") and flag not in NEVER:
                kind = parameter.type.name
                is_flag = getattr(parameter, "is_flag", False)
                options[flag] = (
                    "flag"
                    if is_flag
                    else {"integer": "int", "float": "float", "path": "path"}.get(
                        kind.split(" ")[0], "text"
                    )
                )
    return options
