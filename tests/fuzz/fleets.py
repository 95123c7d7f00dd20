"""Fleets: the logs of a server, its configuration, and commands on a fleet's folder."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.deployment.round_logs import round_line
from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template

FLEET: dict[str, Any] = {
    "clients": 4,
    "rounds": 10,
    "algorithm": "fedpbc",
    "data": {"name": "digits"},
    "fleet": {"round_seconds": 10.0, "wait_for": 1},
}
FIELDS = (
    *("round", "active", "refused", "selected", "at", "began_s", "ended_s", "known", "everyone"),
    *("bytes_up", "bytes_down"),
)


def make(random: Random, place: Place) -> Case:
    """A server's folder with a log, or a fleet's folder, and a command about it."""
    if random.random() < 0.65:
        return status(random, place)
    return folder(random, place)


def status(random: Random, place: Place) -> Case:
    """The status of a job whose files have faults."""
    from tests.fuzz.configurations import document

    values = json.loads(json.dumps(FLEET))
    lines: list[Any] = [
        round_line(t, [i for i in range(4) if random.random() < 0.5]) for t in range(5)
    ]
    nodes: Any = {str(i): {"node": 900 + i, "at": 1000.0} for i in range(3)}
    faults = random.choice((0, 1, 1, 2))
    for _ in range(faults):
        pick = random.random()
        if pick < 0.5:
            line = random.choice(lines)
            if isinstance(line, dict):
                line[random.choice((*FIELDS, hostile.text(random)))] = hostile.unlike(random)
        elif pick < 0.6:
            lines[random.randrange(len(lines))] = hostile.unlike(random)
        elif pick < 0.75:
            nodes[random.choice(("0", "x", "-1", "99"))] = hostile.unlike(random)
        else:
            table = random.choice((values, values["fleet"]))
            if isinstance(table, dict):
                table[random.choice((*table, "listen", "app", "links"))] = hostile.unlike(random)
    texts = {
        "server/fleet.toml": document(random, values),
        "server/rounds.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "server/heard.json": json.dumps(nodes),
    }
    if random.random() < 0.4:
        texts["server/finished.json"] = json.dumps({"rounds": 5, "algorithm": "fedpbc"})
    damaged = random.choice(sorted(texts)) if random.random() < 0.3 else ""
    for name, content in texts.items():
        data = content.encode("utf-8", "surrogatepass")
        place.write(name, hostile.mutate(random, data) if name == damaged else data)
    expect = "success" if not faults and not damaged else "any"
    words = ["fleet", "status", "server", *(["--json"] if random.random() < 0.3 else [])]
    if random.random() < 0.2:
        words, expect = ["fleet", "check", "server"], "any"
    elif random.random() < 0.3:
        words = ["report", "server"]
    writes = ("server/report.html",) if words[0] == "report" else ()
    return Case([Step(tuple(words), expect=expect, may_differ=words[1] == "check", writes=writes)])


def folder(random: Random, place: Place) -> Case:
    """A command on a fleet's folder with a fault in one of its small files."""
    fleet = copy_template(place, random.choice(("fleet", "fleet-insecure")), place.work / "fleet")
    names = ["init.toml", "server/fleet.toml", "device-0/device.toml"]
    faults = random.choice((0, 1, 1, 1))
    for _ in range(faults):
        path = fleet / random.choice(names)
        if random.random() < 0.5:
            path.write_bytes(hostile.mutate(random, path.read_bytes()))
        else:
            lines = path.read_text().splitlines()
            keys = [k for k, line in enumerate(lines) if " = " in line]
            k = random.choice(keys)
            lines[k] = f"{lines[k].partition(' = ')[0]} = {hostile.toml_value(random)}"
            path.write_text("\n".join(lines) + "\n", errors="replace")
    words = random.choice(
        (["add", "fleet"], ["renew", "fleet"], ["add", "fleet", "--replace", "0"])
    )
    expect = "success" if not faults and words == ["add", "fleet"] else "any"
    return Case([Step(("fleet", *words), expect=expect, writes=("fleet",))])
