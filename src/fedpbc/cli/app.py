"""The command line: its commands, and how errors are reported.

Torch is imported late, by the commands.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc import interrupts
from fedpbc.cli import terminal
from fedpbc.cli.advise import advise
from fedpbc.cli.compare import compare
from fedpbc.cli.fleet import fleet
from fedpbc.cli.links import links
from fedpbc.cli.list import list_
from fedpbc.cli.paper import paper
from fedpbc.cli.report import report
from fedpbc.cli.resume import resume
from fedpbc.cli.run import run
from fedpbc.cli.theory import theory
from fedpbc.cli.trainer import trainer
from fedpbc.cli.tune import tune
from fedpbc.cli.verify import verify
from fedpbc.cli.workspace import forget_work, interrupt_hint, say_stopping
from fedpbc.errors import FedpbcError, explained
from fedpbc.paper.catalog import EXPERIMENTS
from fedpbc.synonyms import NOTES, key_of
from fedpbc.warning_notes import warnings_noted

if TYPE_CHECKING:
    import click

__all__ = ["app", "command_tree", "main"]

app = typer.Typer(
    name="fedpbc",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        import fedpbc

        terminal.say(f"fedpbc {fedpbc.__version__}")
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
app.command()(tune)
app.command()(advise)
app.command()(resume)
app.command()(verify)
PAPER_HELP = "\n\n".join(
    [
        "Make one of the paper's figures or tables; resumes where it was stopped.",
        *(f"{name}: {what}." for name, what in EXPERIMENTS.items()),
    ]
)
app.command(no_args_is_help=True, help=PAPER_HELP, short_help=PAPER_HELP.split(";")[0] + ".")(paper)
app.command()(report)
app.command()(links)
app.command()(theory)
app.command(no_args_is_help=True)(trainer)
app.add_typer(fleet)
app.command(name="list")(list_)


COMPLETION = "_FEDPBC_COMPLETE"
"""Set by a shell that completes a command line."""
COMPLETION_OPTIONS = {"--install-completion", "--show-completion"}
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
INTERRUPTED = 130
"""Typer's exit code after a KeyboardInterrupt."""


def main() -> None:
    """Run the command ``fedpbc``; wrong input is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks is replaced, and does not raise an error.
            stream.reconfigure(errors="backslashreplace")
    forget_work()
    last_resort = logging.lastResort
    try:
        # What libraries log and nobody else handles.
        logging.lastResort = terminal.NoteHandler(logging.WARNING)
        with interrupts.handled(say_stopping), warnings_noted(terminal.note):
            code = run_command()
    finally:
        logging.lastResort = last_resort
    sys.exit(code)


@cache
def command_tree() -> click.Command:
    """All commands and their options; built once, for whoever runs several in one process."""
    return typer.main.get_command(app)


def run_command() -> int:
    """Run the command, and return its exit code."""
    import click

    if not COMPLETION_OPTIONS.isdisjoint(sys.argv) and not can_complete():
        shells = "run it from bash, zsh, fish or PowerShell"
        return terminal.complain(f"completion is not available for this shell: {shells}")
    try:
        code = command_tree()(prog_name="fedpbc", standalone_mode=False)
        if code == INTERRUPTED:
            return terminal.complain(f"interrupted; {interrupt_hint()}", interrupts.exit_code())
        terminal.finish_output()
    except KeyboardInterrupt:
        return terminal.complain("interrupted", interrupts.exit_code())
    except click.exceptions.NoArgsIsHelpError as error:
        return show_help(error.format_message())
    except click.NoSuchOption as error:
        return terminal.complain(right_option(error) or error.format_message())
    except click.ClickException as error:
        return terminal.complain(error.format_message())
    except click.Abort:
        return terminal.complain("stopped: the question was not answered")
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and COMPLETION in os.environ:
            raise  # The shell asked for completions, and has them.
        # Commands end by returning: a SystemExit is a plugin's.
        terminal.discard_output_after(error)
        if isinstance(error, BrokenPipeError):
            return 1  # The reader of our output has exited.
        line = explained(error)
        if line is None:
            raise
        return terminal.complain(line, getattr(error, "exit_code", FedpbcError.exit_code))
    return code if isinstance(code, int) else 0


def right_option(error: click.NoSuchOption) -> str | None:
    """The line about an option that is called otherwise here, or that is set with --set."""
    key = key_of(error.option_name.lstrip("-"))
    if key is None or error.ctx is None:
        return None
    options = [name for parameter in error.ctx.command.params for name in parameter.opts]
    remedy = next((option for option in options if key_of(option.lstrip("-")) == key), None)
    if remedy is None and "--set" not in options:
        return None
    remedy = remedy or f"--set {key}=…"
    return f"no such option: {error.option_name}: use {remedy}{NOTES.get(key, '')}"


def can_complete() -> bool:
    """Whether Typer has completion for the shell that runs this command."""
    import shellingham

    try:
        name, _ = shellingham.detect_shell()
    except shellingham.ShellDetectionFailure:
        return False
    return name in SHELLS


def show_help(text: str) -> int:
    """Print the help of a command that was given nothing, and return the exit code."""
    try:
        terminal.say_text(text)
        terminal.finish_output()
    except BrokenPipeError as error:
        terminal.discard_output_after(error)
        return 1
    return 2


if __name__ == "__main__":
    main()
