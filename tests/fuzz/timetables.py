"""Arrays in files: timetables, targets and probabilities, as .npy and as CSV."""

from __future__ import annotations

import io
import pickle
from random import Random

import numpy as np
from numpy.typing import NDArray

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import TARGETS, TIMETABLE, write_inputs

P = np.array([0.5, 0.2, 0.9])
RIGHT = {"timetable": TIMETABLE, "targets": TARGETS, "p": P}
CELLS = (
    *("0", "1", "2", "0.5", "-1", "nan", "inf", "1e308", "1e400", "", "x", "true", "٣", "1 "),
    *("0x1", "9" * 5000, '"1"', "1.0", "+1", "1e0", "\x1b[31m", "1\0"),
)


class Harm:
    """What a pickle could do to whoever reads it."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        import os

        return os.mkdir, ("executed",)


def make(random: Random, place: Place) -> Case:
    """A run or the theory with one of the files wrong."""
    write_inputs(place.work)
    what = random.choice(("timetable", "targets", "p"))
    extension = random.choice((".npy", ".npy", ".csv"))
    sound = random.random() < 0.1
    array = RIGHT[what]
    if not sound and random.random() < 0.5:
        array = another(random, array)
    content = as_npy(random, array, sound) if extension == ".npy" else as_csv(random, array, sound)
    if not sound and random.random() < 0.4:
        content = hostile.mutate(random, content)
    if not sound and random.random() < 0.03:
        extension = random.choice((".NPY", ".txt", "", ".npz", ".csv.gz"))
    file = f"file{extension}"
    place.write(file, content)
    words = commands(random, what, file)
    expect = "success" if sound and words[0] == "run" else "any"
    return Case([Step(tuple(words), expect=expect, writes=("out",))])


def commands(random: Random, what: str, file: str) -> list[str]:
    """A command that reads the file."""
    run = random.random() < 0.6
    if what == "timetable":
        table = ["--links", "table", "--set", f"links.file={file}"]
        return (
            ["run", "quadratic.toml", *table, "--out", "out"]
            if run
            else ["theory", "--table", file]
        )
    if what == "targets":
        if run:
            return ["run", "quadratic.toml", "--set", f"task.targets={file}", "--out", "out"]
        return ["theory", "--p", "0.5,0.2,0.9", "--targets", file]
    if run:
        return ["run", "quadratic.toml", "--set", f"links.p={file}", "--out", "out"]
    return ["theory", "--p", file]


def another(random: Random, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array of another type, shape or content."""
    pick = random.randrange(9)
    if pick == 0:
        kinds = ("?", "b", "u8", "f2", "f4", "c8", "U3", "S1", "M8[s]", "m8[s]", ">f8", "O")
        try:
            return array.astype(random.choice(kinds))
        except (TypeError, ValueError):
            return array
    if pick == 1:
        return array[:0]
    if pick == 2:
        return array.reshape(-1)
    if pick == 3:
        return array[None]
    if pick == 4:
        return np.asfortranarray(array)
    if pick == 5:
        return np.zeros((), dtype=float)
    if pick == 6:
        return np.repeat(array, 2, axis=0)
    if pick == 7 and array.ndim == 2:
        return array[:, :1]
    changed = array.astype(float)
    changed.flat[random.randrange(changed.size)] = random.choice(hostile.FLOATS)
    return changed


def as_npy(random: Random, array: NDArray[np.generic], sound: bool) -> bytes:
    """A .npy file; sometimes with a header that is not true, or with a pickle in it."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    content = file.getvalue()
    if sound or random.random() < 0.6:
        return content
    pick = random.randrange(4)
    if pick == 0:
        return content[:128] + pickle.dumps(Harm())
    if pick == 1:
        return pickle.dumps(Harm())
    header = random.choice(
        (
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3), }",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (0, 3), }",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775808, 3), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 70 + "), }",
            "{'descr': [('a', '<f8'), ('b', '<f8')], 'fortran_order': False, 'shape': (3,), }",
            "{'descr': 'V8', 'fortran_order': False, 'shape': (3, 2), }",
            "__import__('os').mkdir('executed')",
            "{'descr': '<f8'",
            "(" * 1000,
        )
    )
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content[128:]


def as_csv(random: Random, array: NDArray[np.generic], sound: bool) -> bytes:
    """Numbers with commas."""
    rows = [[str(cell) for cell in np.atleast_1d(row)] for row in np.atleast_1d(array)]
    if not sound and rows:
        for _ in range(random.choice((1, 1, 3))):
            row = random.choice(rows)
            if row:
                row[random.randrange(len(row))] = random.choice(CELLS)
        if random.random() < 0.2:
            rows.append(random.choice(([], ["1"], ["0"] * 40, ["# comment"])))
    end = "\n" if sound else random.choice(("\n", "\n", "\r\n", "\r", ""))
    return "".join(",".join(row) + end for row in rows).encode()
