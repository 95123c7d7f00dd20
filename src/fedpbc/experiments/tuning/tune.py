"""Python's way to a search: :func:`tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.tuning.choice import write_choice
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.experiments.tuning.result import TuningResult
from fedpbc.limits import check_path
from fedpbc.options import check_arguments
from fedpbc.parallel import usable_cores
from fedpbc.storage.scratch import scratch_folder

__all__ = ["tune"]


@check_arguments
def tune(
    values: Mapping[str, Any],
    algorithms: Sequence[str] | None = None,
    *,
    ceiling: bool = False,
    space: Mapping[str, Sequence[Any]] | None = None,
    candidates: int | None = None,
    budget: int | None = None,
    minutes: float | None = None,
    seeds: Sequence[int] | str = (0,),
    validation: float | None = None,
    out: Path | str | None = None,
    jobs: int | None = None,
) -> TuningResult:
    """Choose step sizes and options by successive halving on held-out training data.

    Args:
        values: of a configuration: data or app, links, rounds, …
        algorithms: names and specifications (``fedau:cutoff=5``); None: the configuration's.
        ceiling: also FedAvg with every link up, under the label ``ceiling``.
        space: values to try, by setting; else multiples of the configured step sizes and what
            algorithms name in ``tuned_options``.
        candidates: settings tried for each; or else
        budget: rounds of all runs together; or else
        minutes: time.
        seeds: a candidate's score is the mean over these; a text such as "0-4" will do.
        validation: the share of each client's samples that is kept out of training for scoring.
        out: a folder for the search, which is continued if it was begun there; None: temporary.
        jobs: runs side by side; None: one per core.

    Example:
        >>> values = {"data": "digits", "clients": 5, "rounds": 3,
        ...           "links": {"name": "bernoulli", "p": 0.5}}
        >>> result = tune(values, ["fedavg"], space={"learning_rate": [0.1]}, candidates=1, jobs=1)
        >>> result.entries[0].best.settings["train.learning_rate"]
        0.1
    """
    if not isinstance(values, Mapping):
        raise InputError("values", values, "a table of settings")
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if out is not None:
        check_path(out, "out")
    request = TuningRequest(
        algorithms=algorithms,
        ceiling=ceiling,
        space=space,
        candidates=candidates,
        budget=budget,
        minutes=minutes,
        seeds=seeds,
        validation=validation,
    )
    plan = plan_tuning(values, request)
    with ExitStack() as stack:
        path = stack.enter_context(scratch_folder()) / "tune" if out is None else out
        directory = TuningDirectory(path)
        with directory.opened(plan) as opened:
            result = directory.run(
                opened, jobs or usable_cores(), lambda plan: lambda progress: None
            )
            write_choice(directory, result)
            directory.seal(result)
            directory.remove_checkpoints()
    return result
