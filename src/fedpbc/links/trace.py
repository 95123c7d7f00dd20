"""Links as real devices had them: a recorded trace, replayed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["said_by_fleet", "trace"]

_COLUMNS = ["client", "online_from_s", "online_until_s"]
_COMMENT = re.compile(r"# *round_seconds *= *([0-9.]+(?:e[-+]?[0-9]+)?)")
_DRAWERS = 8  # for each interval of a device


@link_scheme
def trace(
    setting: Setting, *, file: str, round_seconds: Annotated[float, Gt(0)] = 600.0
) -> Iterator[Row]:
    """Replays a recorded trace: up where the device was online at the end of the round.

    ``file`` is a CSV of client, online_from_s, online_until_s; ``round_seconds`` is how long a
    round takes. A device that was never online has an empty interval. Past its end the trace starts
    again. Clients beyond the recorded devices reuse them in turn, each shifted in time by a random
    part of the trace.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "phones.csv")
        ...     _ = path.write_text("client,online_from_s,online_until_s\\na,0,20\\nb,20,30\\n")
        ...     setting = Setting(seed=1, clients=2, rounds=3)
        ...     [up.tolist() for up in trace(setting, file=str(path), round_seconds=10.0)]
        [[True, False], [False, True], [True, False]]
    """
    events = _events(*_read(file, f"{setting.option}.file"))
    device = np.arange(setting.clients, dtype=np.int32) % np.int32(events.devices)
    shift = setting.generator("shift").random(setting.clients) * events.length
    shift[: events.devices] = 0

    # Most links stay as they are for many rounds, so each is looked up only when its next event is
    # due; a little early, so that rounding cannot make it late.
    up = np.zeros(setting.clients, dtype=np.bool_)
    due = np.full(setting.clients, -np.inf)
    for t in range(setting.rounds):
        now = (t + 1) * round_seconds
        late = np.flatnonzero(due <= now)
        place = now % events.length + shift[late]
        place -= events.length * (place >= events.length)  # cheaper than a remainder
        up[late], wait = events.look_up(device[late], place)
        due[late] = now + wait - 1e-9 * events.length
        yield up.copy()


def said_by_fleet(file: str) -> tuple[float, int] | None:
    """What a fleet's log says of itself: how long a round was, and how many clients there are.

    None for any other trace: only a fleet's log has a comment with ``round_seconds`` in front.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "links.csv")
        >>> lines = "# round_seconds = 60.0", "client,online_from_s,online_until_s", "0,30,90"
        >>> _ = path.write_text("\\n".join(lines))
        >>> said_by_fleet(str(path))
        (60.0, 1)
    """
    try:
        with Path(file).open(encoding="utf-8-sig") as lines:
            found = _COMMENT.fullmatch(next(lines, "").strip())
    except (OSError, UnicodeDecodeError):
        # What is wrong with it is said where it is read.
        return None
    if found is None:
        return None
    device, _, _ = _read(file, "--trace")
    return float(found[1]), int(device.max()) + 1


class _Events(NamedTuple):
    """Where devices come online or go offline, sorted by device and time."""

    devices: int
    length: float
    times: NDArray[np.float64]
    online: NDArray[np.bool_]  # before event k, and after the last
    drawers: int  # equal parts of the trace's length
    first: NDArray[np.int32]  # each device's first event in each of its drawers, and past the last

    def look_up(
        self, device: NDArray[np.int32], place: NDArray[np.float64]
    ) -> tuple[Row, NDArray[np.float64]]:
        """Whether each device is online at its place in the trace, and how long that stays so."""
        # Most drawers hold an event or none: one step for most, not a search in all events.
        drawer = _drawer(device, place, self.drawers, self.length)
        low, high = self.first[drawer], self.first[drawer + 1]
        rest = np.flatnonzero(low < high)
        while len(rest):
            a, b = low[rest], high[rest]
            middle = (a + b) // 2
            over = self.times[middle] <= place[rest]
            low[rest], high[rest] = np.where(over, middle + 1, a), np.where(over, b, middle)
            rest = rest[low[rest] < high[rest]]
        return self.online[low], self.times[low] - place


def _drawer(
    device: NDArray[np.int32], times: NDArray[np.float64], drawers: int, length: float
) -> NDArray[np.int32]:
    # Whatever the rounding, an earlier time is never in a later drawer; the end has its own.
    return device * np.int32(drawers + 1) + (times * (drawers / length)).astype(np.int32)


def _events(
    device: NDArray[np.int32], start: NDArray[np.float64], until: NDArray[np.float64]
) -> _Events:
    devices, length = int(device.max()) + 1, float(until.max())
    # A device's last event is the trace's end, so that its next event is never another's.
    owners = np.concatenate([device, device, np.arange(devices, dtype=np.int32)])
    times = np.concatenate([start, until, np.full(devices, length)])
    changes = np.repeat([1, -1, 0], [len(start), len(until), devices])
    order = np.lexsort((times, owners))
    # Counting open intervals, not just turning on and off, lets intervals overlap.
    depth = np.concatenate([[0], np.cumsum(changes[order])])
    drawers = 1 + _DRAWERS * len(device) // devices
    held = np.bincount(_drawer(owners, times, drawers, length), minlength=devices * (drawers + 1))
    first = np.concatenate([[0], np.cumsum(held)]).astype(np.int32)
    return _Events(devices, length, times[order], depth > 0, drawers, first)


def _read(
    file: str, option: str
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Device numbers in order of first appearance, and the interval on each line."""
    right = f"a CSV of {', '.join(_COLUMNS)}"
    numbers: dict[str, int] = {}
    device, start, until = [], [], []
    try:
        with Path(file).open(encoding="utf-8-sig", newline="") as lines:
            # Comments become empty lines, so that the others keep their numbers.
            reader = csv.reader("\n" if line.startswith("#") else line for line in lines)
            header = [name.strip() for name in next(filter(None, reader), [])]
            if header != _COLUMNS:
                raise InputError(option, file, f"{right}: its first line is {_shown(header)}")
            for fields in filter(None, reader):
                try:
                    name, a, b = fields[0].strip(), *map(float, fields[1:])
                except ValueError:
                    name, a, b = "", 0, 0
                if not (name and 0 <= a <= b < np.inf):
                    where = f"line {reader.line_num} is {_shown(fields)}"
                    more = f"0 <= online_from_s <= online_until_s on every line: {where}"
                    raise InputError(option, file, f"{right}, {more}")
                device.append(numbers.setdefault(name, len(numbers)))
                start.append(a)
                until.append(b)
    except OSError as error:
        raise InputError(option, file, f"a file that can be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(option, file, f"{right}: it cannot be read as one") from None
    if not any(until):
        raise InputError(option, file, f"{right}: it has no intervals")
    return np.array(device, dtype=np.int32), np.array(start), np.array(until)


def _shown(fields: list[str]) -> str:
    # A damaged file can be one endless line.
    return repr(",".join(fields)[:60])
