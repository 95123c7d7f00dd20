from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc import FedpbcError
from fedpbc.storage.tensors import (
    DamagedCheckpointError,
    TensorPool,
    load_state,
    peek_state,
    save_state,
)

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16)

tensors = st.builds(
    lambda dtype, shape, start: (
        (torch.arange(shape[0] * shape[1]) + start).reshape(shape).to(dtype)
    ),
    st.sampled_from(DTYPES),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(-5, 5),
)
arrays = st.builds(
    lambda dtype, count: np.arange(count).astype(dtype),
    st.sampled_from(["int64", "float64", "bool", "float32", "uint8"]),
    st.integers(0, 4),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(),
)
keys = st.one_of(st.text(), st.integers())
values = st.recursive(
    st.one_of(plain, tensors, arrays),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)


def assert_equal(one: Any, other: Any) -> None:
    """The same values of the same types, to the bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert [type(k) for k in one] == [type(k) for k in other]
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert repr(one) == repr(other)


@settings(deadline=None, max_examples=60)
@given(state=st.dictionaries(keys, values, max_size=4))
def test_what_is_saved_is_loaded(tmp_path_factory, state):
    place = tmp_path_factory.mktemp("state") / "s.safetensors"
    save_state(place, state)
    assert_equal(load_state(place), state)


def test_numbers_keep_every_bit(tmp_path):
    numbers = [0.1, 1e-320, -0.0, 2**60 + 1, 1 / 3, float("inf")]
    save_state(tmp_path / "s", {"numbers": numbers})
    assert repr(load_state(tmp_path / "s")["numbers"]) == repr(numbers)


def test_shared_tensors_stay_shared_and_are_stored_once(tmp_path):
    big = torch.arange(100_000, dtype=torch.float32)
    save_state(tmp_path / "s", {"held": [big, big, big * 2, big], "x": big, 7: {"again": big}})
    state = load_state(tmp_path / "s")
    held = state["held"]
    assert held[0] is held[1] is held[3] is state["x"] is state[7]["again"]
    assert held[2] is not held[0]
    assert torch.equal(held[2], big * 2)
    assert (tmp_path / "s").stat().st_size < 2 * big.nbytes + 4096


def test_parts_of_one_tensor_are_saved_each_on_its_own(tmp_path):
    rows = torch.arange(12.0).reshape(4, 3)
    save_state(tmp_path / "s", {"rows": list(rows), "turned": rows.T})
    state = load_state(tmp_path / "s")
    assert torch.equal(torch.stack(state["rows"]), rows)
    assert torch.equal(state["turned"], rows.T)


def pieces() -> dict:
    """Tensors that lie in memory in every way there is."""
    rows = torch.arange(12.0).reshape(4, 3)
    return {
        "own": torch.arange(5),
        "rows": list(rows),
        "turned": rows.T,
        "part": torch.arange(40.0)[7:19],
        "one of a column": torch.arange(12.0).reshape(4, 3)[:1, 1],
        "spread": torch.ones(1).expand(6),
        "none": torch.arange(3)[3:],
        "array": np.arange(6.0)[::2],
        "empty array": np.zeros(0),
        "trained": torch.nn.Parameter(torch.ones(2)),
    }


def test_only_tensors_that_must_be_are_copied_before_they_are_written():
    state, pool = pieces(), TensorPool()
    pool.encode(state)
    alike = {tensor.data_ptr() for tensor in pool.tensors.values()}
    for name in ("own", "part", "trained"):
        assert state[name].data_ptr() in alike
    assert state["rows"][0].data_ptr() in alike
    assert state["rows"][1].data_ptr() not in alike


def test_the_file_is_the_same_as_if_everything_had_been_copied(tmp_path):
    def copied(value):
        if isinstance(value, torch.Tensor):
            return value.detach().clone(memory_format=torch.contiguous_format)
        return [copied(v) for v in value] if isinstance(value, list) else value.copy()

    save_state(tmp_path / "a", pieces())
    save_state(tmp_path / "b", {name: copied(value) for name, value in pieces().items()})
    heads, contents = [], []
    for name in "ab":
        data = (tmp_path / name).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        heads.append(json.loads(data[8:end]))
        contents.append(data[end:])
    assert heads[0] == heads[1]
    assert contents[0] == contents[1]


def test_a_look_at_a_state_leaves_out_its_tensors(tmp_path):
    save_state(tmp_path / "s", example() | {"slots": [3, 1], 5: {"x": None}})
    assert peek_state(tmp_path / "s") == {
        "progress": {"round": 12, "seconds": 1.25, "held": [None, None]},
        "memory": {3: None, 11: None},
        "since": None,
        "about": {"algorithm": "fedau", "seed": 1234},
        "slots": [3, 1],
        5: {"x": None},
    }
    for place in (tmp_path / "missing", tmp_path / "other"):
        with pytest.raises(DamagedCheckpointError):
            peek_state(place)
        (tmp_path / "other").write_bytes(b"other")


def test_numbers_of_numpy_become_plain_ones(tmp_path):
    save_state(tmp_path / "s", {"n": np.int64(3), "f": np.float64(0.5), np.int64(4): True})
    state = load_state(tmp_path / "s")
    assert state == {"n": 3, "f": 0.5, 4: True}
    assert [type(k) for k in state] == [str, str, int]


def test_tuples_come_back_as_lists(tmp_path):
    save_state(tmp_path / "s", {"t": (1, (2, 3))})
    assert load_state(tmp_path / "s") == {"t": [1, [2, 3]]}


@pytest.mark.parametrize("value", [{1, 2}, Fraction(1, 3), object(), lambda: 0, b"bytes", 1j])
def test_what_cannot_be_saved_is_said(tmp_path, value):
    with pytest.raises(FedpbcError, match=f"cannot hold a {type(value).__name__}: keep tensors"):
        save_state(tmp_path / "s", {"deep": [{"in": value}]})
    assert list(tmp_path.iterdir()) == []


def test_saving_leaves_the_state_alone(tmp_path):
    x, counts = torch.ones(3), np.zeros(2)
    save_state(tmp_path / "s", {"x": x, "counts": counts})
    loaded = load_state(tmp_path / "s")
    loaded["x"] += 1
    loaded["counts"] += 1
    assert x.tolist() == [1, 1, 1]
    assert counts.tolist() == [0, 0]
    assert load_state(tmp_path / "s")["x"].tolist() == [1, 1, 1]


def example() -> dict:
    return {
        "progress": {"round": 12, "seconds": 1.25, "held": [torch.arange(6.0)] * 2},
        "memory": {3: torch.tensor([1.5, -2.0]), 11: torch.zeros(2)},
        "since": np.arange(4),
        "about": {"algorithm": "fedau", "seed": 1234},
    }


def test_a_file_with_any_one_byte_changed_is_damaged_or_the_same(tmp_path):
    place = tmp_path / "s"
    save_state(place, example())
    whole = place.read_bytes()
    unnoticed = []
    for k in range(len(whole)):
        place.write_bytes(whole[:k] + bytes([whole[k] ^ 0x01]) + whole[k + 1 :])
        try:
            found = load_state(place)
        except DamagedCheckpointError:
            continue
        try:
            assert_equal(found, example())
        except AssertionError:
            unnoticed.append(whole[max(0, k - 20) : k + 20])
    assert unnoticed == []


def test_a_file_cut_short_anywhere_is_damaged(tmp_path):
    place = tmp_path / "s"
    save_state(place, example())
    whole = place.read_bytes()
    for length in range(0, len(whole), 7):
        place.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpointError, match="is damaged"):
            load_state(place)


def test_another_safetensors_file_is_no_checkpoint(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DamagedCheckpointError):
        load_state(tmp_path / "other.safetensors")
    with pytest.raises(DamagedCheckpointError):
        load_state(tmp_path / "missing.safetensors")
