"""Stand-ins for MLflow and Weights & Biases: what we call of them, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class MlflowException(Exception):
    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True)
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Param:
    key: str
    value: str


@dataclass
class Run:
    run_id: str
    experiment: str
    name: str
    tags: dict[str, str]
    status: str = "RUNNING"
    lifecycle_stage: str = "active"
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)

    @property
    def info(self) -> Run:
        return self


class Mlflow:
    """The module, with a server that can go away."""

    MlflowException = MlflowException
    entities = SimpleNamespace(Metric=Metric, Param=Param)

    def __init__(self) -> None:
        self.gone = False
        self.stores: dict[str, dict[str, Run]] = {}
        self.experiments: dict[str, list[str]] = {}

    def MlflowClient(self, tracking_uri: str) -> Client:
        return Client(self, tracking_uri)

    def run(self) -> Run:
        """The only one there is."""
        [runs] = self.stores.values()
        [run] = runs.values()
        return run


class Client:
    def __init__(self, mlflow: Mlflow, uri: str) -> None:
        self.mlflow = mlflow
        if uri.startswith("sqlite:///"):
            Path(uri.removeprefix("sqlite:///")).touch()
        if uri.endswith(".tmp"):
            return  # It is renamed before anything is in it.
        self.runs = mlflow.stores.setdefault(uri, {})
        self.experiments = mlflow.experiments.setdefault(uri, [])

    def _ask(self) -> None:
        if self.mlflow.gone:
            raise MlflowException("API request failed:\nthe server has gone")

    def search_experiments(self, max_results: int = 9) -> list[str]:
        self._ask()
        return getattr(self, "experiments", [])[:max_results]

    def get_experiment_by_name(self, name: str) -> Any:
        self._ask()
        if name not in self.experiments:
            return None
        return SimpleNamespace(experiment_id=str(self.experiments.index(name)))

    def create_experiment(self, name: str) -> str:
        self._ask()
        if name in self.experiments:
            raise MlflowException(f"{name} is there", "RESOURCE_ALREADY_EXISTS")
        self.experiments.append(name)
        return str(len(self.experiments) - 1)

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> Run:
        self._ask()
        run = Run(f"id{len(self.runs)}", self.experiments[int(experiment_id)], run_name, tags)
        self.runs[run.run_id] = run
        return run

    def get_run(self, run_id: str) -> Run:
        self._ask()
        if run_id not in self.runs:
            raise MlflowException("no such run", "RESOURCE_DOES_NOT_EXIST")
        return self.runs[run_id]

    def update_run(self, run_id: str, status: str) -> None:
        self._ask()
        self.runs[run_id].status = status

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        self._ask()
        return [metric for metric in self.runs[run_id].metrics if metric.key == key]

    def log_batch(
        self, run_id: str, metrics: list[Metric] | None = None, params: list[Param] | None = None
    ) -> None:
        self._ask()
        run = self.runs[run_id]
        run.metrics += metrics or []
        for param in params or []:
            # As MLflow has it: a parameter cannot change.
            assert run.params.setdefault(param.key, param.value) == param.value
            assert type(param.value) is str

    def set_terminated(self, run_id: str, status: str) -> None:
        self._ask()
        self.runs[run_id].status = status


class WandbRun:
    def __init__(self, given: dict[str, Any], step: int) -> None:
        self.given, self.step = given, step
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None

    def log(self, values: dict[str, Any], step: int) -> None:
        # As wandb has it: what is logged at an earlier step is lost.
        assert step >= self.step
        self.step = step + 1
        self.history.append({"_step": step, **values})

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class Wandb:
    """The module, with a server that can resume runs."""

    class Settings(SimpleNamespace):
        model_fields = (
            "console",
            "disable_git",
            "disable_code",
            "silent",
            "x_disable_machine_info",
        )

    def __init__(self) -> None:
        self.logged_in = True
        self.runs: list[WandbRun] = []

    def login(self, *, prompt: bool) -> bool:
        assert not prompt
        return self.logged_in

    def init(self, **given: Any) -> WandbRun:
        before = [run for run in self.runs if run.given["id"] == given["id"]]
        step = before[-1].step if before and given["resume"] == "allow" else 0
        self.runs.append(WandbRun(given, step))
        return self.runs[-1]
