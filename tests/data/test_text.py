"""Texts as numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data.text import UNKNOWN, encode, next_characters, vocabulary_of

texts = st.text(max_size=60)


@given(st.lists(texts, min_size=1, max_size=4))
def test_every_character_of_the_training_texts_has_a_number(each):
    vocabulary = vocabulary_of(each)
    assert vocabulary[-1] == UNKNOWN
    for text in each:
        decoded = "".join(vocabulary[k] for k in encode(text, vocabulary))
        assert decoded == text


def test_other_characters_are_unknown():
    assert encode("abzé", ("a", "b", UNKNOWN)).tolist() == [0, 1, 2, 2]
    assert encode("", ("a", UNKNOWN)).tolist() == []


@given(st.integers(0, 50), st.integers(1, 12))
def test_each_target_is_the_character_after_its_position(count, length):
    tokens = np.arange(count, dtype=np.int32)
    inputs, targets = next_characters(tokens, length)
    assert inputs.shape == targets.shape == (max(0, count - 1) // length, length)
    np.testing.assert_array_equal(inputs + 1, targets)
    np.testing.assert_array_equal(inputs.ravel(), tokens[: inputs.size])
