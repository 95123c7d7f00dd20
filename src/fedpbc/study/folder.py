"""Runs and studies on disk.

A run's folder::

    config.toml             all settings, the run's id, and the checksums of the files they name
    inputs/                 copies of these files
    metrics.jsonl           one JSON object per evaluation
    clients.safetensors     links, probabilities and class counts of the clients, for reports
    checkpoint-R.safetensors  the state after R rounds; the last two are kept
    reports.bin             each client's last report, if kept on disk; removed at the end
    final.safetensors       one flat vector per view, with the parameters' names and shapes
    result.json             the result; only of a finished run
    failure.txt             one line: why the run failed; removed when it goes on
    tracking.json, tensorboard/   what trackers need to recognise the run
    report.html             written by ``fedpbc report``

A study's folder has ``study.json``, which lists its runs, and these in ``LABEL/seed-K/``. Every
file is written whole or not at all, and nothing outside a folder that was named is written or
removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpbc.choices import located
from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER, parse_json
from fedpbc.storage.atomic import naming_errors, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import read_own_file, read_regular_file
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files
from fedpbc.storage.toml import parsed_toml, toml_text
from fedpbc.study.load import read_values, texts_of
from fedpbc.study.record import Record
from fedpbc.study.spec import Execution, Spec, content_of, tables
from fedpbc.study.study import Run, Study, Variant, described

if TYPE_CHECKING:
    from torch import Tensor

    from fedpbc.tasks.parameter_layout import Layout

__all__ = ["RunFolder", "StudyFolder", "set_aside"]

TEMPORARY = (".*.tmp", ".tmp??????")
"""Half-written files of a process that was killed."""
LEFTOVERS = (LOCK, "inputs", *TEMPORARY)
"""What a run leaves in a new folder that is killed before its first file."""


class RunFolder:
    """One run on disk.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
        >>> folder.begin(Run.of({"data": "digits", "rounds": 5}))
        >>> folder.holds_run, folder.finished, folder.id == folder.load().id
        (True, False, True)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.clients_path = self.path / "clients.safetensors"
        self.reports_path = self.path / "reports.bin"
        self.final_path = self.path / "final.safetensors"
        self.result_path = self.path / "result.json"
        self.failure_path = self.path / "failure.txt"
        self.tracking_path = self.path / "tracking.json"

    # ------------------------------------------------------------------------ what is there

    @property
    def id(self) -> str | None:
        """The id of the run that was begun here; None if there is none."""
        try:
            known = parsed_toml(self.config_path, follow_links=False).get("id")
        except InputError:
            return None
        return known if isinstance(known, str) else None

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.id is not None

    @property
    def finished(self) -> bool:
        """Whether the run is complete: the result is written last."""
        return self.result_path.is_file()

    def values(self) -> dict[str, Any]:
        """All settings, as they were written; nothing is checked or imported."""
        if not self.holds_run:
            reason = "there is no config.toml"
            if self.config_path.exists():
                reason = "its config.toml was not written by a run, or is damaged"
            raise InputError("folder", str(self.path), f"one that holds a run ({reason})")
        values = parsed_toml(self.config_path, follow_links=False)
        return {key: value for key, value in values.items() if key not in ("id", "files")}

    def load(self, code: Iterable[Path | str] = ()) -> Run:
        """The run, to go on with it.

        Its plugins and its app are imported from where their owner named them, as long as they are
        the same; ``code`` are files that are named again, in their place.
        """
        self.values()
        values = read_values(self.config_path, follow_links=False)
        known, files = values.pop("id"), dict(values.pop("files", {}))
        named = {content_of(file): str(Path(file).absolute()) for file in code}
        plugins = values.get("plugins", [])
        values["plugins"] = [self._code(file, files, named, "--plugin") for file in plugins]
        if "app" in values.get("task", {}):
            values["task"]["app"] = self._code(values["task"]["app"], files, named, "--app")
        for name, checksum in files.items():
            if name.startswith("inputs/") and content_of(self.path / name) != checksum:
                raise InputError(
                    f"{self.path / name} has changed since the run began: restore it, or start "
                    "again with --overwrite"
                )
        run = Run.of(values)
        if run.id != known:
            raise InputError(
                f"{self.config_path} has changed since the run began: restore it, or start again "
                "with --overwrite"
            )
        return run

    def _code(
        self, file: str, files: Mapping[str, str], named: Mapping[str, str], option: str
    ) -> str:
        """Where code is imported from: never from a folder of results, unless it is named."""
        checksum = files.get(str(file), "")
        if checksum in named:
            return named[checksum]
        path = Path(str(file))
        is_elsewhere = path.is_absolute() and not _is_below(path, self.path)
        if not is_elsewhere or not path.is_file() or content_of(path) != checksum:
            raise InputError(
                f"{self.path} needs {file}, which is not there any more as it was: name a file "
                f"with the same content, as in {option} {path.name}"
            )
        return str(path)

    def record(self, run: Run | Listed | None = None) -> Record:
        """What came of the run; ``run`` says its label, role and condition in a study."""
        values = self.values()
        return Record(
            label=values["algorithm"]["name"] if run is None else run.label,
            role="entry" if run is None else run.role,
            condition="" if run is None else run.condition,
            problem="" if run is None else run.problem,
            seed=values["seed"],
            values=values,
            metrics=self.metrics(),
            result=self.result(),
            failure=self.failure(),
            folder=self.path,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations; a last line that a kill cut short is skipped."""
        if not self.metrics_path.is_file():
            return []
        *complete, rest = read_own_file(self.path, self.metrics_path.name).split(b"\n")
        if rest and self.finished:
            complete.append(rest)
        lines = []
        for number, line in enumerate(complete, start=1):
            try:
                lines.append(parse_json(line))
            except ValueError:
                where = f"{self.metrics_path} line {number}"
                raise InputError(f"{where} is damaged: it is not a JSON object") from None
        return lines

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run."""
        if not self.finished:
            return None
        try:
            result: dict[str, Any] = parse_json(read_own_file(self.path, self.result_path.name))
            return dict(result)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.result_path} is damaged: {error}") from None

    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        try:
            return read_own_file(self.path, "failure.txt", 1 << 16).decode().strip()
        except (OSError, ValueError):
            return None

    # ---------------------------------------------------------------------- what is written

    def check_free(self) -> None:
        """Raise InputError if something else than a run is there."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        there = {*self.path.iterdir()} if self.path.is_dir() else set()
        ours = {path for name in LEFTOVERS for path in self.path.glob(name)}
        if there - ours and not self.holds_run:
            hint = " (its config.toml was not written by a run)" * self.config_path.exists()
            raise InputError(
                f"out: {self.path} holds other files{hint}; choose a new or empty folder"
            )
        for name in ("inputs", "tensorboard"):
            if (self.path / name).is_symlink():
                raise InputError(f"{self.path / name} is a link: a run's folder has none")

    def begin(self, run: Run) -> None:
        """Write the configuration, and before it the files that it names: then there is a run."""
        self.check_free()
        spec, files = run.spec, run.spec.files()
        names = spec.inputs()
        config = {
            "id": spec.id,
            **_renamed(spec.dump(), names),
            **run.execution.dump(),
            "files": {names.get(path, path): checksum for path, checksum in files.items()},
        }
        text = toml_text(config)
        make_directory(self.path)
        for path, name in {**names, **_copies_of_plugins(spec)}.items():
            _copy(Path(path), self.path / name)
        write_atomically(self.config_path, text)

    def save_execution(self, execution: Execution) -> None:
        """Write how the run is executed from now on."""
        values = parsed_toml(self.config_path, follow_links=False)
        changed = {k: v for k, v in values.items() if k not in Execution.model_fields}
        changed = {**changed, **execution.dump()}
        if changed != values:
            write_atomically(self.config_path, toml_text(changed))

    def append_metrics(self, line: bytes) -> None:
        """Add one evaluation. A file that has vanished is not made again."""
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with (
            naming_errors(self.metrics_path),
            os.fdopen(os.open(self.metrics_path, flags), "ab") as file,
        ):
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def write_metrics(self, content: bytes) -> None:
        """Put the file of evaluations back as it was."""
        write_atomically(self.metrics_path, content)

    def save_final(self, models: Mapping[str, Tensor], layout: Layout) -> None:
        """Write the final model of each view."""
        from fedpbc.storage.tensors import save_tensors

        parameters = [
            {"name": name, "shape": list(shape)}
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        # One entry only: several would stand in another order in every file.
        metadata = {"parameters": json.dumps(parameters)}
        # Two views may be the same tensor; a file may not hold it twice.
        copies = {view: model.detach().clone() for view, model in models.items()}
        save_tensors(self.final_path, copies, metadata)

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write the result; from now on the run is finished."""
        write_atomically(self.result_path, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def save_failure(self, line: str) -> None:
        """Write why the run failed."""
        write_atomically(self.failure_path, line + "\n")

    def load_tracking(self) -> tuple[Path | None, dict[str, dict[str, str]]]:
        """The study's folder that the run is tracked with, and the state of each tracker.

        Empty if the file is damaged: then trackers start again.
        """
        try:
            content = parse_json(read_own_file(self.path, self.tracking_path.name))
            group = None if content["group"] is None else self.path / content["group"]
            if group is not None and not _is_below(self.path, group):
                group = None
            return group, {name: dict(state) for name, state in content["trackers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def save_tracking(self, group: Path | None, states: Mapping[str, Mapping[str, str]]) -> None:
        """Write what a resumed run must know to stay the same run for its trackers."""
        # Relative: the folders may be moved together.
        relative = None if group is None else Path(os.path.relpath(group, self.path)).as_posix()
        text = json.dumps({"group": relative, "trackers": states}, indent=2)
        write_atomically(self.tracking_path, text + "\n")

    def remove_temporary_files(self) -> None:
        """Remove half-written files that a killed process left behind."""
        remove_files(self.path, [file.name for file in own_files(self.path, TEMPORARY)])

    def remove_working_files(self) -> None:
        """Remove what only an unfinished run needs."""
        remove_files(self.path, ["checkpoint-*.safetensors", self.reports_path.name])

    def discard(self, run: Run) -> None:
        """Remove a run that could not begin."""
        self.remove_temporary_files()
        self.remove_working_files()
        names = ("metrics.jsonl", "clients.safetensors", "failure.txt", "config.toml")
        inputs = {**run.spec.inputs(), **_copies_of_plugins(run.spec)}.values()
        remove_files(self.path, [*names, *inputs, LOCK])
        for folder in (self.path / "inputs", self.path):
            remove_empty_folder(folder)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        return locked_directory(self.path)


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
                _copy(Path(path), self.path / name)
        write_atomically(self.json_path, json.dumps(content, indent=1) + "\n")
        return [(run, self.path / place) for run, place in zip(runs, places, strict=True)]

    def _is_free(self, name: str, id: str) -> bool:
        return RunFolder(self.path / name).id in (None, id)

    def check_free(self) -> None:
        """Raise InputError if something else than a study is there."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        there = {*self.path.iterdir()} if self.path.is_dir() else set()
        ours = {path for name in LEFTOVERS for path in self.path.glob(name)}
        if there - ours and not self.holds_study:
            raise InputError(f"out: {self.path} holds other files; choose a new or empty folder")
        if (self.path / "inputs").is_symlink():
            raise InputError(f"{self.path / 'inputs'} is a link: a study's folder has none")

    def records(self) -> list[Record]:
        """What came of each run that was begun."""
        records = []
        for each in self.listed():
            folder = RunFolder(self.path / each.folder)
            if not _is_below(folder.path, self.path):
                raise InputError(f"{self.json_path} lists {each.folder}, which is elsewhere")
            if folder.holds_run:
                records.append(folder.record(each))
        return records

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


def _copies_of_plugins(spec: Spec) -> dict[str, str]:
    """Where a run keeps copies of its plugins, which are imported only if they are named again."""
    return {file: f"inputs/{Path(file).stem}-{content_of(file)[:12]}.py" for file in spec.plugins}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Values with other names for files."""
    if isinstance(value, Mapping):
        return {key: _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value


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
            dumps.append(_flat(_renamed(spec.dump(), spec.files())))
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


def _copy(file: Path, target: Path) -> None:
    try:
        content = read_regular_file(file, limit=MAX_INTEGER - 1)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    target.parent.mkdir(exist_ok=True)
    if not target.is_file() or content_of(target) != content_of(file):
        write_atomically(target, content)


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
