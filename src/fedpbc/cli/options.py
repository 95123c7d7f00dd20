"""Options of several commands; those of a configuration are generated from its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedpbc.experiments.overrides import split_list
from fedpbc.experiments.settings import command_options

__all__ = [
    "RUN_OPTIONS",
    "Baseline",
    "ConfigFile",
    "Insecure",
    "Jobs",
    "Json",
    "Overwrite",
    "Set",
    "Trust",
    "config_options",
    "default",
    "names_of",
    "starting_with",
]

RUN_OPTIONS = (
    "algorithm",
    "links",
    "trace",
    "downlink",
    "aggregation",
    "app",
    "data",
    "data_dir",
    "alpha",
    "model",
    "rounds",
    "clients",
    "seed",
    "learning_rate",
    "global_learning_rate",
    "local_steps",
    "batch_size",
    "engine",
    "workers",
    "ray_address",
    "device",
    "views",
    "deploy_view",
    "reported",
    "evaluate_every",
    "plugin",
    "track",
)
"""In the order of the help text."""


def default(text: str, value: str, names: Callable[[str], list[str]] | None = None) -> Any:
    """An option whose default is set elsewhere and named in the help text."""
    return typer.Option(help=f"{text} (default: {value}).", autocompletion=names)


ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="A configuration; options take precedence."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without encryption and keys. Only for trying out.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Recorded links (CSV); short for --links trace --set links.file=…. A fleet's log also "
        "sets the round length and the number of clients; the folder of a fleet's server also sets "
        "model, data and rounds."
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        help="Python file with your own algorithms, links, data sets or models; repeatable."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set anything: links.gamma=0.2; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run the folder's plugins and app although they are new on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Baseline = Annotated[
    str | None, default("Row that differences are relative to", "fedavg, or else the first")
]
Jobs = Annotated[int | None, default("Number of parallel runs", "one per core")]

COMPLETED = {
    "algorithm": "algorithms",
    "links": "links",
    "downlink": "links",
    "data": "data",
    "model": "models",
    "engine": "engines",
    "views": "views",
    "deploy_view": "views",
    "track": "trackers",
}
"""Options whose values a shell can complete: the kind of 'fedpbc list' that has them."""

Command = Callable[..., None]
_SETTINGS = {option.name: option for option in command_options()}


def config_options(
    *names: str, helps: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Add options of the configuration to a command.

    The command gets them as ``options``: the values that were given, by the key of the setting.
    ``trace`` is passed on as a parameter of that name, since it stands for several settings.
    ``helps`` describes those whose default is another one in this command.
    """
    settings = [_SETTINGS[name] for name in names if name in _SETTINGS]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapper(**values: Any) -> None:
            options = {}
            for option in settings:
                value = values.pop(option.name)
                if value is not None:
                    is_list = option.type is list
                    options[option.key] = split_list(option.name, value) if is_list else value
            if "plugin" in names and (plugins := values.pop("plugin")):
                options["plugins"] = [str(path) for path in plugins]
            command(**values, options=options)

        hints = get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        # The generated options stand in place of the parameter ``options``.
        parameters: dict[str, tuple[Any, Any]] = {}
        for name, parameter in signature.parameters.items():
            if name == "options":
                parameters |= {n: (_annotation(n, helps or {}), None) for n in names}
            elif name not in names:
                parameters[name] = hints[name], parameter.default
        kind = inspect.Parameter.KEYWORD_ONLY
        wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                inspect.Parameter(name, kind, annotation=annotation, default=value)
                for name, (annotation, value) in parameters.items()
            ]
        )
        wrapper.__annotations__ = {name: hint for name, (hint, _) in parameters.items()}
        return wrapper

    return decorate


def _annotation(name: str, helps: Mapping[str, str]) -> Any:
    if name in ("trace", "plugin"):
        return {"trace": Trace, "plugin": Plugin}[name]
    option = _SETTINGS[name]
    # A list is one text, with commas.
    kind: Any = str if option.type is list else option.type
    names = names_of(COMPLETED[name]) if name in COMPLETED else None
    return Annotated[
        kind | None, typer.Option(help=helps.get(name, option.help), autocompletion=names)
    ]


def starting_with(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes one of these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return what completes names of a kind of 'fedpbc list', also after commas."""

    def complete(incomplete: str) -> list[str]:
        from fedpbc.report.listing import list_choices

        before, comma, last = incomplete.rpartition(",")
        names = [str(choice["name"]) for choice in list_choices()[kind]]
        return [before + comma + name for name in names if name.startswith(last)]

    return complete
