"""The serial engine: one segment after another, in this process, on one thread."""

from __future__ import annotations

from torch import Tensor

from fedpbc.engines.client_side import finish, own_steps, plain_result, work_of
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, Trained, after_round, all_finite
from fedpbc.errors import DivergedError
from fedpbc.tasks.task import ManyRounds, Task

__all__ = ["SerialEngine", "train"]


def train(task: Task, segment: Segment, out: Tensor | None = None) -> Trained:
    """Run one segment; the model after plain local steps is written to ``out``, if given."""
    rule = segment.rule
    if rule is None:
        return plain_result(segment, train_model(task, segment, None, out))
    work = work_of(task, segment)
    if rule.has_own_steps:
        return own_steps(task, segment, work)
    correction = rule.correction(work)
    if correction is not None:
        correction = correction.to(segment.start.dtype, copy=True)
    return finish(segment, work, train_model(task, segment, correction, out))


def train_model(
    task: Task, segment: Segment, correction: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Take the plain local steps of a segment; ``correction`` is added to every gradient.

    The result includes the layers that stay on the client.
    """
    model, steps = segment.full_start, task.training.local_steps
    if out is not None and len(out) != len(model):
        out = None  # A place for what is uploaded only.
    if isinstance(task, ManyRounds) and segment.scale == 1:
        rounds = segment.first_round, segment.rounds, segment.first_batch
        start, model = model, task.local_rounds(segment.client, model, *rounds, correction, out)
        if all_finite(model):
            return model
        # Run round by round to find the round in which it diverged.
        model = start
    for k in range(segment.rounds):
        round, batch = segment.first_round + k, segment.first_batch + k * steps
        # A copy: a task from outside may take its steps in place, and others share the start.
        end = task.local_steps(segment.client, model.clone(), round, batch, correction)
        model = after_round(model, end, segment.scale, segment.trained)
        if not all_finite(model):
            raise DivergedError(client=segment.client, round=round)
    return model if out is None else out.copy_(model)


class SerialEngine:
    """Runs a segment when its result is requested.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[8.0], [4.0]])
        >>> engine = SerialEngine(task)
        >>> for client, rounds in ((0, 2), (1, 1)):
        ...     engine.submit(Segment(client, task.init(), 0, rounds, 0))
        >>> engine.result(1).segment.rounds
        1
    """

    name = "serial"

    def __init__(self, task: Task) -> None:
        self.task = task
        self._waiting: dict[int, Segment] = {}

    def submit(self, segment: Segment) -> None:
        """Accept a segment."""
        self._waiting[segment.client] = segment

    def result(self, client: int) -> Trained:
        """Run the client's segment."""
        with one_thread():
            return train(self.task, self._waiting.pop(client))

    def close(self) -> None:
        """Drop segments that were not run."""
        self._waiting.clear()
