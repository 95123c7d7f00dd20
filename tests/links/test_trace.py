from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES, Setting, Timetable
from fedpbc.links.trace import trace_notes
from tests.links.drawing import dense

HEADER = "client,online_from_s,online_until_s"
PHONES = Path(__file__).parents[3] / "shared" / "data" / "traces" / "phones.csv"


def draw(path: Path, rounds: int, clients: int, seconds: float = 10.0) -> Timetable:
    options = {"file": str(path), "round_seconds": seconds}
    return Timetable.draw("trace", Setting(1, clients, rounds), options)


def write(path: Path, *lines: str) -> Path:
    path = path / "trace.csv"
    path.write_text("\n".join([HEADER, *lines, ""]))
    return path


def test_a_link_is_sampled_at_the_end_of_a_round(tmp_path: Path) -> None:
    # Rounds end at 10, 20, 30, 40; from is inside an interval, until is not.
    path = write(tmp_path, "a,10,20", "b,11,20.5", "c,0,9", "d,30,50", "a,35,45")
    assert dense(draw(path, 4, 4)).astype(int).tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
        [1, 0, 0, 1],
    ]


def test_rows_can_be_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "a,10,20", "b,20,30")
    rows = list(SCHEMES["trace"].rows(Setting(1, 2, 2), file=str(path), round_seconds=10.0))
    assert [row.tolist() for row in rows] == [[True, False], [False, True]]


def test_devices_are_numbered_as_they_appear(tmp_path: Path) -> None:
    path = write(tmp_path, "z,10,20", "a,20,30", "z,30,40")
    assert dense(draw(path, 3, 2)).astype(int).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_a_device_that_was_never_online_is_one_too(tmp_path: Path) -> None:
    path = write(tmp_path, "a,20,20", "b,0,15", "c,10,10")
    # 20 seconds long by the empty interval; clients 3 to 5 are the devices again.
    up = dense(draw(path, 4, 6)).astype(int)
    assert up[:, :3].tolist() == [[0, 1, 0]] * 4
    assert up[:, 3].sum() == up[:, 5].sum() == 0
    assert up[:, 4].sum() > 0


def test_the_trace_starts_again_at_its_end(tmp_path: Path) -> None:
    # 40 seconds long, so the ends of rounds are at 10, 20, 30, 0, 10, …
    path = write(tmp_path, "a,0,5", "b,10,20", "c,30,40")
    once = [[0, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert dense(draw(path, 12, 3)).astype(int).tolist() == once * 3
    # The length is the whole trace's, also where its last device is not used.
    assert dense(draw(path, 12, 1))[:, 0].tolist() == [bool(row[0]) for row in once * 3]


def test_a_round_may_be_longer_than_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path, "a,0,5", "a,20,30", "b,30,40")
    # 90, 180, 270 and 360 in a trace of 40 seconds: 10, 20, 30, 0.
    assert dense(draw(path, 4, 2, 90.0)).astype(int).tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]


def test_intervals_may_overlap_touch_and_be_unsorted(tmp_path: Path) -> None:
    path = write(tmp_path, "a,50,60", "a,10,30", "a,20,40", "a,40,50", "b,0,80", "b,35,45")
    up = dense(draw(path, 8, 2))
    assert up[:, 0].astype(int).tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert up[:, 1].all()


INTERVALS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.floats(0, 100, allow_subnormal=False),
        st.floats(0.125, 50, allow_subnormal=False),
    ),
    min_size=1,
    max_size=12,
)


@given(INTERVALS, st.sampled_from([0.3, 1.0, 7.7, 33.0, 400.0]))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_agrees_with_a_scan_of_all_intervals(
    tmp_path: Path, intervals: list[tuple[int, float, float]], seconds: float
) -> None:
    path = write(tmp_path, *(f"c{d},{a!r},{a + width!r}" for d, a, width in intervals))
    devices = list(dict.fromkeys(d for d, _, _ in intervals))
    length = max(a + width for _, a, width in intervals)
    up = dense(draw(path, 60, len(devices), seconds))
    for t in range(60):
        now = ((t + 1) * seconds) % length
        for client, device in enumerate(devices):
            online = any(d == device and a <= now < a + width for d, a, width in intervals)
            assert up[t, client] == online


