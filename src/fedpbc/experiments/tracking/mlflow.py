"""MLflow: the user's server, or else a database beside the run's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, MissingExtraError, one_line
from fedpbc.experiments.tracking.tracker import State, TrackedRun

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = ["DATABASE", "MLflowTracker", "check", "make", "remove_files"]

DATABASE = "mlflow.db"
LOCK = ".mlflow.lock"
EXPERIMENT = "fedpbc"
"""Of runs that belong to no group; otherwise the group's folder gives the name."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
UNLESS_SET = {
    # MLflow tells its makers what is used, unless it is told not to.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The terminal is ours.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A server that has gone would otherwise hold up a run for several minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def check() -> None:
    """Is the package there, and does the server answer?"""
    mlflow = _import()
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        try:
            mlflow.MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except Exception as error:
            # Not shown: there may be a password in it.
            raise FedpbcError(f"MLFLOW_TRACKING_URI is of no use: {one_line(error)}") from error


def remove_files(run: Path) -> None:
    """Nothing is kept in the run's directory."""


def make() -> MLflowTracker:
    """A tracker for one run."""
    return MLflowTracker(_import())


def _import() -> Any:
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # The smaller MLflow comes without what a database needs.
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("tracking with 'mlflow'", "mlflow") from error
    return mlflow


class MLflowTracker:
    """A run of MLflow's for each of ours; a client of its own, so no other run is in the way."""

    _client: Any
    _id: str

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow
        self._has: set[int] = set()

    def begin(self, run: TrackedRun, kept: Mapping[str, str]) -> dict[str, str]:
        """The run that was begun, if the server still has it."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._database(run.beside)
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if "run_id" in kept and self._is_there(kept["run_id"]):
            self._id = kept["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, "local_steps")
            self._has = {metric.step for metric in history}
            return dict(kept)
        tags = run.tags() | {"folder": str(run.folder.resolve())}
        if run.group_name is not None:
            tags["group"] = run.group_name
        begun = self._client.create_run(self._experiment(run), run_name=run.name, tags=tags)
        self._id = begun.info.run_id
        params = [
            self._mlflow.entities.Param(key, str(value)) for key, value in run.settings().items()
        ]
        self._client.log_batch(self._id, params=params)
        return {"run_id": self._id}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """The same evaluation made again has the same values: it is there once."""
        if round in self._has:
            return
        self._has.add(round)
        metric, milliseconds = self._mlflow.entities.Metric, int(1000 * at)
        metrics = [metric(key, value, milliseconds, round) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, state: State) -> None:
        """As MLflow calls it."""
        self._client.set_terminated(self._id, status=STATUS[state])

    def _database(self, place: Path) -> str:
        """A database in a folder. MLflow makes one in many steps: two at once would spoil it."""
        from fedpbc.storage.atomic import write_atomically

        def fill(path: Path) -> None:
            self._mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()

        with _alone(place / LOCK):
            if not (place / DATABASE).exists():
                write_atomically(place / DATABASE, fill)
        return f"sqlite:///{place / DATABASE}"

    def _is_there(self, run_id: str) -> bool:
        try:
            found = self._client.get_run(run_id)
        except self._mlflow.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return bool(found.info.lifecycle_stage == "active")

    def _experiment(self, run: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.group_name or EXPERIMENT
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.MlflowException:
                # Runs go side by side: another one was quicker.
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other run of ours does the same."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
