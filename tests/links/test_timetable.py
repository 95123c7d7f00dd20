from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpbc.errors import InputError
from fedpbc.links import LinkScheme, Row, Setting, Timetable, from_table
from fedpbc.links.stored_rows import RowWriter, SparseRows
from tests.links.drawing import dense, timetable

TABLES = hnp.arrays(bool, st.tuples(st.integers(1, 30), st.integers(1, 30)))


@given(TABLES)
def test_packing_keeps_every_link(table: np.ndarray) -> None:
    packed = from_table(table)
    assert (packed.rounds, packed.clients) == table.shape
    for t, row in enumerate(table):
        assert packed.up(t).dtype == np.bool_
        assert (packed.up(t) == row).all()
        assert packed.active(t).dtype == np.int64
        assert packed.active(t).tolist() == [i for i, up in enumerate(row) if up]
    assert packed.shares() == pytest.approx(table.mean(axis=0))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 400),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.004, 0.05, 0.5, 1.0]),
    st.data(),
)
@settings(deadline=None)
def test_next_contact_agrees_with_a_scan(
    seed: int, rounds: int, clients: int, density: float, data: st.DataObject
) -> None:
    table = np.random.default_rng(seed).random((rounds, clients)) < density
    client = data.draw(st.integers(0, clients - 1))
    after = data.draw(st.integers(-1, rounds))
    scan = (t for t in range(after + 1, rounds) if table[t, client])
    assert from_table(table).next_contact(client, after) == next(scan, None)


def test_next_contact_in_each_client_of_a_byte_and_block() -> None:
    # One contact a client, on both sides of where blocks of any power of two end.
    rounds = [0, 1, 31, 32, 33, 63, 64, 95, 96, 97, 223, 224, 225, 299]
    table = np.zeros((300, len(rounds)), dtype=bool)
    table[rounds, range(len(rounds))] = True
    packed = from_table(table)
    for client, t in enumerate(rounds):
        assert packed.next_contact(client, -1) == t
        assert packed.next_contact(client, t - 1) == t
        assert packed.next_contact(client, t) is None


def test_probabilities_start_anywhere() -> None:
    for name in ("bernoulli_varying", "markov_varying", "cyclic_reset", "staircase", "group"):
        table = timetable(name, [0.2, 0.9], 50)
        probabilities = list(table.probabilities())
        assert len(probabilities) == 50
        assert [p.tolist() for p in table.probabilities(20)] == [
            p.tolist() for p in probabilities[20:]
        ]
        assert list(table.probabilities(50)) == []


def test_a_timetable_can_be_pickled() -> None:
    table = timetable("markov_varying", [0.2, 0.9], 50)
    copy = pickle.loads(pickle.dumps(table))
    assert (dense(copy) == dense(table)).all()
    assert [p.tolist() for p in copy.probabilities()] == [p.tolist() for p in table.probabilities()]


def test_a_link_takes_one_bit() -> None:
    table = Timetable.draw("always", Setting(1, clients=100_000, rounds=40))
    # 40 x 100,000 / 8 = 500,000 bytes, and little else.
    assert len(pickle.dumps(table)) < 502_000


def scheme(rows: Callable[..., Iterator[Any]]) -> LinkScheme:
    return LinkScheme("mine", rows, "", {})


