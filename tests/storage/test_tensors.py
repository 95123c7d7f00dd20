from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from fedpbc import FedpbcError
from fedpbc.storage.safetensors_file import CHUNK, Rows, write_safetensors
from fedpbc.storage.tensors import (
    DamagedCheckpointError,
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


def test_large_tensors_are_not_copied_before_they_are_written():
    large = [torch.arange(CHUNK), torch.arange(2 * CHUNK)[CHUNK:]]
    chunks = Rows(large).chunks()
    assert [np.frombuffer(chunk).ctypes.data for chunk in chunks] == [t.data_ptr() for t in large]


def test_small_tensors_are_put_together_piece_by_piece():
    small = [torch.full((100,), float(k)) for k in range(5000)]
    sizes = [len(chunk) for chunk in Rows(small).chunks()]
    assert sum(sizes) == 5000 * 400
    assert max(sizes) <= CHUNK


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


def many(count: int) -> dict:
    """A state of as many distinct client models, some of them shared, as a run's has it."""
    random = torch.Generator().manual_seed(3)
    held = [torch.randn(10, generator=random) for _ in range(count)]
    memory = {k: torch.randn(4, 2, generator=random).T for k in range(0, count, 3)}
    return {
        "held": held,
        "by client": dict(zip(range(count - 1, -1, -1), held, strict=True)),
        "memory": memory,
        "some": [*held[:100], *memory.values(), torch.zeros(0), None],
        "reported": {"slots": list(range(7, count + 7)), "sums": [2**62 - k for k in range(count)]},
        "losses": [k / 7 for k in range(count)] + [float("inf"), -0.0],
        "large": [2**70 + k for k in range(100)],
        "mixed": [1, 2.0, True] * 50,
        "names": {f"client {k}": k for k in range(200)},
        "truths": [True] * 200,
        "scalars": [torch.tensor(float(k)) for k in range(200)],
        "nothing": [torch.zeros(0, 3) for _ in range(200)],
        "arrays": {k: np.arange(k % 3) for k in range(200)},
    }


def test_many_tensors_make_a_small_header_and_come_back_to_the_bit(tmp_path):
    state = many(20_000)
    save_state(tmp_path / "s", state)
    with (tmp_path / "s").open("rb") as file:
        assert int.from_bytes(file.read(8), "little") < 500_000
    loaded = load_state(tmp_path / "s")
    assert_equal(loaded, state)
    assert all(loaded["by client"][19_999 - k] is held for k, held in enumerate(loaded["held"]))
    assert all(loaded["some"][k] is loaded["held"][k] for k in range(100))
    # Each has memory of its own: a view would keep all others in memory.
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in loaded["held"][:100])
    # The library reads it as well.
    with safe_open(tmp_path / "s", framework="pt") as library:
        assert set(library.metadata()) == {"checksum", "format", "state"}
        assert [20_000, 10] in [list(library.get_tensor(name).shape) for name in library.keys()]  # noqa: SIM118


def test_the_same_state_makes_the_same_bytes(tmp_path):
    for name in "ab":
        save_state(tmp_path / name, many(200))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_look_at_a_large_state_reads_its_numbers(tmp_path):
    state = many(300)
    save_state(tmp_path / "s", state)
    peeked = peek_state(tmp_path / "s")
    assert peeked["reported"] == state["reported"]
    assert peeked["by client"] == dict.fromkeys(range(299, -1, -1))
    assert peeked["held"] == [None] * 300


