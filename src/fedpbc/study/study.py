"""A study: a base, variants of it, and seeds, which together are a list of runs.

Comparisons, sweeps, searches, advice and the paper's tables make such lists and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from fedpbc.choices import Choice, parse_value, specification, text_of
from fedpbc.errors import InputError
from fedpbc.experiments.seeds import DEFAULT_SEEDS, seed_list
from fedpbc.options import nearest, options_of, unknown_option
from fedpbc.study.registries import TIMETABLE, algorithms
from fedpbc.study.spec import (
    COMPARED,
    SECTIONS,
    Execution,
    Spec,
    dotted,
    patched,
    short_names,
    tables,
)
from fedpbc.text import listed

__all__ = ["CEILING", "Role", "Run", "Study", "Variant", "split_items"]

Role = Literal["entry", "baseline", "ceiling"]
CEILING: Literal["ceiling"] = "ceiling"
"""The name of FedAvg's training with every link up, where it stands among algorithms."""
FEDAVG = "fedavg"
LINKS = ("links", "downlink")
EVERY_LINK_UP = {"links": {"name": "always"}, "downlink": {"name": "always"}}
SHARED_ONLY = ("algorithm", "seed", "plugins", "track", *COMPARED)
"""What all variants have in common."""
NOT_OF_THE_PROBLEM = (
    *("algorithm", "train", "seed", "views", "plugins"),
    *("evaluate_every", "evaluate_every_at_end"),
)
"""How something is run, not what it is run on."""
MAX_VARIANTS = 10_000


@dataclass(frozen=True)
class Variant:
    """What differs from the base in some of the runs.

    Attributes:
        label: of its rows, curves and folder; display only.
        patch: tables by section, and settings outside of sections; see :func:`patched`.
        role: a ceiling is FedAvg's training with every link up.
    """

    label: str
    patch: Mapping[str, Any]
    role: Role = "entry"

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.patch["algorithm"]["name"])


@dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        condition: what it is run on, as far as that differs in the study: only runs of the same
            condition can be compared.
        problem: the condition without links. That of a ceiling has none: it belongs to all runs of
            its problem.
        objects: links that were given as objects in Python, by section.
    """

    label: str
    role: Role
    condition: str
    seed: int
    spec: Spec
    execution: Execution = field(default_factory=Execution)
    problem: str = ""
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Run:
        """A run on its own, of a configuration's values.

        Example:
            >>> run = Run.of({"algorithm": "fedau:cutoff=5", "engine": "serial", "seed": 3})
            >>> run.label, run.seed, str(run.execution.engine)
            ('fedau', 3, 'serial')
        """
        spec = Spec.of(values)
        execution = Execution.of(values, spec)
        return cls(spec.algorithm.name, "entry", "", spec.seed, spec, execution)

    @property
    def id(self) -> str:
        """That of its spec."""
        return self.spec.id


@dataclass(frozen=True)
class Study:
    """What is run: nested values that all share, the variants, and the seeds.

    Example:
        >>> study = Study.of({"algorithms": ["fedpbc", "fedau:cutoff=5"], "data": "digits",
        ...                   "seeds": "0-4", "sweep": {"data.alpha": [0.1, 1]}, "ceiling": True})
        >>> [variant.label for variant in study.variants][:3], study.seeds
        (['fedpbc:alpha=0.1', 'fedpbc:alpha=1', 'fedau:cutoff=5:alpha=0.1'], (0, 1, 2, 3, 4))
        >>> runs = study.runs()
        >>> len(runs), runs[0].condition, runs[-1].label, runs[-1].role
        (30, 'data.alpha=0.1', 'ceiling:alpha=1', 'ceiling')
    """

    base: Mapping[str, Any]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Study:
        """The study of a configuration's values with ``algorithms``, ``seeds`` and so on.

        The settings themselves are checked by :meth:`runs`.
        """
        from fedpbc.algorithms import PAPER_ALGORITHMS
        from fedpbc.study.spec import load_plugins

        base = tables(values)
        if "plugins" in base:
            base["plugins"] = load_plugins(base["plugins"])
        alone = base.pop("algorithm", None)
        given = base.pop("algorithms", PAPER_ALGORITHMS if alone is None else [alone])
        if alone is not None and "algorithms" in values:
            raise InputError(
                "algorithm is for a single run: name it among the algorithms, with its options, "
                "such as fedau:cutoff=5"
            )
        sweep, ceiling = base.pop("sweep", {}), base.pop("ceiling", False)
        if not isinstance(ceiling, bool):
            raise InputError("ceiling", ceiling, "true or false")
        seed = base.pop("seed", None)
        seeds = seed_list(base.pop("seeds", DEFAULT_SEEDS if seed is None else [seed]))
        entries, wants_ceiling = _entries(given)
        swept = _swept(entries, _values(sweep))
        if ceiling or wants_ceiling:
            swept = _with_ceilings(entries, swept, _values(sweep))
        if not swept:
            raise InputError("algorithms", given, "a list of names, or tables [algorithms.LABEL]")
        _check_labels(swept)
        # The ceilings last.
        ordered = sorted(swept, key=lambda variant: variant.role == CEILING)
        return cls(base, tuple(ordered), tuple(seeds))

    def runs(self, of_seed: Callable[[int], Mapping[str, Any]] | None = None) -> list[Run]:
        """All runs, checked; each variant is validated once.

        What no entry would read is an error, too.

        ``of_seed`` returns what the base has with a seed besides, as where tasks are made in
        Python: then each run is validated.
        """
        self._check_used()
        checked = [self._checked(v, self.seeds[0], of_seed) for v in self.variants]
        specs = [spec for spec, _ in checked]
        conditions = _conditions(specs, [variant.role for variant in self.variants])
        runs = []
        for variant, (spec, execution), (problem, condition) in zip(
            self.variants, checked, conditions, strict=True
        ):
            objects = {
                section: value
                for section in LINKS
                if not isinstance(value := {**self.base, **variant.patch}.get(section), Mapping)
                and value is not None
            }
            for seed in self.seeds:
                own = spec.model_copy(update={"seed": seed})
                if of_seed is not None and seed != self.seeds[0]:
                    own, _ = self._checked(variant, seed, of_seed)
                labels = variant.label, variant.role, condition
                runs.append(Run(*labels, seed, own, execution, problem, objects))
        return runs

    def check_typed(self, keys: Iterable[str], chosen: Mapping[str, str] | None = None) -> None:
        """Raise InputError for what was typed, as dotted keys, and every entry has itself.

        ``chosen`` are keys that a command chooses, each with the reason. What a file says may be
        for other commands, too.

        Example:
            >>> study = Study.of({"algorithms": ["mifa:proximal=1"], "train": {"proximal": 2}})
            >>> study.check_typed(["train.proximal"])
            Traceback (most recent call last):
            fedpbc.errors.InputError: train.proximal is 2, but mifa:proximal=1 has a value of its \
