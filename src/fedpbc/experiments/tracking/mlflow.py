"""MLflow: the user's server, or a database beside the run's folder."""

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

__all__ = ["DATABASE", "MLflowTracker", "check", "make"]

DATABASE = "mlflow.db"
LOCK = ".mlflow.lock"
EXPERIMENT = "fedpbc"
"""The MLflow experiment of runs without a group; otherwise it is named after the group."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
DEFAULT_ENVIRONMENT = {
    # MLflow sends usage data to its makers by default.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow's log lines would disturb the progress display.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # By default, an unreachable server delays a run by several minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def check() -> None:
    """Check that the package is installed and the server answers."""
    mlflow = _import()
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        try:
            mlflow.MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except Exception as error:
            # The address is not shown: it may contain a password.
            raise FedpbcError(
                f"the server at MLFLOW_TRACKING_URI does not answer: {one_line(error)}"
            ) from error


def make() -> MLflowTracker:
    """A tracker for one run."""
    return MLflowTracker(_import())


def _import() -> Any:
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # The package mlflow-skinny lacks what a database needs.
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("tracking with 'mlflow'", "mlflow") from error
    return mlflow


class MLflowTracker:
    """An MLflow run for each of ours, with its own client: other runs do not interfere."""

    _client: Any
    _id: str

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow
        self._logged_rounds: set[int] = set()

    def begin(self, run: TrackedRun, saved: Mapping[str, str]) -> dict[str, str]:
        """Resume the MLflow run if the server still has it; otherwise create one."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._database(run.shared_folder)
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if "run_id" in saved and self._is_active(saved["run_id"]):
            self._id = saved["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, "local_steps")
            self._logged_rounds = {metric.step for metric in history}
            return dict(saved)
        tags = run.tags() | {"folder": str(run.folder.resolve())}
        if run.group_name is not None:
            tags["group"] = run.group_name
        created = self._client.create_run(self._experiment(run), run_name=run.name, tags=tags)
        self._id = created.info.run_id
        params = [
            self._mlflow.entities.Param(key, str(value)) for key, value in run.settings().items()
        ]
        self._client.log_batch(self._id, params=params)
        return {"run_id": self._id}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Add an evaluation; one that was repeated has the same values and is skipped."""
        if round in self._logged_rounds:
            return
        self._logged_rounds.add(round)
        metric, milliseconds = self._mlflow.entities.Metric, int(1000 * at)
        metrics = [metric(key, value, milliseconds, round) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, state: State) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._id, status=STATUS[state])

    def _database(self, folder: Path) -> str:
        """The URI of the database in a folder, created under a lock.

        MLflow creates one in many steps; two processes at once would damage it.
        """
        from fedpbc.storage.atomic import write_atomically

        def fill(path: Path) -> None:
            self._mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()

        with _waiting_lock(folder / LOCK):
            if not (folder / DATABASE).exists():
                write_atomically(folder / DATABASE, fill)
        return f"sqlite:///{folder / DATABASE}"

    def _is_active(self, run_id: str) -> bool:
        try:
            run = self._client.get_run(run_id)
        except self._mlflow.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return bool(run.info.lifecycle_stage == "active")

    def _experiment(self, run: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.group_name or EXPERIMENT
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.MlflowException:
                # A parallel run may have created it meanwhile.
                if (experiment := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(experiment.experiment_id)


@contextmanager
def _waiting_lock(path: Path) -> Iterator[None]:
    """Hold a lock, after waiting until other runs have released it."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
