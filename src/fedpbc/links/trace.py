"""Links replayed from a recorded trace.

Client i replays device i: its link is up in round t if the device was online at the end of the
round, at (t+1)·``round_seconds``. Past its end the trace starts again. Clients beyond the recorded
devices reuse them in turn, each shifted in time by a random part of the trace.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from fedpbc.choices import InputFile
from fedpbc.errors import InputError
from fedpbc.limits import MAX_ROUNDS, MAX_SECONDS
from fedpbc.links.scheme import Row, Setting, link_scheme
from fedpbc.options import check_type
from fedpbc.storage.files import expanded, open_regular_file

__all__ = [
    "fleet_log_settings",
    "recorded_rounds",
    "round_length",
    "trace",
    "trace_extent",
    "trace_notes",
]

_COLUMNS = ["client", "online_from_s", "online_until_s"]
_ROUND_SECONDS = re.compile(r"# *round_seconds *= *(.*)")
_SHORTEST = 1e-6
"""Seconds: of a shorter trace, the parts would be too small for numbers."""
_BUCKETS_PER_INTERVAL = 8
_Seconds = Annotated[float, Gt(0), Le(MAX_SECONDS)]
_ROUND_LENGTH = 600.0
"""Seconds, where neither an option nor the file says how long a round is."""
_FEWEST_DEVICES = 5
_EVERYBODY, _RISE = 0.9, 0.2
"""Shares of devices: from how many on they count as all, and how many more than before."""


@link_scheme
def trace(
    setting: Setting,
    *,
    file: InputFile,
    round_seconds: _Seconds | None = None,
) -> Iterator[Row]:
    """Replay a recorded trace: up if the device was online at the end of the round.

    ``file`` is a CSV of client, online_from_s, online_until_s; ``round_seconds`` is the length of a
    round: by default that of the file's first line, or 600. A device that was never online has an
    empty interval.
    """
    if round_seconds is None:
        round_seconds = round_length({"file": file}, setting.option)
    events = _events(*_read(file, f"{setting.option}.file"))
    device = np.arange(setting.clients, dtype=np.int32) % np.int32(events.devices)
    shift = setting.generator("shift").random(setting.clients) * events.length
    shift[: events.devices] = 0

    # Most links do not change for many rounds, so each is looked up only when its next event is
    # due; a little early, so that rounding cannot make it late.
    up = np.zeros(setting.clients, dtype=np.bool_)
    next_event = np.full(setting.clients, -np.inf)
    for t in range(setting.rounds):
        now = (t + 1) * round_seconds
        due = np.flatnonzero(next_event <= now)
        time = now % events.length + shift[due]
        time -= events.length * (time >= events.length)  # cheaper than a remainder
        up[due], wait = events.look_up(device[due], time)
        next_event[due] = now + wait - 1e-9 * events.length
        yield up.copy()


def round_length(links: Mapping[str, Any], option: str = "links") -> float:
    """The length of a round of a trace, in seconds: as set, as its file says, or 600.

    ``links`` are the options of the scheme.
    """
    seconds = links.get("round_seconds")
    if seconds is None:
        seconds = _stated_length(links["file"], f"{option}.file")
    if seconds is None:
        return _ROUND_LENGTH
    return float(check_type(f"{option}.round_seconds", seconds, _Seconds))


def _stated_length(file: str, option: str) -> float | None:
    """What a fleet's log says of its rounds; no other trace begins with such a comment."""
    try:
        with open_regular_file(expanded(file, option)) as lines:
            comment = _ROUND_SECONDS.fullmatch(lines.readline(200).decode("utf-8-sig").strip())
    except (OSError, UnicodeDecodeError):
        # The error is reported when the whole file is read.
        return None
    if comment is None:
        return None
    try:
        return float(comment[1])
    except ValueError:
        expected = "a log whose first line is '# round_seconds = …', with a number"
        raise InputError(option, file, f"{expected}; it is {_excerpt([comment[0]])}") from None


