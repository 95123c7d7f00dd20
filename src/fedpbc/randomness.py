"""Every random number of a run, as a pure function of (seed, purpose, numbers).

A counter-based generator (Philox) is keyed by the seed and the purpose and starts at a counter made
of up to two numbers, such as (client, epoch) or (round,). So a draw can be made again anywhere, in
any order and by any process, and gives the same bits: this is what links, batches and resumed
runs rest on.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

__all__ = ["generator", "integer_seed"]


def generator(seed: int, purpose: str, first: int = 0, second: int = 0) -> np.random.Generator:
    """The generator for one purpose of one run.

    Streams with different arguments never overlap: each has 2**128 draws of its own.

    Example:
        >>> a, b = generator(1, "uplink", 7), generator(1, "uplink", 7)
        >>> bool(a.random() == b.random())
        True
    """
    key = int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")
    counter = np.array([0, 0, second, first], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def integer_seed(seed: int, purpose: str, first: int = 0, second: int = 0) -> int:
    """A 63-bit seed for another library's generator (PyTorch's).

    Example:
        >>> integer_seed(1, "init") == integer_seed(1, "init")
        True
    """
    words = f"{seed}/{purpose}/{first}/{second}".encode()
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "little") >> 1
