"""What a client keeps from contact to contact: on its device only, and counted exactly once.

A new state belongs to the reply that was computed with it, and counts if the server counted that
reply. The device cannot know whether it did: replies get lost. So it keeps the states of its last
reply and of the last ones that were counted, by round, and each request says which of them is
right. Which one is used depends on the request alone, so a device may be killed at any point.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from torch import Tensor

from fedpbc.algorithms.client import Vectors
from fedpbc.deployment.protocol.messages import MessageError, TrainRequest
from fedpbc.deployment.protocol.tensors import initial_checksum

__all__ = ["KeptStates", "after_reply", "check_order", "check_states", "fingerprint", "state_for"]

KeptStates = Mapping[int, Vectors]
"""What the client keeps, by the round of the reply that it belongs to."""
COUNTED = 2
"""Counted states that are kept: the last, and the one before for a server whose newest checkpoint
is damaged, and which repeats a round."""


def state_for(request: TrainRequest, kept: KeptStates, initial: Vectors) -> Vectors:
    """The state that a request starts from; a MessageError if this device does not have it.

    ``kept`` are the states of the request's job, and ``initial`` is what this device has at first.
    """
    if request.counted >= 0:
        if request.counted not in kept:
            raise MessageError(
                f"this device has lost what client {request.client} keeps: the server counted its "
                f"answer to round {request.counted}; put back the folder 'state' of the device "
                "that gave it, or start a new job; this job goes on without the client"
            )
        return kept[request.counted]
    if initial_checksum(initial) != request.initial:
        raise MessageError(
            f"what client {request.client} keeps at first is not what the server expects: the "
            "initial model must be the same on both"
        )
    return initial


def check_order(request: TrainRequest, replied: int, fingerprint_of_reply: str) -> None:
    """Raise a MessageError unless a request is newer than the last one replied to, or the same."""
    if request.round < replied:
        raise MessageError(
            f"request of round {request.round}, but this device has replied to round {replied}"
        )
    if request.round == replied and fingerprint(request) != fingerprint_of_reply:
        # The server repeats the round after another history, or did so before: only one reply to
        # a round may exist, since the next request names it by its round.
        raise MessageError(f"this device has replied to another request of round {request.round}")


def after_reply(kept: KeptStates, request: TrainRequest, state: Vectors) -> dict[int, Vectors]:
    """The states to keep with the reply to a request; those that can no longer count are dropped.

    Example:
        >>> from types import SimpleNamespace
        >>> kept = {2: {}, 4: {}, 7: {}, 8: {}}
        >>> list(after_reply(kept, SimpleNamespace(counted=7, round=9), {}))
        [4, 7, 9]
    """
    counted = sorted(round for round in kept if round <= request.counted)[-COUNTED:]
    return {**{round: kept[round] for round in counted}, request.round: state}


def fingerprint(request: TrainRequest) -> str:
    """Identify everything of a request that its reply depends on."""
    numbers = request.client, request.first_round, request.rounds, request.first_batch
    header = *numbers, request.scale, request.counted, request.round, request.job, request.settings
    digest = sha256(repr(header).encode())
    for name, vector in {"": request.start, **request.received}.items():
        digest.update(repr((name, vector.dtype, len(vector.data))).encode())
        digest.update(vector.data)
    return digest.hexdigest()


def check_states(kept: object, size: int) -> None:
    """Raise TypeError for states that no trainer saved; vectors have at most so many values."""
    if not isinstance(kept, Mapping):
        raise TypeError("the trainer's state: kept is not a table")
    for round, state in kept.items():
        if not isinstance(round, int) or round < 0 or not isinstance(state, Mapping):
            raise TypeError("the trainer's state: kept has an invalid round")
        for name, vector in state.items():
            is_vector = isinstance(vector, Tensor) and vector.dim() == 1
            if not isinstance(name, str) or not is_vector or not 1 <= len(vector) <= size:
                raise TypeError("the trainer's state: kept has an invalid vector")
