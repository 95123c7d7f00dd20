from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import Augmentation
from fedpbc.errors import InputError


def pad_and_slice(pictures, padding, top, left, mirrored):
    batch, height, width, channels = pictures.shape
    padded = torch.zeros(
        (batch, height + 2 * padding, width + 2 * padding, channels), dtype=pictures.dtype
    )
    padded[:, padding : padding + height, padding : padding + width] = pictures
    crop = padded[:, top : top + height, left : left + width]
    return torch.stack([crop[:, :, width - 1 - x] for x in range(width)], 2) if mirrored else crop


@given(
    shape=st.tuples(*[st.integers(1, 7)] * 3, st.sampled_from([1, 3])),
    padding=st.integers(0, 9),
    flip=st.booleans(),
    k=st.integers(0, 10**9),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
)
def test_equals_pad_and_slice(shape, padding, flip, k, dtype):
    pictures = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(k)).to(dtype)
    before = pictures.clone()
    augmentation = Augmentation(3, padding, flip)
    changed = augmentation.apply(pictures, 2, k)
    expected = pad_and_slice(pictures, padding, *augmentation.draw(2, k))
    assert changed.dtype == dtype
    assert torch.equal(changed, expected)
    assert torch.equal(pictures, before)
    # Pictures have no 0, so the border is where the crop has it, and stays there.
    whitened = torch.where(expected == 0, 9, expected)
    augmentation.clear_border(whitened, 2, k)
    assert torch.equal(whitened, expected)


def test_every_crop_and_flip_comes_up_about_as_often():
    augmentation = Augmentation(1, 1, True)
    counts = Counter(augmentation.draw(0, k) for k in range(18_000))
    assert set(counts) == {
        (top, left, flip) for top in range(3) for left in range(3) for flip in (False, True)
    }
    # 1,000 each; the deviation of such a count is 31.
    assert all(850 < count < 1150 for count in counts.values())


def test_draws_are_pure_and_differ_by_seed_client_and_batch():
    def draws(seed, client, first):
        return [Augmentation(seed, 4, True).draw(client, k) for k in range(first, first + 20)]

    assert draws(1, 2, 0) == draws(1, 2, 0)
    different = [draws(1, 2, 0), draws(2, 2, 0), draws(1, 3, 0), draws(1, 2, 20)]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])


def test_nothing_to_do_returns_the_input():
    pictures = torch.ones(2, 4, 4, 3)
    assert Augmentation(1, 0, False).apply(pictures, 0, 0) is pictures


def test_without_flip_nothing_is_mirrored():
    assert not any(Augmentation(1, 4, False).draw(0, k)[2] for k in range(50))


def test_negative_padding():
    with pytest.raises(InputError, match=r"^padding is -1"):
        Augmentation(1, -1, False)
