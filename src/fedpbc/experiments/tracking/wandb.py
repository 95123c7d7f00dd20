"""Weights & Biases: where and how is for wandb's own settings to say (WANDB_MODE, …)."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError, MissingExtraError, one_line
from fedpbc.experiments.tracking.tracker import State, TrackedRun

__all__ = ["WandbTracker", "check", "make", "remove_files"]

PROJECT = "fedpbc"
MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
UNLESS_SET = {
    # What is on the screen, the source code, the repository, the hardware and the packages are
    # nobody's business unless the user wants it so.
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    # The terminal is ours.
    "silent": True,
    # A server that has gone must not hold up the end; what is on disk can be sent later.
    "finish_timeout": 60.0,
}
EXIT = {"finished": 0, "failed": 1, "killed": 130}


def check() -> None:
    """Is the package there, and is the user logged in?"""
    wandb = _import()
    mode = os.environ.get("WANDB_MODE", "online")
    if mode not in MODES:
        raise InputError("WANDB_MODE", mode, "online, offline or disabled")
    if mode in ("offline", "dryrun", "disabled"):
        return
    try:
        logged_in = wandb.login(prompt=False)
    except TypeError:
        return  # Before 0.30 there was no way to ask without asking the user.
    except Exception as error:
        raise FedpbcError(f"wandb cannot log in: {one_line(error)}") from error
    if not logged_in:
        raise FedpbcError("wandb is not logged in: 'wandb login', or set WANDB_MODE=offline")


def remove_files(run: Path) -> None:
    """Nothing is kept in the run's directory."""


def make() -> WandbTracker:
    """A tracker for one run."""
    return WandbTracker(_import())


def _import() -> Any:
    if "wandb" not in sys.modules:
        # It is read on import: wandb sends its own errors to its makers unless told not to.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("tracking with 'wandb'", "wandb") from error
    return wandb


class WandbTracker:
    """A run of wandb's for each of ours, beside any that the user has going."""

    _run: Any
    _next: int

    def __init__(self, wandb: Any) -> None:
        self._wandb = wandb

    def begin(self, run: TrackedRun, kept: Mapping[str, str]) -> dict[str, str]:
        """The run that was begun; offline it is written anew, under the same id."""
        own = kept.get("id") or secrets.token_hex(4)
        offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=os.environ.get("WANDB_DIR") or str(run.beside),
            id=own,
            name=run.name,
            group=run.group_name,
            tags=[run.tags()[key] for key in ("algorithm", "links", "data")],
            config=run.settings() | {"fingerprint": run.about["fingerprint"]},
            resume=None if offline else "allow",
            reinit="create_new",
            settings=self._settings(),
        )
        self._next = self._run.step
        return {"id": own}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """The round is the step, and a value like the others; so any of them can be the x axis."""
        if round >= self._next:
            self._run.log({"round": round, **values}, step=round)

    def end(self, state: State) -> None:
        """An exit code other than 0 is a failed run to wandb."""
        self._run.summary["state"] = state
        self._run.finish(exit_code=EXIT[state])

    def _settings(self) -> Any:
        known = self._wandb.Settings.model_fields
        chosen = {
            key: value
            for key, value in UNLESS_SET.items()
            if key in known and f"WANDB_{key.upper()}" not in os.environ
        }
        return self._wandb.Settings(**chosen)
