"""What a checkpoint knows of all rounds, so that a damaged log of rounds can be written again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedpbc.limits import parse_json

__all__ = ["RoundHistory"]

NOT_KEPT = ("checksums", "known")
"""They would need many bytes per client and round, and nothing is computed from them."""
LARGEST = 1 << 31
"""Bytes of a history: more than any job's."""


class RoundHistory:
    """The lines of all rounds, compressed: who got through in which round, and when.

    Example:
        >>> history = RoundHistory([{"round": 0, "active": [1, 2], "checksums": {1: "…", 2: "…"}}])
        >>> RoundHistory.lines(history.content())
        [{'round': 0, 'active': [1, 2], 'checksums': {}, 'restored': True}]
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._compressor = zlib.compressobj()
        self._content = bytearray()
        for line in lines:
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round."""
        kept = {name: value for name, value in line.items() if name not in NOT_KEPT}
        self._content += self._compressor.compress(f"{json.dumps(kept)}\n".encode())

    def content(self) -> Tensor:
        """What a checkpoint stores."""
        # A copy of the compressor ends the stream; this one goes on with it.
        end = self._compressor.copy().flush()
        return torch.frombuffer(bytearray(self._content + end), dtype=torch.uint8)

    @staticmethod
    def lines(content: Tensor) -> list[dict[str, Any]]:
        """The lines of a stored history, without checksums; a ValueError if it is damaged."""
        try:
            text = zlib.decompressobj().decompress(content.numpy().tobytes(), LARGEST)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        kept = [parse_json(line) for line in text.splitlines()]
        return [{**line, "checksums": {}, "restored": True} for line in kept]
