"""Random numbers as a pure function of (seed, purpose, numbers).

A counter-based generator (Philox) is keyed by the seed and the purpose, and starts at a counter of
up to two numbers, such as (client, epoch) or (round,). So any process can repeat a draw, in any
order, with the same bits: links, batches and resumed runs rely on this.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedpbc.parallel import in_parts

__all__ = ["generator", "integer_seed", "uniform"]


def generator(seed: int, purpose: str, first: int = 0, second: int = 0) -> np.random.Generator:
    """Return the generator for one purpose of one run.

    Streams with different arguments never overlap: each has 2**128 draws of its own.

    Example:
        >>> a, b = generator(1, "uplink", 7), generator(1, "uplink", 7)
        >>> bool(a.random() == b.random())
        True
    """
    key = int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")
    counter = np.array([0, 0, second, first], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


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