def test_more_clients_than_devices_are_shifted_in_time(tmp_path: Path) -> None:
    # Online for the first half of 100 seconds: each client, over one turn of the trace, is up for
    # one stretch of half the rounds, counted around the circle.
    path, clients = write(tmp_path, "a,0,50", "b,99.5,100"), 4001
    up = dense(draw(path, 100, clients, 1.0))
    halves = up[:, ::2]
    assert set(halves.sum(axis=0).tolist()) <= {50}
    assert ((halves != np.roll(halves, 1, axis=0)).sum(axis=0) == 2).all()
    # The shift is uniform over the trace: at any moment about half of them are up.
    n = halves.shape[1] - 1
    error = math.sqrt(0.25 / n)
    assert (np.abs(halves[:, 1:].mean(axis=1) - 0.5) < 5 * error).all()
    # Where they come up is spread evenly over the four quarters of the trace.
    risen = (halves[:, 1:] & ~np.roll(halves, 1, axis=0)[:, 1:]).argmax(axis=0)
    quarters = np.bincount(risen // 25, minlength=4) / n
    assert (np.abs(quarters - 0.25) < 5 * math.sqrt(0.25 * 0.75 / n)).all()


def test_probabilities_are_shares_of_active_rounds(tmp_path: Path) -> None:
    table = draw(write(tmp_path, "a,10,20", "b,0,40"), 4, 2)
    assert [p.tolist() for p in table.probabilities(2)] == [[0.25, 1.0]] * 2


def test_spaces_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "\ufeffclient, online_from_s, online_until_s\r\n a , 10 , 20\r\n\r\na,30,40\r\n",
        encoding="utf-8",
        newline="",
    )
    assert dense(draw(path, 3, 1))[:, 0].tolist() == [True, False, True]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        draw(path, 3, 2)
    message = str(caught.value)
    assert message.startswith(f"links.file is {str(path)!r}, but should be ")
    assert "\n" not in message
    assert len(message) < 300 + len(str(path))
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a CSV of client, online_from_s, online_until_s: its first line is ''"),
        ("a,10,20\n", "its first line is 'a,10,20'"),
        ("client,from,until\na,10,20\n", "its first line is 'client,from,until'"),
        (HEADER, "it has no intervals"),
        (f"{HEADER}\na,10\n", "on every line: line 2 is 'a,10'"),
        (f"{HEADER}\na,10,20\n\nb,10,20,30\n", "line 4 is 'b,10,20,30'"),
        (f"{HEADER}\na,ten,20\n", "line 2 is 'a,ten,20'"),
        (f"{HEADER}\na,,20\n", "line 2 is 'a,,20'"),
        (f"{HEADER}\n,10,20\n", "line 2 is ',10,20'"),
        (f"{HEADER}\na,20,10\n", "0 <= online_from_s <= online_until_s on every line: line 2"),
        (f"# a comment\n{HEADER}\na,20,1\n", "line 3 is 'a,20,1'"),
        (f"{HEADER}\na,-5,20\n", "line 2 is 'a,-5,20'"),
        (f"{HEADER}\na,nan,20\n", "line 2 is 'a,nan,20'"),
        (f"{HEADER}\na,0,inf\n", "line 2 is 'a,0,inf'"),
        ("x" * 100_000, "its first line is 'xxx"),
        ("x" * 200_000, "it cannot be parsed"),
    ],
)
def test_wrong_trace(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    assert message in refusal(tmp_path / "trace.csv")


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe\x00\x80")
    assert "it cannot be parsed" in refusal(tmp_path / "trace.csv")
    assert "a file that can be read: No such file" in refusal(tmp_path / "none.csv")
    assert "a file that can be read: Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("wrong", [0.0, -600.0, math.inf, math.nan, "ten minutes"])
def test_wrong_round_length(tmp_path: Path, wrong: object) -> None:
    options = {"file": str(write(tmp_path, "a,10,20")), "round_seconds": wrong}
    with pytest.raises(InputError, match=r"^links\.round_seconds is .*, but should be "):
        Timetable.draw("trace", Setting(1, 2, 3), options)


def test_the_log_of_a_fleet_says_how_long_a_round_is(tmp_path: Path) -> None:
    path = write(tmp_path, "a,10,20", "b,20,60")
    options = {"file": str(path)}
    setting = Setting(1, 2, 6)
    assert Timetable.draw("trace", setting, options).shares().tolist() == [0, 0]  # of 600 s
    path.write_text("# round_seconds = 10\n" + path.read_text())
    stated = Timetable.draw("trace", setting, options)
    assert stated.fingerprint() == draw(path, 6, 2).fingerprint()
    assert stated.shares().tolist() == [1 / 6, 4 / 6]
    # What is set takes precedence.
    other = Timetable.draw("trace", setting, {**options, "round_seconds": 20.0})
    assert other.fingerprint() == draw(path, 6, 2, 20.0).fingerprint()
    for wrong in ("0", "-5", "nan", "1e999"):
        path.write_text(path.read_text().replace("seconds = 10", f"seconds = {wrong}"))
        with pytest.raises(InputError, match=r"^links\.round_seconds is "):
            Timetable.draw("trace", setting, options)
        path.write_text(path.read_text().replace(f"seconds = {wrong}", "seconds = 10"))


def test_a_trace_that_is_too_short_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "a,0,95", "b,20,30")
    links = {"file": str(path), "round_seconds": 10.0}
    # The tenth round ends at 100 s: nine are in it.
    assert trace_notes(links, 9) == []
    [note] = trace_notes(links, 12)
    assert note == (
        "the trace ends after 9 of 12 rounds (10 s each): then it starts again from its beginning"
    )