def fleet_log_settings(file: str) -> tuple[float, int] | None:
    """The length of a round in seconds and the number of clients, from the log of a fleet.

    None for any other trace.
    """
    seconds = _stated_length(file, "--trace")
    if seconds is None:
        return None
    device, _, _ = _read(file, "--trace")
    return seconds, int(device.max()) + 1


def trace_extent(file: str, option: str = "--trace") -> tuple[int, float]:
    """How many devices a trace has, and when it ends, in seconds."""
    device, _, until = _read(file, option)
    return int(device.max()) + 1, float(until.max())


def recorded_rounds(file: str, round_seconds: float, option: str = "--trace") -> int:
    """How many rounds of this length a trace has.

    The end of a round decides who is up in it, and the end of the trace is its beginning again: a
    round that ends there is none of the trace's. But a log as
    :func:`fedpbc.links.link_log.link_log` writes it has the links of its last round at the
    beginning, for that very reason.
    """
    return _recorded_rounds(round_seconds, *_read(file, option))


def _recorded_rounds(
    round_seconds: float,
    device: NDArray[np.int32],
    start: NDArray[np.float64],
    until: NDArray[np.float64],
) -> int:
    length = float(until.max())
    # So ends every device of such a log, and only of such a one.
    marked = device[(start == until) & (until == length)]
    rounds = min(length / round_seconds, MAX_ROUNDS)
    if len(set(marked.tolist())) == device.max() + 1 and abs(rounds - round(rounds)) < 1e-6:
        return max(1, round(rounds))
    return max(1, math.ceil(rounds - 1e-9) - 1)


def trace_notes(links: Mapping[str, Any], rounds: int, option: str = "links") -> list[str]:
    """What to know of a trace that ``rounds`` rounds are taken from: that it is too short for
    them, and that its end looks like an artefact. One line each.

    ``links`` are the options of the scheme.
    """
    name = "the trace" if option == "links" else f"the trace of the {option}s"
    seconds = round_length(links, option)
    intervals = _read(links["file"], f"{option}.file")
    recorded, notes = _recorded_rounds(seconds, *intervals), []
    if rounds > recorded:
        notes.append(
            f"{name} ends after {recorded:,} of {rounds:,} rounds ({seconds:g} s each): then it "
            "starts again from its beginning"
        )
    events = _events(*intervals)
    ends = np.arange(1.0, recorded + 1) * seconds % events.length
    share = events.online_at(ends) / events.devices
    # A real rise, as of a growing fleet or at night, begins earlier, or has been there before.
    quarter = recorded // 4
    if events.devices >= _FEWEST_DEVICES and quarter:
        before = float(share[:-quarter].max())
        calm = np.flatnonzero(share <= before)[-1] + 1
        risen = share[-1] >= max(_EVERYBODY, before + _RISE) and calm > recorded - quarter
        if risen and rounds > calm:
            notes.append(
                f"the last {recorded - calm:,} rounds of {name} look like an artefact: up to "
                f"{100 * share[calm:].max():.0f} % of the devices are up, before that at most "
                f"{100 * before:.0f} %; if intervals without an end were closed at the end of the "
                "log, leave them out"
            )
    return notes


