"""What is kept of a run: what results, pages and notebooks read, whether it is stored or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fedpbc.experiments.client_overview import ClientOverview

__all__ = ["Record"]


@dataclass(frozen=True, eq=False)
class Record:
    """A run and what came of it.

    Attributes:
        label, role, condition, problem, seed: as of the :class:`~fedpbc.study.study.Run`.
        values: all settings as in ``config.toml``; those of how it was executed, too.
        metrics: one line per evaluation.
        result: as in ``result.json``; None while the run is not finished.
        failure: one line: why it failed; None if it did not.
        folder: where it is stored; None if it is not.
        clients: what :meth:`overview` shows, of a run that is not stored.
        models: the final model of each view, of a run that ended in this process.

    Example:
        >>> record = Record("fedau:cutoff=5", "entry", "", 0, {"algorithm": {"name": "fedau"}})
        >>> record.algorithm, record.finished
        ('fedau', False)
    """

    label: str
    role: str
    condition: str
    seed: int
    values: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    result: Mapping[str, Any] | None = None
    failure: str | None = None
    problem: str = ""
    folder: Path | None = None
    clients: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    models: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.values["algorithm"]["name"])

    @property
    def finished(self) -> bool:
        """Whether it is complete."""
        return self.result is not None

    @property
    def deploy_view(self) -> str | None:
        """The view to deploy, if it was chosen beforehand."""
        view: str | None = self.values.get("deploy_view")
        return view

    @property
    def step_sizes(self) -> tuple[float, float]:
        """η_0 and η_g."""
        train = self.values["train"]
        return train["learning_rate"], train["global_learning_rate"]

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know of its task and links, one line each."""
        lines: Sequence[str] = (self.result or {}).get("notes", ())
        return lines

    def overview(self) -> ClientOverview:
        """Its clients: their links, probabilities and samples."""
        from fedpbc.experiments.client_overview import ClientOverview, load_client_overview

        if self.folder is not None:
            return load_client_overview(self.folder / "clients.safetensors")
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in self.clients.items()}
        return ClientOverview(**arrays)
