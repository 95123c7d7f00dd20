"""What runs in each process of the engine «pool»: take a segment, train, put the model into a slot.

Started as ``python -m fedpbc.engines.worker`` by :mod:`fedpbc.engines.pool`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

import torch

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.engines.shared_memory import Order, SharedTask, Slots, unpack
from fedpbc.errors import DivergedError, one_line

__all__ = ["main"]


def main() -> None:
    """Work until the other end is closed."""
    # Ctrl-C is for the process that was started by hand; it closes what it opened.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line, lifeline = (int(number) for number in sys.argv[1:])
    threading.Thread(target=leave_with, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    with Connection(line) as connection:
        parcel, dimension, dtype, count, file = connection.recv()
        task = unpack(SharedTask(*parcel))
        slots = Slots(dimension, dtype, count, file)
        connection.send(None)
        while True:
            try:
                order: Order = connection.recv()
            except EOFError:
                return
            failure: DivergedError | str | None = None
            try:
                correction = None if order.correction is None else slots.view(order.correction)
                segment = Segment(
                    order.client,
                    slots.view(order.start),
                    order.first_round,
                    order.rounds,
                    order.first_batch,
                    order.scale,
                    correction,
                )
                train(task, segment, slots.view(order.result))
            except DivergedError as error:
                failure = error
            except Exception as error:
                # Whatever a user's module raises: the run stops with it, not this process.
                failure = one_line(error)
            connection.send((order.client, failure))


def leave_with(lifeline: int) -> None:
    """End this process, in whatever it is doing, when the one that started it is gone."""
    os.read(lifeline, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