UP = np.ones(3, dtype=bool)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([UP, UP], "links mine yields 2 rows, but should yield 4, one per round"),
        ([], "links mine yields 0 rows"),
        ([UP, UP[:2]], "links mine: row 1 is a bool array of shape (2,), but should be a bool ar"),
        ([np.ones(3)], "links mine: row 0 is a float64 array of shape (3,), but should be a bool"),
        ([np.ones((1, 3), dtype=bool)], "shape (1, 3)"),
        ([[True, True, True]], "links mine: row 0 is a list"),
        ([None], "links mine: row 0 is a NoneType"),
        ([(UP, np.ones(2))], "links mine: p of round 0 is a float64 array of shape (2,)"),
        ([(UP, 0.5)], "links mine: p of round 0 is a float"),
        ([(UP, UP)], "p of round 0 is a bool array of shape (3,), but should be a float64 array"),
        ([(UP, np.full(3, 1.5))], "links mine: p of round 0 must be from 0 to 1"),
        ([(UP, np.array([0, 1, np.nan]))], "must be from 0 to 1"),
        ([UP, (UP, np.ones(3)), UP, UP], "rows with and without probabilities"),
    ],
)
def test_wrong_rows(items: list[object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Timetable.draw(scheme(lambda setting: iter(items)), Setting(1, clients=3, rounds=4))
    assert message in str(caught.value)


def test_no_more_rows_are_requested_than_rounds() -> None:
    def endless(setting: Setting) -> Iterator[Row]:
        for t in range(setting.rounds):
            yield np.arange(setting.clients) == t
        raise AssertionError("one row too many was requested")

    drawn = Timetable.draw(scheme(endless), Setting(1, clients=3, rounds=3))
    assert (dense(drawn) == np.eye(3)).all()


@pytest.mark.parametrize("t", [-1, 2])
def test_rounds_out_of_range(t: int) -> None:
    table = from_table([[1, 0], [0, 1]])
    for method in (table.up, table.active):
        with pytest.raises(InputError, match=f"round is {t}, but should be from 0 to 1"):
            method(t)


@pytest.mark.parametrize("client", [-1, 2])
def test_clients_out_of_range(client: int) -> None:
    with pytest.raises(InputError, match=f"client is {client}, but should be from 0 to 1"):
        from_table([[1, 0], [0, 1]]).next_contact(client, 0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 0], "the table has shape (2,), but should be rounds x clients"),
        (np.zeros((0, 3)), "shape (0, 3)"),
        ([[0, 2]], "the table has values other than 0 and 1"),
        ([[0.0, np.nan]], "values other than 0 and 1"),
    ],
)
def test_wrong_tables(table: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_table(table)
    assert message in str(caught.value)


def test_an_unknown_scheme() -> None:
    with pytest.raises(InputError, match=r"^downlink is 'allways', .* did you mean 'always'\?$"):
        Timetable.draw("allways", Setting(1, 2, 3, option="downlink"))


# Few links up in a large timetable: only those are stored


@given(TABLES)
def test_rows_of_few_links_answer_as_those_of_bits(table: np.ndarray) -> None:
    rounds, clients = table.shape
    active = [np.flatnonzero(row).astype(np.int32) for row in table]
    sparse, packed = Timetable(SparseRows(active, clients), clients), from_table(table)
    assert sparse.rounds == rounds
    assert sparse.fingerprint() == packed.fingerprint()
    assert (sparse.shares() == packed.shares()).all()
    assert (sparse.active_counts() == packed.active_counts()).all()
    assert (sparse.block(rounds - 1, clients + 1) == packed.block(rounds - 1, clients + 1)).all()
    numbers = np.arange(clients)[::-1]
    assert (sparse.columns(numbers) == packed.columns(numbers)).all()
    for t in range(rounds):
        assert (sparse.up(t) == packed.up(t)).all()
        assert sparse.active(t).tolist() == packed.active(t).tolist()
    for client in range(clients):
        for after in range(-1, rounds + 1):
            assert sparse.next_contact(client, after) == packed.next_contact(client, after)


@pytest.mark.parametrize("share", [0.0, 0.003, 0.5])
@pytest.mark.parametrize("large_bytes", [1, 2**26])
def test_rows_are_stored_in_either_way_with_the_same_content(monkeypatch, share, large_bytes):
    monkeypatch.setattr("fedpbc.links.stored_rows.LARGE_BYTES", large_bytes)
    table = np.random.default_rng(3).random((40, 300)) < share
    writer = RowWriter(*table.shape)
    for row in table:
        writer.add(row)
    stored = writer.stored()
    assert isinstance(stored, SparseRows) == (share < 0.1 and large_bytes == 1)
    assert (np.array([stored.up(t) for t in range(40)]) == table).all()