class _Events(NamedTuple):
    """The times at which devices come online or go offline, sorted by device and time."""

    devices: int
    length: float
    times: NDArray[np.float64]
    online: NDArray[np.bool_]  # before event k, and after the last
    buckets: int  # per device, equal parts of the trace
    first: NDArray[np.int32]  # the first event in each bucket of each device, and past the last

    def look_up(
        self, device: NDArray[np.int32], time: NDArray[np.float64]
    ) -> tuple[Row, NDArray[np.float64]]:
        """Whether each device is online at its time in the trace, and for how long that holds."""
        # Bisection within a bucket. Most hold at most one event: one step, not a search in all.
        bucket = _bucket(device, time, self.buckets, self.length)
        low, high = self.first[bucket], self.first[bucket + 1]
        open_ = np.flatnonzero(low < high)
        while len(open_):
            start, end = low[open_], high[open_]
            middle = (start + end) // 2
            passed = self.times[middle] <= time[open_]
            low[open_] = np.where(passed, middle + 1, start)
            high[open_] = np.where(passed, end, middle)
            open_ = open_[low[open_] < high[open_]]
        return self.online[low], self.times[low] - time

    def online_at(self, times: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """How many devices are online at each of these times."""
        order = np.argsort(self.times, kind="stable")
        counts = np.concatenate([[0], np.cumsum(np.diff(self.online.astype(np.int64))[order])])
        return counts[np.searchsorted(self.times[order], times, side="right")]


def _bucket(
    device: NDArray[np.int32], times: NDArray[np.float64], buckets: int, length: float
) -> NDArray[np.int32]:
    # Monotone in time whatever the rounding; the end of the trace has its own bucket.
    return device * np.int32(buckets + 1) + (times * (buckets / length)).astype(np.int32)


def _events(
    device: NDArray[np.int32], start: NDArray[np.float64], until: NDArray[np.float64]
) -> _Events:
    devices, length = int(device.max()) + 1, float(until.max())
    # A device's last event is the end of the trace, so the next event is never another device's.
    owners = np.concatenate([device, device, np.arange(devices, dtype=np.int32)])
    times = np.concatenate([start, until, np.full(devices, length)])
    changes = np.repeat([1, -1, 0], [len(start), len(until), devices])
    order = np.lexsort((times, owners))
    # Counting open intervals, rather than toggling, allows intervals to overlap.
    depth = np.concatenate([[0], np.cumsum(changes[order])])
    buckets = 1 + _BUCKETS_PER_INTERVAL * len(device) // devices
    sizes = np.bincount(_bucket(owners, times, buckets, length), minlength=devices * (buckets + 1))
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return _Events(devices, length, times[order], depth > 0, buckets, first)


def _read(
    file: str, option: str
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Device numbers in order of first appearance, and the interval on each line."""
    expected = f"a CSV of {', '.join(_COLUMNS)}"
    numbers: dict[str, int] = {}
    device, start, until = [], [], []
    try:
        with (
            open_regular_file(expanded(file, option)) as content,
            io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as lines,
        ):
            # Comments become empty lines, so that line numbers stay correct.
            reader = csv.reader("\n" if line.startswith("#") else line for line in lines)
            header = [name.strip() for name in next(filter(None, reader), [])]
            if header != _COLUMNS:
                raise InputError(option, file, f"{expected}: its first line is {_excerpt(header)}")
            for fields in filter(None, reader):
                try:
                    name, begin, end = fields[0].strip(), *map(float, fields[1:])
                except ValueError:
                    name, begin, end = "", 0, 0
                if not (name and 0 <= begin <= end <= MAX_SECONDS):
                    rule = "0 <= online_from_s <= online_until_s on every line"
                    if end > MAX_SECONDS:
                        rule = f"times of at most {MAX_SECONDS:g} s"
                    line = f"line {reader.line_num} is {_excerpt(fields)}"
                    raise InputError(option, file, f"{expected}, {rule}: {line}")
                device.append(numbers.setdefault(name, len(numbers)))
                start.append(begin)
                until.append(end)
    except OSError as error:
        raise InputError(option, file, f"a file that can be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(option, file, f"{expected}: it cannot be parsed") from None
    if not any(until):
        raise InputError(option, file, f"{expected}: it has no intervals")
    if max(until) < _SHORTEST:
        raise InputError(option, file, f"{expected}: it ends at {max(until):g} s")
    return np.array(device, dtype=np.int32), np.array(start), np.array(until)


def _excerpt(fields: list[str]) -> str:
    # A damaged file can be one very long line.
    return repr(",".join(fields)[:60])
