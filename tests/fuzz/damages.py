"""Damage to the folders of runs, comparisons and fleets, and what the commands make of it.

Whatever was done to a folder, ``resume`` ends with the bits of the undamaged run, or says in one
line what is wrong; it never ends well with results that are missing or different.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from safetensors import SafetensorError, safe_open

from tests.fuzz import hostile
from tests.fuzz.case import Case, Check, Outcome, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template, template

RUNS = (
    *("finished", "finished-digits", "finished-disk", "finished-table"),
    *("killed", "killed-digits", "killed-disk"),
)
UNLIKE_RUNS = ("seconds", "memory", "checksums", "folder", "engine")
"""Parts of a summary that may differ between two runs of the same bits."""


def runs(random: Random, place: Place) -> Case:
    """Damage to a run."""
    name = random.choice(RUNS)
    run = copy_template(place, name)
    done = [damage(random, place, run) for _ in range(random.choice((1, 1, 1, 2)))]
    reference = template(place, f"{name}-resumed" if name.startswith("killed") else name) / "run"
    steps = [step(command) for command in sequence(random, ("theory", "links", "report", "verify"))]
    return Case(steps, intact({"": reference}, steps, done), about=f"{name}: {'; '.join(done)}")


def comparisons(random: Random, place: Place) -> Case:
    """Damage to a comparison, or to one of its runs."""
    name = random.choice(("comparison", "comparison-killed"))
    run = copy_template(place, name)
    done = [damage(random, place, run) for _ in range(random.choice((1, 1, 2)))]
    reference = template(place, "comparison") / "run"
    cells = {
        f"{a}/seed-{k}": reference / a / f"seed-{k}" for a in ("fedpbc", "mifa") for k in (0, 1)
    }
    steps = [
        # More processes than one would each import everything.
        step((*command, "--jobs", "1") if command[0] == "resume" else command)
        for command in sequence(random, ("report", "verify"))
    ]
    return Case(steps, intact(cells, steps, done), about=f"{name}: {'; '.join(done)}")


def running(random: Random, place: Place) -> Case:
    """Damage to a run that another process works on."""
    run = copy_template(place, random.choice(("killed", "killed-disk")))
    # Kept open while the steps run; each opens the file on its own.
    lock = os.open(run / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = damage(random, place, run, but=(".lock",)) if random.random() < 0.7 else "none"
    steps = [
        Step(("resume", "run"), expect="refusal"),
        Step(("report", "run"), writes=("run/report.html",)),
        Step(("run", "--out", "run", "--overwrite", "--rounds", "1"), expect="refusal"),
    ]
    return Case([random.choice(steps)], about=f"running: {done}")


def foreign(random: Random, place: Place) -> Case:
    """A folder that somebody sent: its plugin does not run, and nothing outside changes."""
    copy_template(place, "foreign")
    about = "a plugin that leaves a mark at home"
    if random.random() < 0.5:
        about = damage(random, place, place.work / "run")
    commands = [("resume", "run"), ("theory", "run"), ("report", "run"), ("verify", "run")]
    commands.append(("run", "run/config.toml", "--out", "out"))
    steps = [step(random.choice(commands)) for _ in range(2)]
    return Case(steps, about=f"foreign: {about}")


def fleets(random: Random, place: Place) -> Case:
    """Damage to a fleet's folder."""
    name = random.choice(("fleet", "fleet-insecure", "job", "job"))
    run = copy_template(place, name)
    done = [damage(random, place, run) for _ in range(random.choice((1, 1, 2)))]
    if name == "job":
        commands = [
            *(("fleet", "status", "run"), ("fleet", "check", "run"), ("fleet", "accept", "run")),
            *(("fleet", "leave", "run", "--client", "1"), ("links", "--trace", "run")),
            *(("fleet", "accept", "run", "--client", "1"), ("report", "run")),
        ]
        words = random.choice(commands)
        writing = {"accept": ("run",), "leave": ("run",), "run": ("run/report.html",)}
        writes = writing.get(words[1], ())
        chosen = [Step(words, may_differ=words[1] == "check", writes=writes, confined=True)]
    else:
        commands = [
            ("fleet", "add", "run"),
            ("fleet", "renew", "run"),
            ("fleet", "status", "run/server"),
        ]
        commands.append(("fleet", "add", "run", "--replace", "1"))
        chosen = [Step(random.choice(commands), writes=("run",))]
    return Case(chosen, about=f"{name}: {'; '.join(done)}")


