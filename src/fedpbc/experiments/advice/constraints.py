"""What a user's fleet can afford."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from annotated_types import Ge

from fedpbc.options import check_type

__all__ = ["Constraints"]


class CostRow(Protocol):
    """What is needed of a comparison's row."""

    @property
    def local_steps(self) -> int: ...
    @property
    def models_on_server(self) -> int | None: ...
    @property
    def models_on_client(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Limits of a recommendation; None: no limit.

    Attributes:
        max_server_models: vectors of the model's size that the server may keep.
        max_local_steps: of all clients together, in the whole run.
        client_state: whether devices may keep anything from contact to contact.

    Example:
        >>> from types import SimpleNamespace
        >>> row = SimpleNamespace(local_steps=100, models_on_server=101, models_on_client=1)
        >>> Constraints(max_server_models=2).violated(row)
        '101 models on the server'
    """

    max_server_models: int | None = None
    max_local_steps: int | None = None
    client_state: bool = True

    def __post_init__(self) -> None:
        for name in ("max_server_models", "max_local_steps"):
            option = f"--{name.replace('_', '-')}"
            check_type(option, getattr(self, name), Annotated[int, Ge(1)] | None)
        check_type("client_state", self.client_state, bool)

    def violated(self, row: CostRow) -> str | None:
        """What a row has too much of; None if it is affordable."""
        models, limit = row.models_on_server, self.max_server_models
        if limit is not None and models is not None and models > limit:
            return f"{_counted(models, 'model')} on the server"
        if self.max_local_steps is not None and row.local_steps > self.max_local_steps:
            return _counted(row.local_steps, "local step")
        if not self.client_state and row.models_on_client:
            return "state on the devices"
        return None

    def allows(self, row: CostRow) -> bool:
        """Whether a row is affordable."""
        return self.violated(row) is None

    def described(self) -> list[str]:
        """The limits in words."""
        limits = []
        if self.max_server_models is not None:
            limits.append(f"at most {_counted(self.max_server_models, 'model')} on the server")
        if self.max_local_steps is not None:
            limits.append(f"at most {_counted(self.max_local_steps, 'local step')}")
        if not self.client_state:
            limits.append("no state on the devices")
        return limits


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
