"""The rules that hold for every step, whatever it was given."""

from __future__ import annotations

import json
import re
import signal
import unicodedata
from collections.abc import Iterator

from tests.fuzz.case import Outcome, Step
from tests.fuzz.place import Entry, Place

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of characters that a terminal may obey, or that change what a reader sees."""
ERROR_LENGTH, LINE_LENGTH = 1200, 4000
INTERRUPTED = 130
IN_THE_RUN = re.compile(
    r"diverged|failed|not enough memory|cannot be written|is in use|own\.py line \d+: "
)
"""Failures of work that had begun: its folder stays."""
REMEMBERED = (
    "home/.local",
    "home/.local/state",
    "home/.local/state/fedpbc",
    "home/.local/state/fedpbc/trusted-plugins",
)
NOTE = re.compile(r"fedpbc: (note: |\d+ %: )")
"""Lines besides an error: notes, and how far a command is."""


def judge(step: Step, outcome: Outcome, place: Place, before: dict[str, Entry]) -> Iterator[str]:
    """What is wrong with how a step ended."""
    if outcome.hung:
        yield f"hang: {outcome.hung}"
        return
    # While the interpreter ends, Ctrl-C kills it: a shell then shows the same code.
    interrupted = set() if step.quick else {INTERRUPTED, -signal.SIGINT}
    allowed = {0, 2} | ({1} if step.may_differ else set()) | interrupted
    if outcome.code not in allowed:
        yield f"exit code {outcome.code}"
    if "Traceback (most recent call last)" in outcome.err + outcome.out:
        yield "traceback"
    elif outcome.code == 2:
        yield from _one_line(outcome)
    elif outcome.code == 0 and not step.code:
        for line in outcome.err.splitlines():
            if not NOTE.match(line):
                yield f"unexpected line on standard error: {line[:200]!r}"
                break
    yield from _characters(step, outcome)
    if outcome.left:
        yield outcome.left
    for path in outcome.outside:
        yield f"a change far outside: {path}"
    begun = outcome.code in (0, 1, INTERRUPTED) or bool(IN_THE_RUN.search(outcome.err))
    for change in place.changes(before, step.writes if begun else ()):
        # A lock may stay: the folder that it locks was there before. Which plugins the user has
        # run is remembered at home.
        if not change.endswith("/.lock") and not any(map(change.endswith, REMEMBERED)):
            yield f"a change outside of what was asked for: {change}"
    if any(place.temporary.iterdir()):
        yield f"temporary files: {[path.name for path in place.temporary.iterdir()][:3]}"
    if step.expect == "success" and outcome.code != 0:
        yield "refused, though everything was in order"
    if step.expect == "refusal" and outcome.code == 0:
        yield "accepted, though it is wrong"
    if "--json" in step.arguments and outcome.code == 0 and outcome.out:
        try:
            json.loads(outcome.out, parse_constant=lambda text: 1 / 0)
        except (ValueError, ZeroDivisionError):
            yield "--json did not print JSON"


def _one_line(outcome: Outcome) -> Iterator[str]:
    lines = [line for line in outcome.err.split("\n") if not NOTE.match(line)]
    if not outcome.err and "Usage:" in outcome.out:
        return  # A command without arguments shows its help.
    if len(lines) != 2 or lines[1]:
        yield f"{len(lines) - 1} lines on standard error instead of one"
    if not lines[0].startswith("fedpbc: "):
        yield "the line on standard error does not begin with 'fedpbc: '"
    if len(lines[0].removeprefix("fedpbc: ").strip()) < 8:
        yield "the line on standard error says nothing"


def _characters(step: Step, outcome: Outcome) -> Iterator[str]:
    for name, text, limit in (
        ("output", outcome.out, LINE_LENGTH),
        ("standard error", outcome.err, ERROR_LENGTH),
    ):
        if not text.isascii() or not text.replace("\n", "").isprintable():
            bad = {c for c in text if c != "\n" and unicodedata.category(c) in HIDDEN}
            if bad:
                yield f"control characters in {name}: {sorted(map(ascii, bad))[:5]}"
        longest = max(map(len, text.split("\n")))
        if longest > limit and outcome.code != 1:
            yield f"a line of {longest} characters in {name}"