def sequence(random: Random, others: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Commands on the folder: some that only read it, then ``resume``."""
    chosen = [(name, "run") for name in random.sample(others, random.choice((0, 1, 1)))]
    return [*chosen, ("resume", "run", *random.choice(((), (), ("--json",))))]


def step(command: tuple[str, ...]) -> Step:
    """A command on a damaged folder."""
    name = command[0]
    writes = {"resume": ("run",), "report": ("run/report.html",), "run": ("out",)}.get(name, ())
    return Step(command, writes=writes, confined=name != "run")


def damage(random: Random, place: Place, folder: Path, but: tuple[str, ...] = ()) -> str:
    """Do something to one of a folder's files; returns what."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() and path.name not in but)
    small = [path for path in files if path.suffix in (".jsonl", ".json", ".toml")]
    path = random.choice(random.choice((files, files, small)) or files or [folder / "config.toml"])
    name = path.relative_to(folder)
    if path.is_symlink() or not path.is_file():
        return f"nothing to {name}"
    content = path.read_bytes()
    pick = random.randrange(100)
    if pick < 45:
        path.write_bytes(hostile.mutate(random, content))
        return f"bytes of {name}"
    if pick < 60 and path.suffix in (".json", ".jsonl", ".toml"):
        path.write_bytes(edited(random, path.suffix, content))
        return f"values of {name}"
    if pick < 66:
        path.unlink()
        return f"{name} is gone"
    if pick < 70:
        path.write_bytes(content + content)
        return f"{name} twice in itself"
    if pick < 75:
        other = random.choice(files)
        if other.is_file() and not other.is_symlink():
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
        return f"{name} and {other.relative_to(folder)} swapped"
    if pick < 85:
        return linked(random, place, path, name)
    if pick < 88:
        path.unlink()
        os.mkfifo(path)
        return f"a pipe in place of {name}"
    if pick < 91:
        path.unlink()
        path.mkdir()
        return f"a folder in place of {name}"
    if pick < 92:
        path.chmod(0)
        return f"no permission for {name}"
    if pick < 96:
        return stray(random, place, folder, content)
    return moved(random, place, folder)


def linked(random: Random, place: Place, path: Path, name: Path) -> str:
    """A link in place of a file: to a file of the user, to nowhere, to itself, to a device."""
    outside = place.write("elsewhere/copy", path.read_bytes())
    path.unlink()
    up = os.path.relpath(place.work, path.parent)
    target = random.choice(
        (
            f"{up}/mine.txt",
            str(place.home / "notes.txt"),
            "nowhere",
            path.name,
            "/dev/zero",
            str(outside),
        )
    )
    path.symlink_to(target)
    return f"a link to {target} in place of {name}"


def stray(random: Random, place: Place, folder: Path, content: bytes) -> str:
    """A file that does not belong there."""
    name = random.choice(
        (
            *("checkpoint-9999999.safetensors", "checkpoint-0000001.safetensors", "notes.txt"),
            *(".config.toml.abc.tmp", ".tmpabc", "report.html", "tensorboard", "plan.toml"),
            *("x\x1b[31m", "x\udcff", "inputs/notes.txt", "compare.toml", "failure.txt"),
            *("reports.bin", "tracking.json", "checkpoint-²²²²²²².safetensors"),
        )
    )
    path = folder / name
    if path.exists() or not path.parent.is_dir():
        return "nothing"
    if random.random() < 0.2:
        path.symlink_to(place.home / "notes.txt")
    else:
        path.write_bytes(random.choice((content, b"", b"\xff\xfe", b"fedpbc report")))
    return f"a stray {name!r}"


def moved(random: Random, place: Place, folder: Path) -> str:
    """A folder in it is elsewhere, behind a link; or gone."""
    folders = [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    staging = folder / ".next"  # Where a run begins that is to replace the one here.
    if not staging.is_symlink() and (not folders or random.random() < 0.1):
        staging.symlink_to(place.work / "mine")
        return "a link to mine, named .next"
    if not folders:
        return "nothing"
    path = random.choice(folders)
    elsewhere = place.work / "elsewhere-folder"
    if random.random() < 0.3:
        shutil.rmtree(path)
        return f"the folder {path.name} is gone"
    if random.random() < 0.5 and not elsewhere.exists():
        shutil.move(path, elsewhere)
    else:
        shutil.rmtree(path)
        elsewhere = place.work / "mine"
    path.symlink_to(elsewhere)
    return f"a link to {elsewhere.name} in place of the folder {path.name}"


def edited(random: Random, suffix: str, content: bytes) -> bytes:
    """Another value in a JSON or TOML file, which can still be parsed."""
    if suffix == ".toml":
        lines = content.decode("utf-8", "replace").split("\n")
        keys = [k for k, line in enumerate(lines) if " = " in line or line.startswith("[")]
        if not keys:
            return content
        k = random.choice(keys)
        if lines[k].startswith("["):
            lines[k] = random.choice(
                (
                    '[algorithms."../mine"]',
                    '[algorithms."../../work/mine"]',
                    "[links]",
                    '["x\\u001b"]',
                )
            )
        else:
            lines[k] = f"{lines[k].partition(' = ')[0]} = {hostile.toml_value(random)}"
        return "\n".join(lines).encode("utf-8", "replace")
    lines = content.decode("utf-8", "replace").splitlines() if suffix == ".jsonl" else []
    try:
        if suffix == ".jsonl":
            k = random.randrange(len(lines))
            lines[k] = json.dumps(replaced(random, json.loads(lines[k])))
            return ("\n".join(lines) + "\n").encode()
        return json.dumps(replaced(random, json.loads(content)), indent=2).encode()
    except (ValueError, RecursionError):
        return content


def replaced(random: Random, value: Any) -> Any:
    """A JSON value with something else somewhere in it."""
    if random.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return hostile.unlike(random)
    if isinstance(value, list):
        k = random.randrange(len(value))
        return [replaced(random, item) if i == k else item for i, item in enumerate(value)]
    key = random.choice(list(value))
    if random.random() < 0.2:
        return {k: v for k, v in value.items() if k != key}
    if random.random() < 0.1:
        return {**value, hostile.text(random): hostile.unlike(random)}
    return {**value, key: replaced(random, value[key])}


def intact(references: dict[str, Path], steps: list[Step], done: list[str]) -> Check:
    """After a ``resume`` that ended well, all results are those of the undamaged runs.

    What ``verify`` found in order can be resumed, unless settings were changed: users may do that.
    """
    settings = any(name in each for each in done for name in ("config.toml", "compare.toml"))

    def check(place: Place, outcomes: list[Outcome]) -> Iterable[str]:
        for step, outcome in zip(steps, outcomes, strict=True):
            if step.arguments[0] == "resume" and outcome.code == 0:
                for name, reference in references.items():
                    difference = differs(place.work / "run" / name, reference)
                    if difference:
                        yield f"silent loss: resume ended well, but {name} {difference}"
            in_order = step.arguments[0] == "verify" and outcome.code == 0
            if in_order and outcomes[-1].code != 0 and not settings:
                yield "verify found no damage, but resume did"

    return check


def differs(folder: Path, reference: Path) -> str:
    """What of a run's results is not as in the reference."""
    for name in ("final.safetensors", "metrics.jsonl", "summary.json"):
        if not (folder / name).is_file():  # Not a pipe, which nobody would fill.
            return f"has no file {name}"
    for part in (final, metrics, summary):
        expected = part(reference)
        try:
            found = part(folder)
        except (OSError, ValueError, SafetensorError, KeyError, TypeError, RecursionError) as error:
            return f"has no {part.__name__}: {type(error).__name__}"
        if found != expected:
            return f"has another {part.__name__}"
    return ""


def final(folder: Path) -> Any:
    """The final models to the bit."""
    with safe_open(folder / "final.safetensors", framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata(), {k: (str(a.dtype), a.tobytes()) for k, a in arrays.items()}


def metrics(folder: Path) -> Any:
    """The evaluations without the seconds."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def summary(folder: Path) -> Any:
    """The summary without what may differ."""
    content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {k: v for k, v in content.items() if k not in UNLIKE_RUNS}
