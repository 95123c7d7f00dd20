"""Random crop and horizontal flip, drawn once per batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from fedpbc.options import check_fields
from fedpbc.randomness import integer_seed

if TYPE_CHECKING:  # importing torch takes a second, and only its users need it
    import torch

__all__ = ["Augmentation"]


@dataclass(frozen=True)
class Augmentation:
    """Random crop and flip, the same for every image of a batch.

    The draw is a pure function of the seed, the client and the batch number.

    Example:
        >>> augmentation = Augmentation(seed=1, padding=4, flip=True)
        >>> augmentation.draw(client=3, k=0) == augmentation.draw(client=3, k=0)
        True
    """

    seed: int
    padding: Annotated[int, Ge(0)]
    flip: bool

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_used(self) -> bool:
        """Whether any image may change."""
        return self.padding > 0 or self.flip

    def draw(self, client: int, k: int) -> tuple[int, int, bool]:
        """Return the crop's top and left corner in the padded image, and whether to flip."""
        # Bits straight from the hash: creating a generator would take as long as the crop itself.
        bits = integer_seed(self.seed, "augmentation", client, k)
        bits, flip_bit = divmod(bits, 2)
        bits, top = divmod(bits, 2 * self.padding + 1)
        left = bits % (2 * self.padding + 1)
        return top, left, self.flip and flip_bit == 1

    def apply(self, images: torch.Tensor, client: int, k: int) -> torch.Tensor:
        """Pad [B, H, W, C] with zeros, crop to the original size, and flip left to right.

        The input is never modified; it is returned itself where there is nothing to do.
        """
        if not self.is_used:
            return images
        from torch.nn.functional import pad

        top, left, flipped = self.draw(client, k)
        # Negative padding crops: pad and crop in one step, without storing the padded image.
        down, right = (
            max(-length, min(length, self.padding - corner))
            for length, corner in zip(images.shape[1:3], (top, left), strict=True)
        )
        if down or right:
            images = pad(images, (0, 0, right, -right, down, -down))
        return images.flip(2) if flipped else images

    def clear_border(self, images: torch.Tensor, client: int, k: int) -> None:
        """Set what :meth:`apply` took from the padding to 0, in place.

        After normalisation 0 is the mean colour; black is an edge that a network learns from.
        """
        top, left, flipped = self.draw(client, k)
        down, right = self.padding - top, self.padding - left
        if flipped:
            right = -right
        if down:
            images[:, slice(down) if down > 0 else slice(down, None)] = 0
        if right:
            images[:, :, slice(right) if right > 0 else slice(right, None)] = 0
