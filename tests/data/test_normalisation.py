import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import channel_statistics, normalisation
from fedpbc.errors import InputError


@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3, st.sampled_from([1, 3])),
    seed=st.integers(0, 1000),
)
def test_equals_numpy(shape, seed):
    inputs = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    mean, deviation = channel_statistics(inputs)
    expected = inputs.std(axis=(0, 1, 2))
    np.testing.assert_allclose(mean, inputs.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(deviation, np.where(expected == 0, 1, expected))


def test_taken_in_parts_it_is_the_same_to_the_bit(monkeypatch):
    inputs = np.random.default_rng(1).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    whole = channel_statistics(inputs)
    monkeypatch.setattr(normalisation, "_VALUES_AT_ONCE", 100)
    for parted in (channel_statistics(inputs), channel_statistics(inputs[::-1])):
        np.testing.assert_array_equal(whole, parted)


def test_a_constant_channel_has_deviation_one():
    mean, deviation = channel_statistics(np.full((3, 2, 2, 1), 7, dtype=np.uint8))
    assert (mean.tolist(), deviation.tolist()) == ([7.0], [1.0])


@pytest.mark.parametrize(
    "inputs", [np.zeros((1, 2, 2, 1)), np.zeros((0, 2, 2, 1), np.uint8), np.zeros(3, np.uint8)]
)
def test_what_is_no_picture(inputs):
    with pytest.raises(InputError, match="should be at least one uint8 image"):
        channel_statistics(inputs)
