"""The stacked engine: all clients' models in one tensor, fast for small dense models.

A segment is a row. All rows advance together, one round at a time; a row leaves the stack when its
segment ends, and new rows join, those whose results are needed first before others. A row's bits do
not depend on the other rows, so a resumed run, which stacks other rows together, gives the same
result. The tensor is on the task's device; segments' models are moved there and back. Segments
whose rule takes the local steps itself run one after another.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpbc.algorithms.client import ClientWork
from fedpbc.engines.client_side import finish, work_of
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, Trained, after_round, all_finite
from fedpbc.engines.serial import train
from fedpbc.errors import DivergedError, InputError
from fedpbc.tasks.task import StackedTask, Task

__all__ = ["StackedEngine"]

STACK_BYTES = 2**26
"""Bytes of the rows and of results that wait for their round; more only if they are needed now."""
MIN_ROWS = 64
"""Rows of the stack that are allowed however large they are: enough for all cores."""


@dataclass
class StackRow:
    """A segment in progress."""

    segment: Segment
    work: ClientWork | None = None
    """What the client's rule sees, where it has one."""
    correction: Tensor | None = None
    rounds_done: int = 0

    @property
    def round(self) -> int:
        return self.segment.first_round + self.rounds_done


class StackedEngine:
    """Runs all submitted segments together in one tensor."""

    name = "stacked"

    def __init__(self, task: Task) -> None:
        if not isinstance(task, StackedTask):
            raise InputError("engine", "stacked", "'serial': this task has no stacked local steps")
        advice = task.stack_advice()
        if not advice.possible:
            raise InputError("engine", "stacked", f"'serial', since {advice.why}")
        self.task, self.stack = task, task
        self._device = getattr(task, "device", torch.device("cpu"))
        self._rows: list[StackRow] = []
        # The rows' models are at the front of a buffer that only grows.
        self._buffer: Tensor | None = None
        # Segments that are not in the stack, by client, and those of them that may join it, with
        # the next result to be requested on top.
        self._waiting: dict[int, Segment] = {}
        self._queue: list[tuple[int, int]] = []
        self._finished: dict[int, Trained] = {}

    def submit(self, segment: Segment) -> None:
        """Accept a segment; it joins the stack when there is room, or its result is needed."""
        self._waiting[segment.client] = segment
        if not has_own_steps(segment):
            heapq.heappush(self._queue, (segment.last_round, segment.client))

    def result(self, client: int) -> Trained:
        """Advance all rows until the client's segment ends."""
        with one_thread():
            segment = self._waiting.get(client)
            if segment is not None and has_own_steps(segment):
                del self._waiting[client]
                return train(self.task, segment)
            while client not in self._finished:
                self._add_rows(client)
                self._advance(client)
        return self._finished.pop(client)

    def _add_rows(self, client: int) -> None:
        """Fill the stack; if the client's segment is not in it, with all that are due with it."""
        if not self._queue:
            return
        start = self._waiting[self._queue[0][1]].start
        most = max(MIN_ROWS, STACK_BYTES // start.nbytes)
        requested = self._waiting.get(client)
        new: list[Segment] = []
        while self._queue:
            room = len(self._rows) + len(self._finished) + len(new) < most
            if requested is not None and not room:
                # The stack is full of rows that are needed later.
                due = self._queue[0][0] <= requested.last_round
                room = client in self._waiting or (due and len(new) < most)
            if not room:
                break
            new.append(self._waiting.pop(heapq.heappop(self._queue)[1]))
        needed = len(self._rows) + len(new)
        if new and (self._buffer is None or len(self._buffer) < needed):
            rows = max(needed, min(2 * needed, most))
            larger = start.new_empty(rows, len(start), device=self._device)
            if self._buffer is not None:
                larger[: len(self._rows)] = self._buffer[: len(self._rows)]
            self._buffer = larger
        # Many begin with the same model: one call copies it to all their rows.
        for _, group in itertools.groupby(new, key=lambda segment: id(segment.start)):
            assert self._buffer is not None
            segments, first = list(group), len(self._rows)
            self._buffer[first : first + len(segments)] = segments[0].start
            self._rows += map(self._new_row, segments)

    def _new_row(self, segment: Segment) -> StackRow:
        if segment.rule is None:
            return StackRow(segment)
        work = work_of(self.task, segment)
        correction = segment.rule.correction(work)
        return StackRow(
            segment,
            work,
            None if correction is None else correction.to(segment.start.dtype, copy=True),
        )

    def _advance(self, client: int) -> None:
        """Train one round of every row, of which one must be the client's."""
        rows, steps = self._rows, self.task.training.local_steps
        if self._buffer is None or all(row.segment.client != client for row in rows):
            raise LookupError(f"no segment of client {client} was submitted")
        models = self._buffer[: len(rows)]
        scaled = any(row.segment.scale != 1 for row in rows)
        before = models.clone() if scaled else models
        finite = self.stack.stacked_local_steps(
            [row.segment.client for row in rows],
            models,
            [row.round for row in rows],
            [row.segment.first_batch + row.rounds_done * steps for row in rows],
            self._corrections(),
        )
        if scaled:
            for k, row in enumerate(rows):
                if row.segment.scale != 1:
                    # On the CPU: not every device has the double precision that this needs.
                    models[k] = after_round(before[k].cpu(), models[k].cpu(), row.segment.scale)
        if scaled or finite is None:
            # A finite sum has finite terms.
            finite = models.sum(1).isfinite()
        # One transfer for all rows: each read of a GPU's memory waits for its queue.
        for k, (row, is_finite) in enumerate(zip(rows, finite.tolist(), strict=True)):
            if not is_finite and not all_finite(models[k]):
                raise DivergedError(client=row.segment.client, round=row.round)
            row.rounds_done += 1
        self._remove_finished(models)

    def _corrections(self) -> Tensor | None:
        if all(row.correction is None for row in self._rows):
            return None
        vectors = [
            torch.zeros_like(row.segment.start) if row.correction is None else row.correction
            for row in self._rows
        ]
        return torch.stack(vectors).to(self._device)

    def _remove_finished(self, models: Tensor) -> None:
        """Take finished rows out; the last rows move to their positions."""
        ended = [k for k, row in enumerate(self._rows) if row.rounds_done == row.segment.rounds]
        for k in ended:
            segment, work = self._rows[k].segment, self._rows[k].work
            end = models[k].to("cpu", copy=True)
            self._finished[segment.client] = (
                Trained(segment, {"model": end}) if work is None else finish(segment, work, end)
            )
        for k in reversed(ended):
            last = self._rows.pop()
            if k < len(self._rows):
                self._rows[k] = last
                models[k] = models[len(self._rows)]

    def close(self) -> None:
        """Drop segments that were not run."""
        self._rows, self._buffer, self._queue = [], None, []
        self._waiting.clear()
        self._finished.clear()


def has_own_steps(segment: Segment) -> bool:
    """Whether the client's rule takes the local steps itself."""
    return segment.rule is not None and segment.rule.has_own_steps
