"""Random numbers as a pure function of (seed, purpose, numbers).

A counter-based generator (Philox) is keyed by the seed and the purpose, and starts at a counter of
up to two numbers, such as (client, epoch) or (round,). So any process can repeat a draw, in any
order, with the same bits: links, batches and resumed runs rely on this.
"""

from __future__ import annotations

from hashlib import blake2b
from threading import local

import numpy as np
from numpy.typing import NDArray

from fedpbc.parallel import in_parts

__all__ = ["Streams", "generator", "integer_seed", "uniform"]


def generator(seed: int, purpose: str, first: int = 0, second: int = 0) -> np.random.Generator:
    """Return the generator for one purpose of one run.

    Streams with different arguments never overlap: each has 2**128 draws of its own.

    Example:
        >>> a, b = generator(1, "uplink", 7), generator(1, "uplink", 7)
        >>> bool(a.random() == b.random())
        True
    """
    counter = np.array([0, 0, second, first], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose), counter=counter))


def _key(seed: int, purpose: str) -> int:
    return int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")


class Streams:
    """The generators of one purpose, of which a thread uses one at a time.

    A new generator takes longer to make than to draw a hundred numbers from. Here there is one,
    which is put back to its beginning: the same bits in a ninth of the time.

    Example:
        >>> streams = Streams(1, "batches")
        >>> a, b = streams.at(3, 7).random(), generator(1, "batches", 3, 7).random()
        >>> bool(a == b)
        True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._key, self._threads = _key(seed, purpose), local()

    def at(self, first: int = 0, second: int = 0) -> np.random.Generator:
        """The generator for these numbers, until the next call."""
        threads = self._threads
        if not hasattr(threads, "stream"):
            threads.stream = np.random.Generator(np.random.Philox(key=self._key))
            threads.beginning = threads.stream.bit_generator.state
        threads.beginning["state"]["counter"][:] = 0, 0, second, first
        threads.stream.bit_generator.state = threads.beginning
        stream: np.random.Generator = threads.stream
        return stream


def uniform(seed: int, purpose: str, first: int, count: int) -> NDArray[np.float64]:
    """Return the first ``count`` numbers in [0, 1) of a stream, in threads if they are many."""
    drawn = np.empty(count)

    def draw(part: slice) -> None:
        stream = generator(seed, purpose, first)
        # Skip the numbers before this part; one count of the counter is four numbers.
        stream.bit_generator.advance(part.start // 4)  # type: ignore[attr-defined]
        stream.random(out=drawn[part])

    in_parts(draw, count)
    return drawn


def integer_seed(seed: int, purpose: str, first: int = 0, second: int = 0) -> int:
    """Return a 63-bit seed for another library's generator (PyTorch's)."""
    key = f"{seed}/{purpose}/{first}/{second}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1
