"""Named data sets and where each comes from; further ones are registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from fedpbc.data.dataset import DataSet, Split
from fedpbc.data.hub import download, split_files
from fedpbc.data.natural import hold_out_of_each, number_clients
from fedpbc.data.parquet import read_images
from fedpbc.data.picture_cache import cached_pictures
from fedpbc.data.table import load_table
from fedpbc.errors import InputError, one_line
from fedpbc.limits import check_path
from fedpbc.options import Option, check_kind, checked, nearest, options_of
from fedpbc.registration import call_with, check_function, summary_of
from fedpbc.storage.files import expanded

__all__ = ["SOURCES", "Source", "find_source", "load", "register_dataset"]

HUB = "hub:"
"""Before the name of any repository of the hub."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it is like.

    Attributes:
        repository, config: the hub's repository and the folder in it. Without a repository the
            data is part of the package, or comes from a ``function``.
        column, label, client: the names of columns: of images, their classes and, where clients
            bring their own, whose they are.
        splits: for training and for testing; without the second, a part of each client's samples
            is for testing.
        model: the network unless another is named.
        settings: of a run with this data, unless others are given: by section, "" for those outside
            of sections.
        function: returns the data set; its keyword-only parameters are options in ``[data]``.
        natural: whether clients bring their own samples, if there is no column ``client``.
    """

    name: str
    summary: str
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] = (0, 0, 0)
    repository: str = ""
    config: str = ""
    column: str = "image"
    crop_padding: int = 0
    flip: bool = False
    label: str = "label"
    client: str = ""
    splits: tuple[str, ...] = ("train", "test")
    model: str = "mlp"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    function: Callable[..., DataSet] | None = None
    natural: bool = False

    @property
    def reads_folder(self) -> bool:
        """Whether the data can come from a folder of the user."""
        if self.function is None:
            return bool(self.repository)
        return "folder" in inspect.signature(self.function).parameters

    @property
    def is_ours(self) -> bool:
        """Whether it is a data set of this package, and not of a plugin."""
        return self.function is None or self.function.__module__.startswith("fedpbc.data.")

    def has_clients(self, options: Mapping[str, Any]) -> bool:
        """Whether clients bring their own samples; of a plugin's data set that is not known."""
        return bool(self.client or self.natural or options.get("client"))

    def model_for(self, options: Mapping[str, Any]) -> str:
        """Return the network unless another is named: a table without targets is texts."""
        is_text = self.is_ours and "target" in self.options and not options.get("target")
        return "lstm" if is_text else self.model

    @property
    def options(self) -> dict[str, Option]:
        """The options of its own."""
        if self.function is None:
            return {}
        options = options_of(self.function)
        return {name: option for name, option in options.items() if name not in _ARGUMENTS}

    def checked(self, given: Mapping[str, Any], also: tuple[str, ...] = ()) -> dict[str, Any]:
        """Check values for the options of its own, and fill in defaults."""
        if self.function is None:
            return checked(_without_options, given, "data", also=also)
        return checked(self.function, given, "data", also=also)


def _without_options() -> None:
    """A data set without options of its own."""


RESERVED = ("name", "dir", "alpha", "train_samples", "weigh")
"""Settings of every data set: not the names of options of its own."""
_ARGUMENTS = ("folder",)
"""What a function of a data set may take besides its options."""

SOURCES: dict[str, Source] = {}
"""The data sets by name."""

_Function = TypeVar("_Function", bound=Callable[..., DataSet])


@overload
def register_dataset(function: _Function) -> _Function: ...


@overload
def register_dataset(
    *, model: str = ..., settings: Mapping[str, Any] | None = ...
) -> Callable[[_Function], _Function]: ...


def register_dataset(
    function: _Function | None = None,
    *,
    model: str = "mlp",
    settings: Mapping[str, Any] | None = None,
) -> _Function | Callable[[_Function], _Function]:
    """Register a data set under the function's name; returns the function unchanged.

    The function returns a :class:`DataSet`. Its keyword-only parameters are options, as in
    ``--set data.window=20``. If it takes ``folder``, that is what ``--data-dir`` names, or None.
    The result must be the same every time: draw random numbers from a fixed seed.

    Args:
        function: returns the data set.
        model: the network unless another is named.
        settings: of a run with this data, unless others are given: ``{"rounds": 100,
            "train": {"learning_rate": 0.1}}``.

    Example:
        >>> @register_dataset(model="softmax")
        ... def stripes(*, width: int = 4):
        ...     '''Pictures of stripes.'''
        ...     inputs = np.zeros((20, width, width, 1), dtype=np.uint8)
        ...     inputs[::2, ::2] = 255
        ...     split = Split(inputs, np.arange(20) % 2)
        ...     return DataSet("stripes", split, split, ("striped", "blank"))
        >>> load("stripes", width=8).train.inputs.shape
        (20, 8, 8, 1)
        >>> SOURCES.pop("stripes").summary
        'Pictures of stripes.'
    """
    check_kind("model", model, str, "the name of a network")
    check_kind("settings", settings, (Mapping, type(None)), "a table of settings")
    if function is None:
        return partial(register_dataset, model=model, settings=settings)
    registered = SOURCES.get(getattr(function, "__name__", ""))
    if registered is not None and registered.function is None:
        raise InputError("data set", registered.name, "a new name: fedpbc has it")
    check_function(
        "data set", function, None if registered is None else registered.function, _ARGUMENTS
    )
    for name in options_of(function):
        if name in RESERVED:
            raise InputError(f"an option of the data set {function.__name__}", name, "another name")
    top = {k: v for k, v in (settings or {}).items() if not isinstance(v, Mapping)}
    sections = {k: v for k, v in (settings or {}).items() if isinstance(v, Mapping)}
    SOURCES[function.__name__] = Source(
        function.__name__,
        summary_of(function),
        model=model,
        settings={"": top, **sections},
        function=function,
    )
    return function


