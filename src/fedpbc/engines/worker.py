"""The main program of a process of the engine "pool": receive a segment, train, fill a slot.

Started as ``python -m fedpbc.engines.worker`` by :mod:`fedpbc.engines.worker_process`.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.serial import train
from fedpbc.engines.shared_memory import Slots, unpack, unpickled
from fedpbc.errors import DivergedError, explained, one_line
from fedpbc.interrupts import leave_to_parent

__all__ = ["main"]


def main() -> None:
    """Work until the connection is closed."""
    # Signals are handled by the process that the user started; it stops its workers.
    leave_to_parent()
    # The process that evaluates the model warns of the same, and its warnings are shown.
    warnings.simplefilter("ignore")
    handle, lifeline = (int(number) for number in sys.argv[1:])
    threading.Thread(target=exit_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    # The other side may close the connection at any moment, also with messages unread.
    with suppress(EOFError, ConnectionError), Connection(handle) as connection:
        shared_task, *geometry = connection.recv()
        try:
            task, slots = unpack(shared_task), Slots(*geometry)
        except Exception as error:
            # The other side says so, in one line.
            connection.send(reason_of(error))
            sys.exit(1)
        connection.send(None)
        while True:
            numbers, rule, inputs, outputs = connection.recv()
            failure: DivergedError | str | None = None
            sizes: dict[str, int] = {}
            try:
                vectors = {key: slots.view(slot)[:size] for key, (slot, size) in inputs.items()}
                segment = Segment.from_parts(numbers, unpickled(rule), vectors)
                sizes = fill(
                    train(task, segment, model_slot(segment, slots, outputs)), slots, outputs
                )
            except DivergedError as error:
                failure = error
            except Exception as error:
                # A user's module may raise anything: the run stops, but not this process.
                failure = reason_of(error)
            connection.send((numbers[0], failure, sizes))


def model_slot(segment: Segment, slots: Slots, outputs: Mapping[str, int]) -> Tensor | None:
    """Where the local steps may write the model themselves."""
    has_own_steps = segment.rule is not None and segment.rule.has_own_steps
    slot = outputs.get("upload model")
    return None if has_own_steps or slot is None else slots.view(slot)


def fill(trained: Trained, slots: Slots, outputs: Mapping[str, int]) -> dict[str, int]:
    """Write the results into their slots; returns their sizes."""
    for key, vector in trained.vectors.items():
        target = slots.view(outputs[key])[: len(vector)]
        if target.data_ptr() != vector.data_ptr():
            target.copy_(vector)
    return {key: len(vector) for key, vector in trained.vectors.items()}


def reason_of(error: Exception) -> str:
    """What went wrong, in one line: out of memory, say, or whatever a user's module raised."""
    return explained(error) or one_line(error)


def exit_with_parent(lifeline: int) -> None:
    """End this process at once when the one that started it is gone."""
    os.read(lifeline, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
