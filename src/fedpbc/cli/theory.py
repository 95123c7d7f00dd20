"""fedpbc theory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.cli.options import Json, Set, Trust, config_options, default
from fedpbc.cli.terminal import say, say_json, say_omitted, say_written, show_fitted

if TYPE_CHECKING:
    from fedpbc.theory.summary import TheorySummary

__all__ = ["theory"]


@config_options("links", "data", "data_dir", "clients", "rounds", "local_steps", "plugin")
def theory(
    options: dict[str, Any],
    source: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml|RUN", help="A configuration or a run's folder."),
    ] = None,
    p: Annotated[
        str | None,
        typer.Option(help="Probabilities: one, several with commas, or a .npy or .csv file."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A timetable: .npy or .csv of 0 and 1, rounds x clients.")
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(help="u_i of quadratics, .npy or .csv: where FedAvg ends up.")
    ] = None,
    seed: Annotated[int | None, default("Seed of links that are drawn", "0")] = None,
    step_size: Annotated[
        float | None, default("Step size η", "the configuration's η_0, or 0.05")
    ] = None,
    lipschitz: Annotated[float | None, default("Smoothness constant L, at least 1", "1")] = None,
    sigma: Annotated[
        float | None, default("Standard deviation σ of gradients", "1; 0 with targets")
    ] = None,
    zeta: Annotated[
        float | None, default("Heterogeneity ζ of clients", "1; the targets' own")
    ] = None,
    beta: Annotated[float | None, default("Heterogeneity β of clients", "0")] = None,
    gap: Annotated[
        float | None, default("Gap F(x⁰) − F* at the start", "1; the targets' own")
    ] = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="A .csv file for every client's line.")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The paper's theory for your links: FedAvg's bias, mixing, staleness, Theorem 1."""
    from fedpbc.experiments.theory_query import TheoryQuery, analyze
    from fedpbc.report.theory_summary import check_out, write_clients

    check_out(out)
    query = TheoryQuery(
        source=source,
        p=p,
        table=table,
        targets=targets,
        clients=options.pop("clients", None),
        seed=seed,
        assignments=set_,
        trust=trust,
        constants={
            "step_size": step_size,
            "local_steps": options.pop("train.local_steps", None),
            "rounds": options.pop("rounds", None),
            "lipschitz": lipschitz,
            "sigma": sigma,
            "zeta": zeta,
            "beta": beta,
            "gap": gap,
        },
        options=options,
    )
    summary = analyze(query)
    if out is not None:
        write_clients(summary, out)
    if as_json:
        say_json(summary.as_dict())
        return
    show_theory_summary(summary)
    if out is not None:
        say_written([out])


def show_theory_summary(summary: TheorySummary) -> None:
    """Print the tables and notes."""
    from fedpbc.report.theory_summary import client_weights_table, quantities_table

    say(f"links: {summary.links}; {summary.clients:,} clients")
    say_omitted(show_fitted(client_weights_table(summary)), "--out FILE.csv")
    show_fitted(quantities_table(summary))
    for note in summary.notes():
        say(f"note: {note}")
