"""Weights & Biases, configured by its own environment variables (WANDB_MODE, …)."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from fedpbc.errors import FedpbcError, InputError, MissingExtraError, one_line
from fedpbc.experiments.tracking.tracker import State, TrackedRun

__all__ = ["WandbTracker", "check", "make"]

PROJECT = "fedpbc"
MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
DEFAULT_SETTINGS = {
    # Console output, source code, repository, hardware and packages stay private by default.
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    # wandb's messages would disturb the progress display.
    "silent": True,
    # An unreachable server must not delay the end; what is on disk can be sent later.
    "finish_timeout": 60.0,
}
EXIT = {"finished": 0, "failed": 1, "killed": 130}


def check() -> None:
    """Check that the package is installed and the user is logged in."""
    wandb = _import()
    mode = os.environ.get("WANDB_MODE", "online")
    if mode not in MODES:
        raise InputError("WANDB_MODE", mode, "online, offline or disabled")
    if mode in ("offline", "dryrun", "disabled"):
        return
    try:
        logged_in = wandb.login(prompt=False)
    except TypeError:
        return  # Before 0.30 this cannot be found out without prompting the user.
    except Exception as error:
        raise FedpbcError(f"wandb cannot log in: {one_line(error)}") from error
    if not logged_in:
        raise FedpbcError("wandb is not logged in: 'wandb login', or set WANDB_MODE=offline")


def make() -> WandbTracker:
    """A tracker for one run."""
    return WandbTracker(_import())


def _import() -> Any:
    if "wandb" not in sys.modules:
        # Read on import: by default wandb sends its own errors to its makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("tracking with 'wandb'", "wandb") from error
    return wandb


class WandbTracker:
    """A wandb run for each of ours, beside any that the user has started."""

    _run: Any
    _next: int

    def __init__(self, wandb: Any) -> None:
        self._wandb = wandb

    def begin(self, run: TrackedRun, saved: Mapping[str, str]) -> dict[str, str]:
        """Start or resume a run; offline it is written again, under the same id."""
        run_id = saved.get("id") or secrets.token_hex(4)
        offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=os.environ.get("WANDB_DIR") or str(run.shared_folder),
            id=run_id,
            name=run.name,
            group=run.group_name,
            tags=[run.tags()[key] for key in ("algorithm", "links", "data")],
            config=run.settings() | {"fingerprint": run.about["fingerprint"]},
            resume=None if offline else "allow",
            reinit="create_new",
            settings=self._settings(),
        )
        self._next = self._run.step
        return {"id": run_id}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Add an evaluation. The round is the step and also a value, so it can be an x axis."""
        if round >= self._next:
            self._run.log({"round": round, **values}, step=round)

    def end(self, state: State) -> None:
        """Set the state; wandb shows an exit code other than 0 as a failed run."""
        self._run.summary["state"] = state
        self._run.finish(exit_code=EXIT[state])

    def _settings(self) -> Any:
        # Older versions lack some settings.
        available = self._wandb.Settings.model_fields
        settings = {
            key: value
            for key, value in DEFAULT_SETTINGS.items()
            if key in available and f"WANDB_{key.upper()}" not in os.environ
        }
        return self._wandb.Settings(**settings)