own: leave one of them out
        """
        entries = [variant for variant in self.variants if variant.role != CEILING]
        for key in keys:
            if chosen and key in chosen:
                raise InputError(f"{key} has no effect here: {chosen[key]}")
            own = [_at(entry.patch, key) for entry in entries]
            if key.partition(".")[0] == "algorithm" or not own:
                continue
            # A table without a name has options of what is shared.
            if all("name" in v if isinstance(v, Mapping) else v is not None for v in own):
                have = "has a value of its own" if len(entries) == 1 else "have values of their own"
                raise InputError(
                    f"{key} is {text_of(_at(self.base, key))}, but "
                    f"{listed([entry.label for entry in entries])} {have}: leave one of them out"
                )

    def _check_used(self) -> None:
        """Raise InputError for an option that every entry replaces by a choice of its own."""
        entries = [patched(self.base, v.patch) for v in self.variants if v.role != CEILING]
        for section in SECTIONS if entries else ():
            shared = self.base.get(section)
            table = shared if isinstance(shared, Mapping) else {}
            for option in table:
                if option != "name" and all(_at(e, f"{section}.{option}") is None for e in entries):
                    raise InputError(
                        f"{section}.{option} is {text_of(table[option])}, but every entry chooses "
                        f"its own {section}: give it to those entries"
                    )

    def _checked(
        self, variant: Variant, seed: int, of_seed: Callable[[int], Mapping[str, Any]] | None
    ) -> tuple[Spec, Execution]:
        base = self.base if of_seed is None else patched(self.base, of_seed(seed))
        patch = variant.patch
        if variant.role == CEILING:
            base = {key: value for key, value in base.items() if key not in LINKS}
        values = {**patched(base, patch), "seed": seed}
        try:
            spec = Spec.of(described(values))
            # Where some entries have reports, those without may be compared with them.
            if "reported" in self.base and "reported" not in patch and not _stores(spec):
                values.pop("reported")
            execution = Execution.of(values, spec)
        except InputError as error:
            if set(patch) <= {"algorithm"}:
                raise
            raise InputError(f"algorithms.{variant.label}: {error}") from None
        if variant.role == CEILING and not {spec.links.name, spec.downlink.name} <= {"always"}:
            raise InputError(
                f"algorithms.{variant.label}.links", str(spec.links), "'always': every link is up"
            )
        return spec, execution


def described(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with objects of Python as tables: links as a timetable, an array or a function."""
    made = dict(values)
    for section in LINKS:
        value: Any = made.get(section)
        if hasattr(value, "tobytes"):
            from fedpbc.links import from_table

            value = from_table(value)
        if hasattr(value, "fingerprint"):
            made[section] = {"name": TIMETABLE, "fingerprint": value.fingerprint()}
            # A table has its own number of rounds.
            if section == "links" and made.get("rounds") is None:
                made["rounds"] = value.rounds
        elif callable(value) and isinstance(name := getattr(value, "__name__", None), str):
            made[section] = {"name": name}
    return made


def _stores(spec: Spec) -> bool:
    from fedpbc.simulation.views import STORED_VIEWS

    return not STORED_VIEWS.isdisjoint(spec.views)


# -------------------------------------------------------------------------------------- conditions


def _conditions(specs: Sequence[Spec], roles: Sequence[Role]) -> list[tuple[str, str]]:
    """What each is run on, as far as it differs between entries: without links, and with them."""
    entries = [s for s, role in zip(specs, roles, strict=True) if role != CEILING] or list(specs)
    fields = [name for name in Spec.model_fields if name not in NOT_OF_THE_PROBLEM]
    differing = [f for f in fields if len({_key(getattr(spec, f)) for spec in entries}) > 1]
    texts = []
    for spec, role in zip(specs, roles, strict=True):
        parts = [(f in LINKS, _difference(f, spec, entries)) for f in differing]
        problem = ", ".join(text for of_links, text in parts if text and not of_links)
        links = ", ".join(text for of_links, text in parts if text and of_links)
        whole = problem if role == CEILING else ", ".join(filter(None, [problem, links]))
        texts.append((problem, whole))
    return texts


def _key(value: Any) -> str:
    return repr(value.table()) if isinstance(value, Choice) else repr(value)


def _difference(name: str, spec: Spec, others: Sequence[Spec]) -> str:
    """A setting of a spec, or those of its options that others have differently."""
    value = getattr(spec, name)
    if not isinstance(value, Choice):
        return f"{name}={text_of(value)}"
    if len({getattr(other, name).name for other in others}) > 1:
        return f"{name}={value}"
    options = {o: {_key(getattr(s, name).get(o)) for s in others} for o in value.options}
    return ", ".join(
        f"{name}.{option}={text_of(value[option], file=option in value.kept)}"
        for option, seen in options.items()
        if len(seen) > 1
    )


# ----------------------------------------------------------------------------------------- entries


