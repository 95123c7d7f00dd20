from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpbc.errors import InputError
from fedpbc.links import Setting, Timetable
from tests.links.drawing import dense

TABLE = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])


def draw(path: Path, rounds: int = 4, clients: int = 3) -> Timetable:
    return Timetable.draw("table", Setting(1, clients, rounds), {"file": str(path)})


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32, np.float64])
def test_arrays_of_any_kind(tmp_path: Path, kind: type) -> None:
    np.save(tmp_path / "links.npy", TABLE.astype(kind))
    assert (dense(draw(tmp_path / "links.npy")) == TABLE).all()


def test_an_array_stored_by_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "links.npy", np.asfortranarray(TABLE))
    assert (dense(draw(tmp_path / "links.npy")) == TABLE).all()


@pytest.mark.parametrize(
    "text",
    [
        "1,0,0\n0,1,1\n1,1,0\n0,0,0\n",
        "1,0,0\r\n0,1,1\r\n1,1,0\r\n0,0,0",
        "\ufeff1,0,0\n\n0,1,1\n1,1,0\n0,0,0\n\n",
        "1, 0, 0\n0, 1, 1\n1, 1, 0\n0, 0, 0\n",
        "1.0,0.0,0.0\n0,1,1\n1e0,1,0\n0,0,0.000e+00\n",
        "True,False,False\nfalse,true,true\n1,1,0\n0,0,False\n",
    ],
)
def test_csv_variants(tmp_path: Path, text: str) -> None:
    (tmp_path / "links.csv").write_text(text, encoding="utf-8", newline="")
    assert (dense(draw(tmp_path / "links.csv")) == TABLE).all()


def test_one_client_in_a_csv(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("1\n0\n1\n")
    assert dense(draw(tmp_path / "links.csv", 3, 1))[:, 0].tolist() == [True, False, True]


@given(hnp.arrays(bool, st.tuples(st.integers(1, 20), st.integers(1, 20))))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_round_trip(tmp_path: Path, table: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", table)
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", fmt="%d")
    np.savetxt(tmp_path / "b.csv", table, delimiter=",")
    for name in ("a.npy", "a.csv", "b.csv"):
        assert (dense(draw(tmp_path / name, *table.shape)) == table).all()


def test_rows_beyond_the_run_are_not_used(tmp_path: Path) -> None:
    for name in ("links.npy", "links.csv"):
        if name.endswith("npy"):
            np.save(tmp_path / name, TABLE)
        else:
            # Not even parsed.
            (tmp_path / name).write_text("1,0,0\n0,1,1\nnonsense\n")
        assert (dense(draw(tmp_path / name, rounds=2)) == TABLE[:2]).all()


def test_probabilities_are_shares_of_active_rounds(tmp_path: Path) -> None:
    np.save(tmp_path / "links.npy", TABLE)
    table = draw(tmp_path / "links.npy")
    assert [p.tolist() for p in table.probabilities()] == [[0.5, 0.5, 0.25]] * 4
    assert [p.tolist() for p in table.probabilities(3)] == [[0.5, 0.5, 0.25]]
    # Of the rounds that were run, not of the file's.
    assert draw(tmp_path / "links.npy", rounds=1).shares().tolist() == [1.0, 0.0, 0.0]


def refusal(path: Path, rounds: int = 4, clients: int = 3) -> str:
    with pytest.raises(InputError) as caught:
        draw(path, rounds, clients)
    message = str(caught.value)
    assert message.startswith(f"links.file is {str(path)!r}, but should be ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0,0\n0,1\n", "4 rows of 3 0s or 1s: row 1 has 2 columns"),
        ("1,0,0\n0,1,1\n", "4 rows of 3 0s or 1s: it has 2 rows"),
        ("", "it has 0 rows"),
        ("1,0,0\n0,2,1\n", "row 1 holds another value"),
        ("1,0,0\n0,0.5,1\n", "row 1 holds another value"),
        ("1,0,0\n0,nan,1\n", "row 1 holds another value"),
        ("a,b,c\n1,0,0\n", "row 0 holds another value"),
        ("client a,client b,client c\n1,0,0\n", "row 0 is damaged"),
        ("1,0,0\n1,,0\n", "row 1"),
        ("1;0;0\n", "row 0"),
        ("1,0,0,\n", "row 0 is damaged"),
        ("1,0,\n", "row 0 is damaged"),
    ],
)
def test_wrong_csv(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "links.csv").write_text(text)
    assert message in refusal(tmp_path / "links.csv")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (TABLE[:, :2], "row 0 has 2 columns"),
        (TABLE[:3], "it has 3 rows"),
        (TABLE * 2, "row 0 holds another value"),
        (np.full((4, 3), np.nan), "row 0 holds another value"),
        (TABLE[0], "it holds "),
        (TABLE[None], "it holds "),
        (np.array(1), "it holds "),
        (TABLE.astype(str), "it holds "),
        (TABLE.astype(object), "row 0 is damaged"),
        (np.zeros((0, 3)), "4 rows of 3"),
    ],
)
def test_wrong_array(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "links.npy", array)
    assert message in refusal(tmp_path / "links.npy")


def test_damaged_files(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", TABLE)
    whole = (tmp_path / "whole.npy").read_bytes()
    for content in (b"", b"not an array", whole[:20], whole[:-1]):
        (tmp_path / "links.npy").write_bytes(content)
        assert "damaged" in refusal(tmp_path / "links.npy")
    (tmp_path / "links.csv").write_bytes(b"\xff\xfe\x00")
    assert "damaged" in refusal(tmp_path / "links.csv")


def test_missing_files(tmp_path: Path) -> None:
    for name in ("links.npy", "links.csv"):
        assert "a file that can be read: No such file" in refusal(tmp_path / name)
    assert "a file that can be read: Is a directory" in refusal(tmp_path)


def test_a_file_must_be_given() -> None:
    with pytest.raises(InputError, match=r"^links\.file is missing"):
        Timetable.draw("table", Setting(1, 3, 4))


def test_the_section_is_named(tmp_path: Path) -> None:
    setting = Setting(1, 3, 4, stream="downlink", option="downlink")
    with pytest.raises(InputError, match=r"^downlink\.file is "):
        Timetable.draw("table", setting, {"file": str(tmp_path / "none.csv")})
