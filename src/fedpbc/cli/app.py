"""The command line: its commands, and how errors are reported.

Torch is imported late, by the commands.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from fedpbc.cli.compare import compare
from fedpbc.cli.fleet import fleet
from fedpbc.cli.list import list_
from fedpbc.cli.paper import paper
from fedpbc.cli.report import report
from fedpbc.cli.resume import resume
from fedpbc.cli.run import run
from fedpbc.cli.theory import theory
from fedpbc.cli.trainer import trainer
from fedpbc.cli.verify import verify
from fedpbc.cli.workspace import interrupt_hint
from fedpbc.errors import FedpbcError
from fedpbc.paper.catalog import EXPERIMENTS

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedpbc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        import fedpbc

        print(f"fedpbc {fedpbc.__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning over unreliable links: simulate and compare FedPBC and its baselines."""


app.command()(run)
app.command()(compare)
app.command()(resume)
app.command()(verify)
app.command(
    no_args_is_help=True,
    epilog="\n\n".join(f"{name}: {what}." for name, what in EXPERIMENTS.items()),
)(paper)
app.command()(report)
app.command()(theory)
app.command(no_args_is_help=True)(trainer)
app.add_typer(fleet)
app.command(name="list")(list_)


INTERRUPTED = 130
"""Typer's exit code after Ctrl-C."""


def main() -> None:
    """Run the command ``fedpbc``; wrong input is one line and exit code 2."""
    import click

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks is replaced, and does not raise an error.
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="fedpbc", standalone_mode=False)
    except FedpbcError as error:
        sys.exit(complain(str(error), 2))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        sys.exit(complain(" ".join(error.format_message().split()), 2))
    except MemoryError:
        sys.exit(complain("not enough memory", 2))
    except RuntimeError as error:
        # torch.OutOfMemoryError of a GPU, recognised without importing torch.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        sys.exit(complain("not enough memory on the device", 2))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output has exited.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(complain(f"{where}{error.strerror or error}", 2))
    if code == INTERRUPTED:
        complain(f"interrupted; {interrupt_hint()}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def complain(line: str, code: int) -> int:
    """Print one line on standard error; returns the exit code."""
    print(f"fedpbc: {' '.join(line.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