def _entries(given: Any) -> tuple[list[Variant], bool]:
    """The variants that ``algorithms`` names, and whether the ceiling is to be added."""
    if isinstance(given, Mapping):
        items = [
            (label, table) for label, table in given.items() if (label, table) != (CEILING, {})
        ]
        for label, table in items:
            if not isinstance(table, Mapping):
                raise InputError(f"algorithms.{label}", table, f"a table [algorithms.{label}]")
        return [_of_table(label, table) for label, table in items], len(items) < len(given)
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise InputError("algorithms", given, "a list of names, or tables [algorithms.LABEL]")
    entries = []
    for item in given:
        if isinstance(item, str):
            if item.strip() != CEILING:
                entries.append(_of_text(item))
        elif isinstance(item, Mapping):
            table = dict(item)
            label = table.pop("label", None)
            entries.append(_of_table(label, table))
        else:
            raise InputError("algorithms", given, "a list of names and tables with a name")
    return entries, any(isinstance(each, str) and each.strip() == CEILING for each in given)


def _of_text(text: str) -> Variant:
    """The variant of ``fedau:cutoff=5:learning_rate=0.2``: options, and settings of its own."""
    table = specification(text)
    name = table.pop("name")
    patch, role = _start(name, "algorithms")
    parts = [name]
    for key, value in table.items():
        if role == CEILING and (_key_of(key, FEDAVG) or "").partition(".")[0] in LINKS:
            raise InputError("algorithms", text, f"without {key}: the ceiling has every link up")
        patch = _assigned(patch, key, value, "algorithms")
        parts.append(f"{_short(key, patch['algorithm']['name'])}={text_of(value)}")
    return Variant(":".join(parts), patch, role)


def _of_table(label: Any, table: Mapping[str, Any]) -> Variant:
    """The variant of a table; without a label, it has that of the same specification."""
    where = "algorithms" if label is None else f"algorithms.{label}"
    given = dict(table)
    name, given_role = given.pop("name", None), given.pop("role", None)
    if given_role not in (None, "entry", "baseline", CEILING):
        raise InputError(f"{where}.role", given_role, "entry, baseline or ceiling")
    if name is None and label is None:
        raise InputError(where, table, "tables with a name")
    if name is None:
        of_label = _of_text(label)
        patch, role = of_label.patch, of_label.role
    else:
        patch, role = _start(name, f"{where}.name")
        if label == CEILING:
            patch, role = {**patch, **EVERY_LINK_UP}, CEILING
    role = role if given_role is None else given_role
    for key, value in given.items():
        patch = _assigned(patch, key, value, where)
    if label is None:
        own = {k: v for k, v in patch.items() if role != CEILING or k not in LINKS}
        parts = (f"{k}={v}" for k, v in _pairs(own, patch["algorithm"]["name"]))
        label = ":".join([name, *parts])
    return Variant(label, patch, role)


def _start(name: Any, where: str) -> tuple[dict[str, Any], Role]:
    if name == CEILING:
        return {"algorithm": {"name": FEDAVG}, **EVERY_LINK_UP}, CEILING
    if not isinstance(name, str):
        raise InputError(where, name, "a name in quotes")
    if name not in algorithms.names() and ":" not in name:
        raise InputError(where, name, nearest(name, [*algorithms.names(), CEILING]))
    return {"algorithm": {"name": algorithms.parse(name).name}}, "entry"


def _options(algorithm: str) -> Mapping[str, Any]:
    return options_of(algorithms.find(algorithm).__init__)


def _key_of(key: str, algorithm: str) -> str | None:
    """The dotted key that a name stands for in an entry; None if there is none."""
    if key in _options(algorithm):
        return f"algorithm.{key}"
    section = key.partition(".")[0]
    known = {*Spec.model_fields, *Execution.model_fields} - {*SHARED_ONLY}
    if section in known and (key == section or section in SECTIONS):
        return key
    return short_names().get(key)