def find_source(name: str) -> Source:
    """Return the data set of that name, or that of a repository of the hub, ``hub:owner/name``.

    Example:
        >>> find_source("digits").shape
        (8, 8, 1)
    """
    if isinstance(name, str) and name.startswith(HUB):
        repository = name.removeprefix(HUB)
        owner, slash, rest = repository.partition("/")
        if not (owner and slash and rest) or "/" in rest or ".." in repository:
            raise InputError("data.name", name, "hub:OWNER/NAME, a data set of the hub")
        summary = f"the hub's {repository}"
        return Source(name, summary, repository=repository, config="*", function=load_table)
    if not isinstance(name, str) or name not in SOURCES:
        raise InputError("data.name", name, nearest(str(name), [*SOURCES, "hub:OWNER/NAME"]))
    return SOURCES[name]


def load(name: str, folder: Path | str | None = None, **options: Any) -> DataSet:
    """Load a named data set from the package, from a folder of Parquet files, or from the hub.

    A folder may hold the hub's repositories (`uoft-cs/cifar10/plain_text/…`), one of them
    (`plain_text/…`) or the files themselves (`train-00000-of-00001.parquet`, …). Options are those
    of the data set.

    Example:
        >>> digits = load("digits")
        >>> digits.train.inputs.shape, len(digits.test.labels)
        ((1437, 8, 8, 1), 360)
        >>> load("shakespeare", length=40).train.labels.shape[1]
        40
    """
    source = find_source(name)
    if folder is not None:
        check_path(folder, "data.dir")
    options = source.checked(options)
    if folder is not None and not source.reads_folder:
        reason = "is part of the package" if source.is_ours else "reads no folder"
        raise InputError("data.dir", str(folder), f"left out for {name}, which {reason}")
    path = None if folder is None else expanded(folder, "data.dir")
    if source.function is not None:
        return _call(source, path, options)
    if not source.repository:
        train, test = _load_embedded(name)
        return DataSet(name, train, test, source.classes, source.crop_padding, source.flip)
    return load_pictures(source, path)


def _call(source: Source, folder: Path | None, options: dict[str, Any]) -> DataSet:
    assert source.function is not None
    arguments: dict[str, Any] = {"folder": folder}
    if source.function is load_table:
        arguments |= {"name": source.name, "repository": source.repository}
    try:
        data = call_with(source.function, arguments, options)
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:
        if source.is_ours:
            raise
        raise InputError(f"the data set {source.name} fails: {one_line(error)}") from error
    if not isinstance(data, DataSet):
        kind = type(data).__name__
        raise InputError(f"the data set {source.name} returns a {kind}, but should be a DataSet")
    return data


def _load_embedded(name: str) -> tuple[Split, Split]:
    # Written by tools/make_embedded_data.py.
    resource = files("fedpbc.data") / "embedded" / f"{name}.npz"
    with as_file(resource) as path, np.load(path, allow_pickle=False) as arrays:
        train = Split(arrays["train_inputs"], arrays["train_labels"])
        return train, Split(arrays["test_inputs"], arrays["test_labels"])


def load_pictures(source: Source, folder: Path | None) -> DataSet:
    """Load pictures in the hub's layout, from a folder or from the hub itself."""
    if folder is None:
        # Not the whole repository: SVHN's has half a million extra images and another format.
        patterns = [f"{source.config}/{split}-*.parquet" for split in source.splits]
        folder = download(source.name, source.repository, patterns)
    shards = split_files(folder, source.repository, source.config, source.splits)
    arrays = []
    for split in source.splits:
        if split not in shards:
            raise InputError(
                f"data.dir: {folder} has no {split} images; "
                f"it should have {source.repository}/{source.config}/{split}-*.parquet"
            )
        columns = source.column, source.shape, len(source.classes), source.label, source.client
        decode = partial(read_images, shards[split], *columns)
        images, labels, clients = cached_pictures(shards[split], columns, decode)
        if len(labels) == 0:
            raise InputError(
                f"data.dir: {shards[split][0]} has no images; it should have at least one"
            )
        arrays.append((images, labels, clients))
    padding, flip = source.crop_padding, source.flip
    if not source.client:
        train, test = (Split(images, labels) for images, labels, _ in arrays)
        return DataSet(source.name, train, test, source.classes, padding, flip)
    images, labels, writers = arrays[0]
    numbers, names = number_clients(writers)
    kept, held_out = hold_out_of_each(numbers, len(labels))
    if not len(held_out):
        raise InputError(
            f"data.dir: {folder} has fewer than five images of each client, too few to test with"
        )
    train, test = (Split(images[k], labels[k], numbers[k]) for k in (kept, held_out))
    return DataSet(source.name, train, test, source.classes, padding, flip, names)
