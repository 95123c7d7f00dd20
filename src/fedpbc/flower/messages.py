"""What a strategy and the mod tell each other, as records beside those of the app.

Rounds are Flower's: they count from 1, and 0 is before the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedpbc.flower.array_layout import BadRecordError, SetupError

__all__ = [
    "CORRECTION",
    "INITIAL",
    "PROTOCOL",
    "RECEIVED",
    "UPLOAD",
    "Identity",
    "RuleRequest",
    "WorkReply",
    "WorkRequest",
    "has_protocol",
]

PROTOCOL = "fedpbc"
"""The key of the record with everything that is no array."""
RECEIVED = "fedpbc.received"
"""Vectors that the algorithm sends along with the model."""
INITIAL = "fedpbc.initial"
"""What a client keeps at first, where that is not zero."""
UPLOAD = "fedpbc.upload"
"""Vectors that a client uploads besides its model."""
CORRECTION = "fedpbc.correction"
"""What the app's ``train`` must add to every gradient, by the names of the model's arrays."""
VERSION = 1


@dataclass(frozen=True)
class RuleRequest:
    """Which client rule to run, and what it must know.

    Attributes:
        algorithm, options: the algorithm by name, and its options as JSON.
        rates: the step size of each owed round; NaN where the server does not know it.
        local_steps: steps per round; 0 where the server does not know it.
        counted: the token of the last reply that was counted; empty: none.
    """

    algorithm: str
    options: str
    rates: tuple[float, ...]
    local_steps: int
    counted: str

    def algorithm_options(self) -> dict[str, Any]:
        """The options by name."""
        options: dict[str, Any] = json.loads(self.options)
        return options


@dataclass(frozen=True)
class WorkRequest:
    """Train the rounds that are owed, from the model in the same message.

    Attributes:
        job: of the strategy; a run may hold several.
        round: the current round, the last of those owed.
        first_round: the first round owed.
        participations: how many uploads of this client were counted before.
        scale: η_g, applied to the change of each round.
        arrays_key, config_key: of the app's records.
        keeps_training: the same rounds are owed until a reply is counted.
        rule: None for plain training.
        is_greeting: nothing is to be trained; the client says who it is.
    """

    job: str
    round: int
    first_round: int
    participations: int
    scale: float
    arrays_key: str
    config_key: str
    keeps_training: bool = False
    rule: RuleRequest | None = None
    is_greeting: bool = False

    def record(self) -> ConfigRecord:
        """The record to send."""
        fields = {name: value for name, value in asdict(self).items() if name != "rule"}
        if self.rule is not None:
            fields |= {f"rule.{name}": value for name, value in asdict(self.rule).items()}
            fields["rule.rates"] = list(self.rule.rates)
        return ConfigRecord({"version": VERSION, **fields})

    @classmethod
    def read(cls, content: RecordDict) -> WorkRequest:
        """The request of a message; a BadRecordError if it is another version's."""
        fields = dict(content.config_records[PROTOCOL])
        if fields.pop("version", None) != VERSION:
            raise BadRecordError("the server has another version of fedpbc than this client")
        rule = {
            name.removeprefix("rule."): fields.pop(name)
            for name in list(fields)
            if name.startswith("rule.")
        }
        if rule:
            rule["rates"] = tuple(rule["rates"])
        try:
            return cls(**fields, rule=RuleRequest(**rule) if rule else None)
        except TypeError as error:
            raise BadRecordError(f"the server's request cannot be read: {error}") from None


@dataclass(frozen=True)
class Identity:
    """Who a client is, by its node's configuration; −1 where that does not say.

    A node keeps its partition when it restarts, though Flower may give it another id.
    """

    partition: int = -1
    partitions: int = -1

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Identity:
        """From a node's configuration."""
        return cls(*(_count(node_config.get(f"{key}")) for key in PARTITION_KEYS))


PARTITION_KEYS = ("partition-id", "num-partitions")


@dataclass(frozen=True)
class WorkReply:
    """What comes with the reply of a client.

    Attributes:
        token: names the state that the client keeps if this reply is counted.
        problem: why there is no upload; empty if there is one.
        is_lasting: no further reply of this client will have one, either.
    """

    job: str
    round: int
    identity: Identity
    token: str = ""
    problem: str = ""
    is_lasting: bool = False

    def record(self) -> ConfigRecord:
        """The record to send."""
        identity = dict(zip(PARTITION_KEYS, asdict(self.identity).values(), strict=True))
        fields = {"job": self.job, "round": self.round, "token": self.token}
        fields |= {"problem": self.problem, "is-lasting": self.is_lasting}
        return ConfigRecord({"version": VERSION, **fields, **identity})

    @classmethod
    def read(cls, content: RecordDict) -> WorkReply:
        """The reply of a client, which may be anything."""
        fields = content.config_records.get(PROTOCOL)
        if fields is None:
            raise SetupError(
                "its ClientApp has no catch_up_mod: write ClientApp(mods=[catch_up_mod])"
            )
        if fields.get("version") != VERSION:
            raise SetupError(
                "the client has another version of fedpbc than the server: install the same one"
            )
        job, token, problem = (fields.get(name) for name in ("job", "token", "problem"))
        if not (isinstance(job, str) and isinstance(token, str) and isinstance(problem, str)):
            raise BadRecordError(f"its record {PROTOCOL!r} cannot be read")
        is_lasting = fields.get("is-lasting") is True
        return cls(
            *(job, _count(fields.get("round")), Identity.of(fields), token[:100]),
            *(problem, is_lasting),
        )


def has_protocol(content: RecordDict) -> bool:
    """Whether a message comes from one of this package's strategies."""
    return PROTOCOL in content.config_records


def _count(value: object) -> int:
    """A number from 0 on; −1 for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_count and isinstance(value, int) else -1
