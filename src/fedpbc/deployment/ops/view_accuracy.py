"""How good a fleet's models are on test samples, where this machine has some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedpbc.deployment.ops.check import flat_model, read_models
from fedpbc.deployment.ops.consent import check_plugins
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.build import build_task
from fedpbc.tasks import Task

__all__ = ["ViewAccuracies", "ViewAccuracy", "view_accuracies"]


@dataclass(frozen=True)
class ViewAccuracy:
    """One view's model: after how many rounds it was written, and its test accuracy, if known."""

    view: str
    rounds: int
    accuracy: float | None = None


@dataclass(frozen=True)
class ViewAccuracies:
    """All models that a server has written, and why there is no accuracy, if there is none."""

    views: list[ViewAccuracy]
    reason: str = ""


def view_accuracies(folder: Path) -> ViewAccuracies:
    """Evaluate the models in a server's folder.

    The test samples are those of a built-in data set, or what ``test()`` of the app returns; an app
    or a plugin is run only if this user has run it on this machine before.
    """
    if not any((folder / "models").glob("*.safetensors")):
        return ViewAccuracies([])
    try:
        models = read_models(folder)
    except FedpbcError as error:
        return ViewAccuracies([], str(error))
    unknown = [ViewAccuracy(view, rounds) for view, (rounds, _) in models.items()]
    try:
        check_plugins(folder, app=True)
    except InputError:
        return ViewAccuracies(unknown, "Not evaluated: you have not run this app on this machine.")
    try:
        task = _test_task(read_fleet(folder / "fleet.toml"))
        if task is None:
            return ViewAccuracies(unknown, "The app has no test(), so there are no test samples.")
        if task.layout.kept:
            return ViewAccuracies(
                unknown, "Not evaluated: normalisation layers are on the devices."
            )
        evaluated = []
        for view, (rounds, parameters) in models.items():
            model = flat_model(folder, view, parameters, task.layout)
            evaluated.append(ViewAccuracy(view, rounds, task.evaluate(model).test_accuracy))
    except FedpbcError as error:
        return ViewAccuracies(unknown, f"Not evaluated: {error}.")
    return ViewAccuracies(evaluated)


def _test_task(settings: FleetSettings) -> Task | None:
    if settings.fleet.app is None:
        return build_task(settings.config)
    app = settings.app(settings.fleet.app)
    test = app.test
    if test is None:
        return None
    # A task of one client that holds the test samples is evaluated on them.
    tested = replace(app, data=lambda client: test())
    seed = settings.config.general.seed
    return tested.task(0, clients=1, seed=seed, training=settings.training)
