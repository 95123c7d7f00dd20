"""Traces of recorded links: CSV files with faults."""

from __future__ import annotations

from random import Random

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import TRACE, write_inputs

TIMES = (
    *("0", "1", "600", "1e3", "-1", "nan", "inf", "1e308", "1e-310", "5e-324", "1e400", "", " 5 "),
    *("x", "1_0", "0x10", "٣", "1,2", '"7"', "9" * 400, "-0.0", "1e-9", "1.7976931348623157e308"),
)
HEADS = (
    "client,online_from_s,online_until_s",
    " client , online_from_s , online_until_s ",
    "client;online_from_s;online_until_s",
    "client,online_from_s",
    "\ufeffclient,online_from_s,online_until_s",
    '"client","online_from_s","online_until_s"',
    "",
)
COMMENTS = (
    "# round_seconds = 300",
    "# round_seconds = 1.2.3",
    "# round_seconds = 1e999",
    "# round_seconds = 1e-310",
    "# round_seconds = 0",
    "# round_seconds = -5",
    "# round_seconds = nan",
    "# round_seconds = .",
    "# round_seconds = " + "1" * 5000,
    "# anything",
)
LENGTHS = ("600", "1e308", "1e-310", "5e-324", "0", "-1", "nan", "1e-9", "1e15", "300.5")


def make(random: Random, place: Place) -> Case:
    """A run or the theory over a trace."""
    write_inputs(place.work)
    sound = random.random() < 0.1
    if sound:
        content = TRACE.encode()
    elif random.random() < 0.5:
        content = hostile.mutate(random, TRACE.encode())
    else:
        content = written(random).encode("utf-8", "surrogateescape")
    place.write("links.csv", content)
    if random.random() < 0.7:
        words = ["run", "quadratic.toml", "--out", "out", "--trace", "links.csv"]
    else:
        words = ["theory", "--links", "trace", "--set", "links.file=links.csv"]
        words += ["--clients", "3", "--rounds", "5"]
        sound = False
    if random.random() < 0.3:
        length = random.choice(LENGTHS)
        words += ["--set", f"links.round_seconds={length}"]
        sound = sound and length == "600"
    expect = "success" if sound else "any"
    return Case([Step(tuple(words), expect=expect, writes=("out",))])


def written(random: Random) -> str:
    """A trace of its own."""
    lines = [random.choice(COMMENTS)] if random.random() < 0.4 else []
    lines.append(HEADS[0] if random.random() < 0.8 else random.choice(HEADS))
    for _ in range(random.choice((0, 1, 3, 6))):
        if random.random() < 0.4:
            begin = random.randrange(2000)
            lines.append(f"c{random.randrange(4)},{begin},{begin + random.randrange(900)}")
        elif random.random() < 0.8:
            name = random.choice(("a", "b", "", hostile.text(random)))
            lines.append(f"{name},{random.choice(TIMES)},{random.choice(TIMES)}")
        else:
            lines.append(random.choice(("", ",", "a,1", "a,1,2,3", "#", '"', hostile.text(random))))
    return random.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines) + random.choice(("\n", ""))