def intervals(up: np.ndarray) -> list[str]:
    """The lines of a trace with these links, rounds x devices, of ten seconds each."""
    return [
        f"d{device},{10 * t + 5},{10 * t + 15}"
        for t, row in enumerate(up)
        for device in np.flatnonzero(row)
    ]


def test_an_end_at_which_everybody_is_up_is_said_to_look_like_an_artefact(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    up = random.random((200, 20)) < 0.27
    up[:, 0] = True
    links = {"file": str(tmp_path / "trace.csv"), "round_seconds": 10.0}
    write(tmp_path, *intervals(up))
    assert trace_notes(links, 200) == []
    closed = up.copy()
    closed[-12:] = True
    write(tmp_path, *intervals(closed))
    [note] = trace_notes(links, 200)
    assert "the last 12 rounds of the trace look like an artefact: up to 100 %" in note
    assert f"before that at most {100 * up[:-12].mean(axis=1).max():.0f} %" in note
    # A run that ends before that does not see it.
    assert trace_notes(links, 150) == []


def test_growth_and_nights_are_no_artefacts(tmp_path: Path) -> None:
    random, t = np.random.default_rng(2), np.arange(200)[:, None]
    links = {"file": str(tmp_path / "trace.csv"), "round_seconds": 10.0}
    growing = random.random((200, 20)) < t / 190
    nights = random.random((200, 20)) < 0.5 - 0.5 * np.cos(2 * np.pi * t / 66)
    few = np.zeros((200, 3), dtype=bool)
    few[[5, 6], [0, 1]] = few[-3:] = True
    for up in (growing, nights, few):
        write(tmp_path, *intervals(up))
        assert "artefact" not in " ".join(trace_notes(links, 200))


@pytest.mark.skipif(not PHONES.exists(), reason="the real trace is not kept in the repository")
def test_the_real_phones_are_up_16_percent_of_the_time() -> None:
    # 297 phones are recorded over 518,100 s. The sum of their intervals is 16.23 % of the phones'
    # total time; 863 rounds of ten minutes go through the trace once, sampling it every 600 s.
    intervals = np.loadtxt(PHONES, delimiter=",", skiprows=1, usecols=(1, 2))
    phones = len(set(np.loadtxt(PHONES, delimiter=",", skiprows=1, usecols=0, dtype=str)))
    length = intervals[:, 1].max()
    share = (intervals[:, 1] - intervals[:, 0]).sum() / (phones * length)
    assert (phones, length) == (297, 518_100)
    assert share == pytest.approx(0.1623, abs=5e-5)
    table = draw(PHONES, int(length // 600), phones, 600.0)
    assert trace_notes({"file": str(PHONES)}, 863) == []
    # The sampling error is 0.0002; an offset of one round would not shift the share by more,
    # so the exact cases above test that, and this one that the whole file is used.
    assert table.shares().mean() == pytest.approx(share, abs=0.001)

    # Shifted copies have that share at any time, not only over six days: a share of
    # m clients, each with its own probability, has at most the error √(s(1−s)/m).
    copies = draw(PHONES, 20, 20_000, 600.0)
    error = math.sqrt(share * (1 - share) / 20_000)
    for t in range(20):
        assert abs(copies.up(t).mean() - share) < 5 * error
    # Unshifted, the phones themselves follow the hours of the day.
    first_hours = dense(draw(PHONES, 144, phones, 600.0)).mean(axis=1)
    assert first_hours.max() - first_hours.min() > 0.1
