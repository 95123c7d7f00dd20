"""A folder of advice.

fedpbc-manifest.json    which files belong to it; nothing else is ever removed
advise.toml             what was asked, how the budget is spent, and how much of it has been
inputs/                 copies of the files that it names
tune/                   the search, as of 'fedpbc tune'
compare/                the comparison, as of 'fedpbc compare'
recommended.toml        the recommendation, for 'fedpbc run' and 'fedpbc fleet init'
advice.html, advice.json, links.png
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.advice.constraints import Constraints
from fedpbc.experiments.advice.request import AdviceRequest
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.integrity import Verification, verify_run
from fedpbc.experiments.plan_files import (
    START_AGAIN,
    misplaced_files,
    misplaced_folders,
    plan_damage,
    unreadable_plan,
    write_plan,
)
from fedpbc.experiments.result_folder import check_result_folder
from fedpbc.experiments.trust import check_trust, remember_plugins
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.limits import parse_json, parse_toml
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.storage.files import read_own_file
from fedpbc.storage.manifest import (
    MANIFEST,
    add_checksums,
    checksummed_files,
    has_checksums,
    read_manifest,
    replace_checksummed,
)
from fedpbc.storage.removal import own_files
from fedpbc.storage.toml import toml_text

__all__ = ["AdviceDirectory", "Session", "with_schedule"]

KIND = "advice"
NEW_FOLDER = "choose a new folder"
FILES = ("advise.toml", "recommended.toml", "advice.html", "advice.json", "links.png", MANIFEST)


@dataclass(frozen=True)
class Session:
    """The command that advice was begun with, and the seconds that it has taken so far."""

    command: str
    seconds: float = 0.0


class AdviceDirectory:
    """Advice on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "advise.toml"
        self.page_path = self.path / "advice.html"
        self.json_path = self.path / "advice.json"
        self.links_path = self.path / "links.png"
        self.recommended_path = self.path / "recommended.toml"
        self.tuning = TuningDirectory(self.path / "tune")
        self.comparison = ComparisonDirectory(self.path / "compare")

    @property
    def was_begun(self) -> bool:
        """Whether advice was begun here, even if its plan is damaged now."""
        return read_manifest(self.path, KIND) is not None

    @property
    def finished(self) -> bool:
        """Whether the answer is there, and all that it was made from, as it was written."""
        if not has_checksums(self.path, KIND, [self.json_path.name, self.page_path.name]):
            return False
        if self.verify().damage or self.comparison.verify().damage:
            return False
        if self.tuning.was_begun and not self.tuning.finished:
            return False
        runs = self.comparison.planned_runs()
        try:
            # One that diverged has no result, and counts.
            ended = all(run.finished or run.failure() is not None for run in runs)
            return ended and not any(verify_run(run.path).damage for run in runs)
        except FedpbcError:
            return False

    def seal(self) -> None:
        """Write down that the answer is there: its checksums."""
        answer = (self.json_path, self.page_path, self.links_path, self.recommended_path)
        files = own_files(self.path, [file.name for file in answer])
        add_checksums(self.path, KIND, [file.name for file in files])

    def answer(self) -> dict[str, Any]:
        """The content of ``advice.json``."""
        try:
            content = parse_json(read_own_file(self.path, self.json_path.name))
            if not isinstance(content, dict):
                raise TypeError("it is not a JSON object")
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.json_path} cannot be read: {error}") from None
        return content

    def verify(self) -> Verification:
        """Check the plan and its inputs; the search, the comparison and runs have their own."""
        damage = plan_damage(self.path, KIND, self.plan_path.name, NEW_FOLDER)
        damage += misplaced_folders(self.path, ("tune", "compare"))
        damage += misplaced_files(self.path, FILES)
        damage = damage or unreadable_plan(self.path, self.plan_path.name, NEW_FOLDER)
        checked = len(checksummed_files(self.path, KIND))
        return Verification(self.path, "advice", tuple(damage), checked)

    def load(self, *, trust: bool = False) -> tuple[AdviceRequest, Schedule | None]:
        """What was asked here, and the schedule if there is one yet."""
        self._refuse_damage()
        values = read_own_toml(self.plan_path)
        check_trust(self.path, values, trust=trust)
        try:
            fields = dict(values.pop("advise"))
            tuned = {name: dict(table) for name, table in fields.pop("tuned", {}).items()}
            schedule = fields.pop("schedule", None)
            for key in ("command", "seconds"):
                fields.pop(key, None)
            constraints = Constraints(**fields.pop("constraints", {}))
            request = AdviceRequest(values, tuned, constraints=constraints, **fields)
            planned = None
            if schedule is not None:
                planned = Schedule(**{**schedule, "algorithms": tuple(schedule["algorithms"])})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{self.plan_path} is not the plan of advice") from None
        return request, planned

    @contextmanager
    def opened(self, request: AdviceRequest) -> Iterator[None]:
        """Make the folder, or continue the same advice in it, and lock it."""
        check_result_folder(self.path, lambda: self.was_begun)
        begun = self.was_begun and self.plan_path.exists()
        if begun:
            self._refuse_damage()
        for each in misplaced_folders(self.path, ("tune", "compare")):
            raise InputError(str(each))
        for each in misplaced_files(self.path, FILES):
            raise InputError(str(each))
        text, inputs = self_contained(request, None)
        if begun and not self._is_same(text, inputs):
            raise InputError(f"out: {self.path} holds other advice; choose a new folder")
        remember_plugins(request.values.get("plugins") or ())
        make_directory(self.path)
        with locked_directory(self.path):
            if not begun:
                self._write(text, inputs)
            yield

    def keep_schedule(self, request: AdviceRequest, schedule: Schedule) -> None:
        """Write down how the budget is spent: when resumed, it stays so."""
        text, inputs = self_contained(request, schedule)
        if (session := self.session()) is not None:
            text = with_session(text, session)
        self._write(text, inputs)

    def session(self) -> Session | None:
        """The session so far; None if it has not begun."""
        try:
            fields = parse_toml(read_own_file(self.path, self.plan_path.name).decode())["advise"]
            session = Session(str(fields["command"]), float(fields["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return session if 0 <= session.seconds < math.inf else None

    def keep_session(self, session: Session) -> None:
        """Write down how long it has taken so far: when resumed, the whole is reported."""
        text = with_session(read_own_file(self.path, self.plan_path.name).decode(), session)
        replace_checksummed(self.path, KIND, self.plan_path.name, text)

    def _write(self, text: str, inputs: Mapping[str, bytes]) -> None:
        write_plan(self.path, KIND, self.plan_path.name, text, inputs, FILES)

    def _is_same(self, text: str, inputs: Mapping[str, bytes]) -> bool:
        try:
            begun = parse_toml(read_own_file(self.path, self.plan_path.name).decode())
            same = all(read_own_file(self.path, f"inputs/{n}") == c for n, c in inputs.items())
            for key in ("schedule", "command", "seconds"):
                begun["advise"].pop(key, None)
            requested = parse_toml(text)
            # Folders of earlier versions have none.
            begun["advise"].setdefault("links_name", requested["advise"]["links_name"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        return same and begun == requested

    def _refuse_damage(self) -> None:
        """Raise if something is damaged that cannot be made again, before anything goes on."""
        damage = list(self.verify().damage)
        for part in (self.tuning, self.comparison):
            damage += part.verify().damage if part.was_begun else ()
        for each in damage:
            if not each.repairable:
                # The search and the comparison can be overwritten, but not alone.
                raise InputError(str(each).replace(START_AGAIN, NEW_FOLDER))


def self_contained(
    request: AdviceRequest, schedule: Schedule | None
) -> tuple[str, dict[str, bytes]]:
    """What was asked as TOML, with files as ``inputs/NAME``, and the content of these files."""
    nested, inputs = request.config().self_contained()
    for key in ("algorithm", "seed", "views"):
        nested.pop(key, None)
    if "evaluate_every" not in request.values:
        # The search and the comparison choose their own.
        nested.pop("evaluate_every", None)
    limits = {k: v for k, v in asdict(request.constraints).items() if v is not None}
    fields: dict[str, Any] = {
        "minutes": request.minutes,
        "fixed_rounds": request.fixed_rounds,
        "constraints": limits,
        "tuned": {name: dict(table) for name, table in request.tuned.items()},
        "links_name": request.links_name,
    }
    if schedule is not None:
        fields["schedule"] = {**asdict(schedule), "algorithms": list(schedule.algorithms)}
    return toml_text({**nested, "advise": fields}), inputs


def with_session(plan: str, session: Session) -> str:
    """The text of a plan with the session so far."""
    values = parse_toml(plan)
    values["advise"] |= {"command": session.command, "seconds": round(session.seconds, 1)}
    return toml_text(values)


def with_schedule(request: AdviceRequest, schedule: Schedule) -> AdviceRequest:
    """The request over the rounds that the budget allows."""
    return replace(request, values={**request.values, "rounds": schedule.rounds})
