"""How far a client has got with the rounds that it owes, in Flower's context.

A client whose reply was lost, or came too late, is asked again for the same rounds and one more. It
then goes on from the model that it has, instead of training all of them again. If the context is
lost only time is: the message brings everything that is needed to start anew.
"""

from __future__ import annotations

from hashlib import sha256

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedpbc.flower.messages import WorkRequest

__all__ = ["Progress"]

PROGRESS = "fedpbc.progress"
MODEL = "fedpbc.progress.model"


class Progress:
    """The progress on a request, which counts only for the same start in the same job."""

    def __init__(self, context: RecordDict, request: WorkRequest, start: ArrayRecord) -> None:
        self._context, self._request, self._start = context, request, start
        digest = sha256(f"{request.job} {request.first_round} {request.scale!r}".encode())
        for name, array in start.items():
            digest.update(f"{name} {array.dtype} {array.shape} {len(array.data)}".encode())
            digest.update(array.data)
        self._work = digest.hexdigest()

    def resume(self) -> tuple[int, ArrayRecord]:
        """The next round to train, and the model to train it from."""
        kept = self._context.config_records.get(PROGRESS, {})
        if kept.get("work") == self._work and MODEL in self._context.array_records:
            done = int(kept["round"])
            # The last round is always trained: its metrics belong to the reply.
            if self._request.first_round <= done < self._request.round:
                return done + 1, self._context.array_records[MODEL]
        return self._request.first_round, self._start

    def save(self, model: ArrayRecord) -> None:
        """All rounds of the request are trained."""
        self._context[PROGRESS] = ConfigRecord({"work": self._work, "round": self._request.round})
        self._context[MODEL] = model