def _assigned(patch: Mapping[str, Any], key: str, value: Any, where: str) -> dict[str, Any]:
    """A patch with one more option of its algorithm, or setting."""
    algorithm = patch["algorithm"]["name"]
    full = _key_of(key, algorithm)
    if full is None:
        raise _unknown(key, [algorithm], where)
    change = tables(dotted(full, value))
    if isinstance(value, Mapping) and full in SECTIONS:
        change = tables({full: value})
    return patched(patch, change)


def _unknown(key: str, names: Iterable[str], where: str) -> InputError:
    """The error for what is neither an option of these algorithms nor a setting."""
    if key in ("seed", "seeds"):
        return InputError(
            f"{where}.{key} is unknown: all entries have the same seeds, which are set by "
            "--seeds 0,1,2"
        )
    here = list(dict.fromkeys(names))
    owners = [name for name in algorithms.names() if key in _options(name)]
    if owners:
        have, has = ("has" if len(each) == 1 else "have" for each in (here, owners))
        return InputError(
            f"{where}.{key} is unknown: {listed(here)} {have} no such option, but "
            f"{listed(owners)} {has}"
        )
    known = [option for name in here for option in _options(name)]
    known += [name for name in Spec.model_fields if name not in SHARED_ONLY]
    names_known = dict.fromkeys([*known, *short_names()])
    return unknown_option(key, names_known, where, "another setting by its key, such as links.p")


def _short(key: str, algorithm: str) -> str:
    """The shortest name of a setting that is no option of the algorithm."""
    full = _key_of(key, algorithm) or key
    section, _, last = full.rpartition(".")
    if section == "algorithm":
        return last
    if last == "name" and section in SECTIONS:
        return section
    return last if short_names().get(last) == full and last not in _options(algorithm) else full


def _pairs(patch: Mapping[str, Any], algorithm: str) -> Iterator[tuple[str, str]]:
    """Options and settings as they are in a label."""
    for section, value in patch.items():
        for option, inner in value.items() if isinstance(value, Mapping) else [("", value)]:
            is_plain = isinstance(inner, str | int | float | list | Mapping)
            if is_plain and (section, option) != ("algorithm", "name"):
                key = f"{section}.{option}".removesuffix(".").removeprefix("algorithm.")
                yield _short(key, algorithm), text_of(inner)


# ------------------------------------------------------------------------------ sweeps and ceilings


def _values(sweep: Any) -> dict[str, list[Any]]:
    """The values of each key: from texts ``KEY=VALUE,VALUE``, or from a table of lists."""
    values: dict[str, list[Any]] = {}
    for key, items in _assignments(sweep):
        if key in values:
            raise InputError("sweep", key, "named once")
        if not items:
            raise InputError(f"sweep.{key}", items, "one value at least")
        if any(item in items[:k] for k, item in enumerate(items)):
            raise InputError(f"sweep.{key}", items, "different values")
        values[key] = items
    return values


