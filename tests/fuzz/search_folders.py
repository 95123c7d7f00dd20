"""Damage to the folders of searches, advice and the paper's tables, and what commands make of it.

Whatever was done to a folder, a search that ends well comes to the same choice, and advice to the
same recommendation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Case, Check, Outcome, Step
from tests.fuzz.damages import damage, differs, step
from tests.fuzz.place import Place
from tests.fuzz.templates import PAPER, SEARCH, copy_template, template, write_inputs

MANIFEST = "fedpbc-manifest.json"
PLANS = ("tune.toml", "compare.toml", "advise.toml", "plan.toml")
CHOICE = ("tuning.json", "tuned.toml", "tuned-fedavg.toml", "tuned-fedau.toml")
OTHER = ("--learning-rate", "0.02")
COMPARED = ("--algorithms", "fedpbc,mifa", "--seeds", "0,1", "--jobs", "1")


def searches(random: Random, place: Place) -> Case:
    """Damage to a search, or to one of its runs."""
    name = random.choice(("search", "search-killed", "search-killed-late"))
    run = copy_template(place, name)
    about, resealed = damaged(random, place, run)
    words, reference = ("resume", "run", "--jobs", "1"), "search"
    pick = random.random()
    if pick < 0.25:
        write_inputs(place.work)
        words = ("tune", "quadratic.toml", *SEARCH, "--out", "run")
        if pick < 0.2:
            words += ("--overwrite",)
        if pick < 0.15:
            words, reference = (*words, *OTHER), "search-other"
    steps = [*reading(random), Step(words, writes=("run",), confined=True)]
    expected = template(place, reference) / "run"
    check = None if resealed else partial(same_choice, expected, about)
    return Case(steps, checked(steps, check, about), about=f"{name}: {about}")


def comparisons(random: Random, place: Place) -> Case:
    """A damaged comparison that is replaced by another one: nothing of it is in the results."""
    run = copy_template(place, random.choice(("comparison", "comparison-killed")))
    about, resealed = damaged(random, place, run)
    write_inputs(place.work)
    words = ("compare", "quadratic.toml", *COMPARED, "--out", "run")
    overwrite = random.random() < 0.8
    reference = "comparison"
    if overwrite:
        words, reference = (*words, *OTHER, "--overwrite"), "comparison-other"
    steps = [Step(words, writes=("run",))]
    expected = template(place, reference) / "run"
    check = None if resealed and not overwrite else partial(same_runs, expected, about)
    return Case(steps, checked(steps, check, about), about=f"replaced: {about}")


def papers(random: Random, place: Place) -> Case:
    """Damage to a table of the paper, or to one of its runs."""
    name = random.choice(("paper", "paper-killed"))
    run = copy_template(place, name)
    about, resealed = damaged(random, place, run)
    words = (*PAPER, "--out", "run", *random.choice(((), (), ("--overwrite",))))
    steps = [*reading(random), Step(words, writes=("run",), confined=True)]
    expected = template(place, "paper") / "run"
    check = None if resealed else partial(same_runs, expected, about)
    return Case(steps, checked(steps, check, about), about=f"{name}: {about}")


def advice(random: Random, place: Place) -> Case:
    """Damage to advice, its search, its comparison, or one of their runs."""
    name = random.choice(("advice", "advice-killed", "advice-killed-late"))
    run = copy_template(place, name)
    about, resealed = damaged(random, place, run)
    resume = Step(("resume", "run", "--jobs", "1"), writes=("run",), confined=True)
    steps = [*reading(random), resume]
    expected = template(place, "advice") / "run"
    check = None if resealed else partial(same_advice, expected, about)
    return Case(steps, checked(steps, check, about), about=f"{name}: {about}")


def damaged(random: Random, place: Place, folder: Path) -> tuple[str, bool]:
    """Damage a folder; returns what was done, and whether its checksums were made to fit."""
    done = [damage(random, place, folder) for _ in range(random.choice((1, 1, 1, 2)))]
    about = "; ".join(done)
    resealed = any(name in about for name in (*PLANS, "inputs/")) and random.random() < 0.5
    if resealed:
        # Somebody who sends a folder can do that, too.
        for manifest in folder.rglob(MANIFEST):
            reseal(manifest)
    # Without its checksums a plan may be anything.
    return about, resealed or MANIFEST in about


def reseal(manifest: Path) -> None:
    """Make the checksums in a manifest fit."""
    try:
        content = json.loads(manifest.read_bytes())
        names = list(content["checksums"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    for name in names:
        path = manifest.parent / name
        if path.is_file():
            content["checksums"][name] = sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


def reading(random: Random) -> list[Step]:
    """Commands that only read the folder."""
    names = random.sample(("report", "verify"), random.choice((0, 1, 1)))
    return [step((name, "run")) for name in names]


def checked(steps: list[Step], same: Any, about: str) -> Check:
    """What must hold after the last step, if it ended well."""
    # A plan whose checksum fits may still be none.
    settings = "config.toml" in about or same is None

    def check(place: Place, outcomes: list[Outcome]) -> Iterable[str]:
        ended_well = outcomes[-1].code == 0
        if ended_well and same is not None:
            difference = same(place.work / "run")
            if difference:
                yield f"silent loss: it ended well, but {difference}"
        commands = [each.arguments[0] for each in steps]
        in_order = commands == ["verify", "resume"] and outcomes[0].code == 0
        if in_order and not ended_well and not settings:
            yield "verify found no damage, but resume did"

    return check


def same_choice(reference: Path, about: str, folder: Path) -> str:
    """What of a search's choice is not as in the reference."""
    for name in CHOICE:
        if not (folder / name).is_file():
            return f"there is no {name}"
        if (folder / name).read_bytes() != (reference / name).read_bytes():
            return f"{name} is another"
    return ""


def same_runs(reference: Path, about: str, folder: Path) -> str:
    """Which run of a comparison is not as in the reference."""
    for run in sorted(reference.rglob("seed-*")):
        name = run.relative_to(reference)
        difference = differs(folder / name, run)
        if difference:
            return f"{name} {difference}"
    return ""


def same_advice(reference: Path, about: str, folder: Path) -> str:
    """What of a recommendation is not as in the reference."""
    expected, found = (
        json.loads((each / "advice.json").read_bytes()) for each in (reference, folder)
    )
    for key in ("recommendation", "settings"):
        if expected[key] != found[key]:
            return f"its {key} is another"
    if (folder / "recommended.toml").read_bytes() != (reference / "recommended.toml").read_bytes():
        return "recommended.toml is another"
    return same_runs(reference / "compare", about, folder / "compare")
