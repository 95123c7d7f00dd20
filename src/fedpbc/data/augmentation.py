"""One random crop and one random mirroring a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpbc.errors import InputError
from fedpbc.randomness import integer_seed

if TYPE_CHECKING:  # importing torch takes a second, and only its users need it
    import torch

__all__ = ["Augmentation"]


@dataclass(frozen=True)
class Augmentation:
    """Shifts every picture of a batch the same way, and mirrors all of them or none.

    A client's k-th batch is always changed in the same way, whoever asks and in whatever order.

    Example:
        >>> augmentation = Augmentation(seed=1, padding=4, flip=True)
        >>> augmentation.draw(client=3, k=0) == augmentation.draw(client=3, k=0)
        True
    """

    seed: int
    padding: int
    flip: bool

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise InputError("data.crop_padding", self.padding, "0 or more pixels")

    def draw(self, client: int, k: int) -> tuple[int, int, bool]:
        """The crop's top and left corner in the padded picture, and whether to mirror it.

        Example:
            >>> Augmentation(seed=1, padding=0, flip=False).draw(client=3, k=7)
            (0, 0, False)
        """
        # Bits straight from the hash: a generator would take as long as the shift itself.
        bits = integer_seed(self.seed, "augmentation", client, k)
        bits, mirrored = divmod(bits, 2)
        bits, top = divmod(bits, 2 * self.padding + 1)
        left = bits % (2 * self.padding + 1)
        return top, left, self.flip and mirrored == 1

    def apply(self, pictures: torch.Tensor, client: int, k: int) -> torch.Tensor:
        """Pads [B, H, W, C] with black, crops it to its old size and mirrors it left to right.

        Pictures must not be normalised yet: black is 0. Never changes its input, but returns it
        as it is where nothing is to be done.

        Example:
            >>> import torch
            >>> pictures = torch.arange(4, dtype=torch.uint8).reshape(1, 1, 4, 1)
            >>> mirror = Augmentation(seed=1, padding=0, flip=True)
            >>> k = next(k for k in range(100) if mirror.draw(0, k) == (0, 0, True))
            >>> mirror.apply(pictures, client=0, k=k).flatten().tolist()
            [3, 2, 1, 0]
        """
        if not self.padding and not self.flip:
            return pictures
        from torch.nn.functional import pad

        top, left, mirrored = self.draw(client, k)
        # Padding by less than nothing crops: both in one step, without making the padded picture.
        down, right = (
            max(-length, min(length, self.padding - corner))
            for length, corner in zip(pictures.shape[1:3], (top, left), strict=True)
        )
        if down or right:
            pictures = pad(pictures, (0, 0, right, -right, down, -down))
        return pictures.flip(2) if mirrored else pictures