def test_files_of_the_first_format_are_read(tmp_path):
    place = Path(__file__).with_name("first_format.safetensors")
    shared = torch.tensor([1.5, -2.0, 0.25])
    state = load_state(place)
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    held = [shared, torch.arange(3.0), shared]
    server = {"round": 12, "held": held, "empty": torch.zeros(0, 3), "half": half}
    assert_equal(
        state,
        {
            "server": server,
            "memory": {3: shared, 11: torch.zeros(2, dtype=torch.int64)},
            "since": np.arange(4),
            "about": {"algorithm": "fedau", "seed": 2**70, "loss": float("inf")},
        },
    )
    assert state["server"]["held"][0] is state["server"]["held"][2] is state["memory"][3]
    assert peek_state(place)["server"] == {"round": 12, "held": [None] * 3, "empty": None} | {
        "half": None
    }
    whole = place.read_bytes()
    for k in range(0, len(whole), 5):
        (tmp_path / "s").write_bytes(whole[:k] + bytes([whole[k] ^ 0x01]) + whole[k + 1 :])
        try:
            assert_equal(load_state(tmp_path / "s"), state)
        except DamagedCheckpointError:
            continue


HOSTILE = [
    '{"tensors": [0, [0, 0]]}',
    '{"tensors": [7, [0, 0]]}',
    '{"tensors": 3}',
    '{"tensor": [0, 9]}',
    '{"tensor": "7"}',
    '{"tensor": {}}',
    '{"numbers": [0, 1000000000000000000000000000000]}',
    '{"numbers": null}',
    '{"zip": [[1], {"list": [1, 2]}]}',
    '{"zip": 4}',
    '{"map": [[{"list": []}, 1]]}',
    '{"map": 1}',
    '{"list": 5}',
    '{"list": [], "map": []}',
    "{}",
    '{"list": [' * 900 + "]}" * 900,
    "[" * 100_000,
    "{",
]


@pytest.mark.parametrize("state", HOSTILE, ids=range(len(HOSTILE)))
def test_a_header_that_makes_no_sense_is_damage(tmp_path, state):
    """Of a file that somebody wrote on purpose: its checksum fits."""
    entries = {"0": Rows([torch.arange(3.0)] * 2)}
    metadata = {"format": "2", "state": state}
    write_safetensors(tmp_path / "s", entries, metadata, checksum=True)
    with pytest.raises(DamagedCheckpointError, match="is damaged") as damage:
        load_state(tmp_path / "s")
    assert len(str(damage.value).splitlines()) == 1
    with suppress(DamagedCheckpointError):
        peek_state(tmp_path / "s")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"[" * 100_000,
        b'{"__metadata__":{"state":1}}',
        b'{"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[-1,0],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"X","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":3}',
        b'{"__metadata__":{"checksum":"00000000","format":"2","state":"1"},'
        b'"0":{"dtype":"F32","shape":[1000000000000,0],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"checksum":"00000000","format":"9","state":"1"}}',
        b"{" + b" " * 100,
    ],
)
def test_a_file_that_lies_about_its_tensors_is_damaged(tmp_path, header):
    (tmp_path / "s").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedCheckpointError, match="is damaged") as damage:
        load_state(tmp_path / "s")
    assert len(str(damage.value).splitlines()) == 1
    with suppress(DamagedCheckpointError):
        peek_state(tmp_path / "s")


@pytest.mark.parametrize("read", [load_state, peek_state])
def test_only_regular_files_are_read(tmp_path, read):
    save_state(tmp_path / "s", {"a": 1})
    (tmp_path / "link").symlink_to(tmp_path / "s")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "missing"):
        with pytest.raises(DamagedCheckpointError, match="is damaged: "):
            read(tmp_path / name)


def test_tensors_of_kinds_that_cannot_be_saved_are_said(tmp_path):
    circle: list[Any] = []
    circle.append(circle)
    for value in (
        torch.zeros(2, dtype=torch.complex128),
        torch.eye(2).to_sparse(),
        np.array(["text"]),
        np.array([1.0], dtype=">f8"),
        circle,
        10**5000,
    ):
        with pytest.raises(FedpbcError, match="a checkpoint cannot hold"):
            save_state(tmp_path / "s", {"value": value})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path, monkeypatch):
    save_state(tmp_path / "s", {"a": 1})

    def full(_: Path) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Rows, "chunks", full)
    with pytest.raises(FedpbcError, match=r"s cannot be written: No space left on device$"):
        save_state(tmp_path / "s", {"a": torch.ones(2)})
    assert load_state(tmp_path / "s") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


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