def _assignments(sweep: Any, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    expected = "KEY=VALUE,VALUE, such as data.alpha=0.1,0.5,1"
    if isinstance(sweep, Mapping):
        for key, items in sweep.items():
            if isinstance(items, Mapping):
                yield from _assignments(items, f"{prefix}{key}.")
            elif isinstance(items, str) or not hasattr(items, "__iter__"):
                raise InputError(f"sweep.{prefix}{key}", items, "a list of values")
            else:
                yield f"{prefix}{key}", list(items)
        return
    texts = [sweep] if isinstance(sweep, str) else sweep
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError("sweep", sweep, f"a table of lists, or {expected}")
    for text in texts:
        key, equals, items = text.partition("=")
        if not equals or not key.strip():
            raise InputError("sweep", text, expected)
        yield key.strip(), [parse_value(item, key.strip()) for item in split_items(items)]


def split_items(text: str) -> list[str]:
    """The items of a list that are separated by commas, but not by those in brackets or quotes.

    Example:
        >>> split_items("fedau:cutoff=5, fedpbc:links.p=[0.1,0.2]")
        ['fedau:cutoff=5', 'fedpbc:links.p=[0.1,0.2]']
    """
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[]{}":
            depth = max(0, depth + (1 if character in "[{" else -1))
        if character == "," and not depth and not quote:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def _swept(entries: Sequence[Variant], sweep: Mapping[str, list[Any]]) -> list[Variant]:
    """Each entry once for each combination of the values that are swept."""
    for key in sweep:
        if entries and not any(_takes(entry, key) for entry in entries):
            raise _unknown(key, [entry.algorithm for entry in entries], "sweep")
    swept = []
    for entry in entries:
        keys = [key for key in sweep if _takes(entry, key)]
        for key in keys:
            if _has(entry, key):
                raise InputError(
                    f"sweep: {key} is also set by algorithms.{entry.label}: leave one of them out"
                )
        for values in product(*(sweep[key] for key in keys)):
            patch, parts = entry.patch, [entry.label]
            for key, value in zip(keys, values, strict=True):
                patch = _assigned(patch, key, value, "sweep")
                parts.append(f"{_short(key, entry.algorithm)}={text_of(value)}")
            swept.append(replace(entry, label=":".join(parts), patch=patch))
            if len(swept) > MAX_VARIANTS:
                raise InputError(f"sweep has more than {MAX_VARIANTS:,} combinations")
    return swept


def _takes(entry: Variant, key: str) -> bool:
    """Whether an entry has what is swept; links do not change a ceiling."""
    full = _key_of(key, entry.algorithm)
    of_links = (full or "").partition(".")[0] in LINKS
    return full is not None and not (of_links and entry.role == CEILING)


def _has(entry: Variant, key: str) -> bool:
    return _at(entry.patch, _key_of(key, entry.algorithm) or key) is not None


def _at(values: Any, key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _with_ceilings(
    entries: Sequence[Variant], swept: Sequence[Variant], sweep: Mapping[str, list[Any]]
) -> list[Variant]:
    """The swept entries and their ceilings: FedAvg's training with every link up.

    A ceiling has the options and settings of FedAvg's entry, if there is one, and there is one for
    each problem that the entries have.
    """
    if any(entry.label == CEILING for entry in entries):
        return list(swept)  # It is there already, with settings of its own.
    others = [entry for entry in entries if entry.role != CEILING]
    sources = [e for e in others if e.label == FEDAVG]
    sources = sources or [e for e in others if e.algorithm == FEDAVG]
    dropped: tuple[str, ...] = (*LINKS, "deploy_view")
    if not sources:
        sources = [replace(e, patch={**e.patch, "algorithm": {"name": FEDAVG}}) for e in others]
        dropped = (*dropped, "train")
    ceilings: list[Variant] = []
    for source in sources or [Variant(FEDAVG, {"algorithm": {"name": FEDAVG}})]:
        own = {key: value for key, value in source.patch.items() if key not in dropped}
        patch = {**own, **EVERY_LINK_UP}
        if all(patch != other.patch for other in ceilings):
            parts = [f"{k}={v}" for k, v in _pairs(own, FEDAVG)]
            ceilings.append(Variant(":".join([CEILING, *parts]), patch, CEILING))
    if len(ceilings) == 1:
        ceilings = [replace(ceilings[0], label=CEILING)]
    taken = {key: values for key, values in sweep.items() if _takes(ceilings[0], key)}
    present = [variant.patch for variant in swept if variant.role == CEILING]
    return [*swept, *(c for c in _swept(ceilings, taken) if c.patch not in present)]


def _check_labels(variants: Sequence[Variant]) -> None:
    labels = [variant.label for variant in variants]
    for label in labels:
        if not isinstance(label, str) or not label.strip() or len(label) > 200 or "\n" in label:
            raise InputError("algorithms", label, "a label of one line, 200 characters at most")
        if labels.count(label) > 1:
            raise InputError("algorithms", label, "different ones: each has a label of its own")
