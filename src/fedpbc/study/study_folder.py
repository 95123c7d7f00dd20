"""A study on disk: ``study.json`` lists its runs, which are in ``LABEL/seed-K/``.

What is run (base, variants, seeds) is there as it was given, with copies of the files in
``inputs/``, so that a study goes on, and is widened, from its folder alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.choices import located, texts_of
from fedpbc.errors import InputError
from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.storage.files import read_own_file
from fedpbc.study.record import Record
from fedpbc.study.run_folder import RunFolder, check_free, copy_input, is_below, renamed
from fedpbc.study.spec import Execution, tables
from fedpbc.study.study import Run, Study, Variant, described

__all__ = ["Listed", "StudyFolder", "safe_name", "set_aside"]


@dataclass(frozen=True)
class Listed:
    """A run as ``study.json`` lists it."""

    label: str
    role: str
    condition: str
    problem: str
    seed: int
    id: str
    folder: str


class StudyFolder:
    """A study on disk: what is run, and where each run is.

    Example:
        >>> import tempfile
        >>> folder = StudyFolder(tempfile.mkdtemp())
        >>> study = Study.of({"algorithms": ["fedpbc", "fedau:cutoff=5"], "seeds": [3]})
        >>> [path.name for _, path in folder.begin(study, study.runs())]
        ['seed-3', 'seed-3']
        >>> [run.folder for run in folder.listed()]
        ['fedpbc/seed-3', 'fedau-cutoff=5/seed-3']
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.json_path = self.path / "study.json"
        self.report_path = self.path / "report.html"

    @property
    def holds_study(self) -> bool:
        """Whether a study was begun here."""
        try:
            return bool(self._content())
        except InputError:
            return False

    def _content(self) -> dict[str, Any]:
        try:
            content = parse_json(read_own_file(self.path, self.json_path.name))
            if not isinstance(content, dict) or not {"base", "variants", "runs"} <= content.keys():
                raise ValueError("it lists no runs")
        except OSError:
            expected = "one that holds a study (there is no study.json)"
            raise InputError("folder", str(self.path), expected) from None
        except ValueError as error:
            raise InputError(f"{self.json_path} is damaged: {error}") from None
        return content

    @property
    def kind(self) -> str:
        """What the study is: a comparison, a search, …"""
        return str(self._content().get("kind", "comparison"))

    @property
    def title(self) -> str:
        """What the page calls it."""
        return str(self._content().get("title", ""))

    def study(self) -> Study:
        """The study that was begun here."""
        content = texts_of(self._content(), self.path.absolute())
        variants = [Variant(v["label"], v["patch"], v["role"]) for v in content["variants"]]
        return Study(content["base"], tuple(variants), tuple(content["seeds"]))

    def values(self) -> dict[str, Any]:
        """The study of this folder as the values of a configuration, to be patched by options.

        Example:
            >>> import tempfile
            >>> folder = StudyFolder(tempfile.mkdtemp())
            >>> study = Study.of({"algorithms": ["fedau:cutoff=5"], "rounds": 60})
            >>> _ = folder.begin(study, study.runs())
            >>> folder.values()["algorithms"], folder.values()["rounds"]
            ({'fedau:cutoff=5': {'role': 'entry', 'name': 'fedau', 'cutoff': 5}}, 60)
        """
        study = self.study()
        entries = {}
        for variant in study.variants:
            own = {key: value for key, value in variant.patch.items() if key != "algorithm"}
            entries[variant.label] = {"role": variant.role, **variant.patch["algorithm"], **own}
        return {**study.base, "algorithms": entries, "seeds": list(study.seeds)}

    def listed(self) -> list[Listed]:
        """Its runs, in their order."""
        return [Listed(**run) for run in self._content()["runs"]]

    def widened(self, requested: Study) -> Study:
        """The study of this folder with the variants and seeds of another one.

        What both share must be the same, but for how runs are executed; so must what has the same
        label.
        """
        begun = self.study()
        here = {variant.label: variant for variant in requested.variants}
        there = {variant.label: variant for variant in begun.variants}
        for label, variant in {**here, **there}.items():
            others = here.get(label, variant), there.get(label, variant)
            if begun.base == requested.base and others[0].patch == others[1].patch:
                continue
            if difference := _difference(begun.base, requested.base, variant):
                raise InputError(
                    f"out: {self.path} holds another study ({difference}); choose a new folder, or "
                    "replace it with --overwrite"
                )
            if difference := _difference(begun.base, begun.base, *others[::-1]):
                raise InputError(
                    f"out: {self.path} holds another '{label}' ({difference}); choose a new "
                    "folder, or give the new one a label of its own: [algorithms.LABEL] with a name"
                )
        execution = {k: v for k, v in requested.base.items() if k in Execution.model_fields}
        new = [variant for label, variant in here.items() if label not in there]
        return Study(
            {**begun.base, **execution},
            tuple(sorted([*begun.variants, *new], key=lambda v: v.role == "ceiling")),
            tuple(dict.fromkeys([*begun.seeds, *requested.seeds])),
        )

    def begin(
        self, study: Study, runs: Sequence[Run], *, kind: str = "comparison", title: str = ""
    ) -> list[tuple[Run, Path]]:
        """Write what is run; returns each run with its folder.

        A run that the folder has already keeps its place.
        """
        self.check_free()
        known = {run.id: run.folder for run in self.listed()} if self.holds_study else {}
        taken, places = {*known.values()}, []
        for run in runs:
            name = known.get(run.id) or f"{safe_name(run.label)}/seed-{run.seed}"
            if run.id not in known and (name in taken or not self._is_free(name, run.id)):
                name = f"{name}-{run.id[:8]}"
            taken.add(name)
            places.append(name)
        inputs = {path: name for run in runs for path, name in run.spec.inputs().items()}
        # Code and data sets stay where they are.
        names = {path: path for run in runs for path in run.spec.files()} | inputs
        content = {
            "fedpbc": "study",
            "kind": kind,
            "title": title,
            "base": _stored(study.base, names),
            "variants": [
                {"label": v.label, "role": v.role, "patch": _stored(v.patch, names)}
                for v in study.variants
            ],
            "seeds": list(study.seeds),
            "runs": [
                vars(Listed(r.label, r.role, r.condition, r.problem, r.seed, r.id, place))
                for r, place in zip(runs, places, strict=True)
            ],
        }
        make_directory(self.path)
        for path, name in inputs.items():
            if Path(path) != self.path.absolute() / name:
                copy_input(Path(path), self.path / name)
        write_atomically(self.json_path, json.dumps(content, indent=1) + "\n")
        return [(run, self.path / place) for run, place in zip(runs, places, strict=True)]

    def _is_free(self, name: str, id: str) -> bool:
        return RunFolder(self.path / name).id in (None, id)

    def check_free(self) -> None:
        """Raise InputError if something else than a study is there."""
        check_free(self.path, holds=self.holds_study)

    def records(self) -> list[Record]:
        """What came of each run that was begun."""
        records = []
        for each in self.listed():
            folder = RunFolder(self.path / each.folder)
            if not is_below(folder.path, self.path):
                raise InputError(f"{self.json_path} lists {each.folder}, which is elsewhere")
            if folder.holds_run:
                records.append(folder.record(each))
        return records

    @contextmanager
    def opened(
        self,
        requested: Study,
        *,
        kind: str = "comparison",
        title: str = "",
        overwrite: bool = False,
        of_seed: Callable[[int], Mapping[str, Any]] | None = None,
        check: Callable[[Sequence[Run]], object] = lambda new: None,
    ) -> Iterator[list[tuple[Run, Path]]]:
        """Begin a study here, go on with the one that is here, or widen it; yields all its runs.

        The folder is locked meanwhile. Nothing is written before ``check`` has seen the runs that
        are new; :func:`fedpbc.study.build.check` builds them. With ``overwrite``, what is here is
        set aside. ``of_seed`` is as for :meth:`Study.runs`.
        """
        self.check_free()
        goes_on = self.holds_study and not overwrite
        known = {run.id for run in self.listed()} if goes_on else set()
        runs = (self.widened(requested) if goes_on else requested).runs(of_seed)
        check([run for run in runs if run.id not in known])
        if overwrite:
            set_aside(self.path)
        with self.locked():
            if goes_on:
                # Another process may have widened it in the meantime.
                requested = self.widened(requested)
                runs = requested.runs(of_seed)
            yield self.begin(requested, runs, kind=kind, title=title)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other processes from working on the same study."""
        self.check_free()
        make_directory(self.path)
        with locked_directory(self.path):
            yield


def set_aside(path: Path) -> Path | None:
    """Rename a folder of results, for ``--overwrite``; returns its new name, None if it is free.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> RunFolder(folder).begin(Run.of({"data": "digits"}))
        >>> set_aside(folder).name, folder.exists()
        ('run.before-1', False)
    """
    if not (RunFolder(path).holds_run or StudyFolder(path).holds_study):
        RunFolder(path).check_free()
        return None
    with locked_directory(path):
        names = (path.with_name(f"{path.name}.before-{k}") for k in range(1, 10**6))
        before = next(name for name in names if not name.exists())
        path.rename(before)
    return before


def safe_name(label: str) -> str:
    """A label as the name of a folder on any system.

    Example:
        >>> safe_name("fedau:cutoff=5"), safe_name("../α: 1")
        ('fedau-cutoff=5', '-α-1')
    """
    name = re.sub(r"[^\w.=+]+", "-", label).lstrip(".")[:100].rstrip(". ")
    return name or "entry"


def _stored(values: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Values as given, with the names that files have in the folder."""

    def stored(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: stored(inner) for key, inner in value.items() if inner is not None}
        if isinstance(value, list | tuple):
            return [stored(inner) for inner in value]
        if isinstance(value, str):
            return names.get(located(value, "inputs"), str(value))
        return value.item() if hasattr(value, "item") else value

    return stored(tables(described(values)))


def _difference(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    variant: Variant,
    other: Variant | None = None,
) -> str:
    """What differs first between a variant of one base, and that or another one of another base."""
    dumps = []
    for base, each in ((there, variant), (here, other or variant)):
        try:
            spec = Study(base, (each,), (0,)).runs()[0].spec
            dumps.append(_flat(renamed(spec.dump(), spec.files())))
        except InputError as error:
            return str(error)
    for key in [*dumps[0], *dumps[1]]:
        old, new = (dump.get(key, "not set") for dump in dumps)
        if old != new:
            return f"{key} is {old} there, {new} here"
    return ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{prefix}{key}"
        flat |= _flat(value, f"{full}.") if isinstance(value, Mapping) else {full: value}
    return flat
