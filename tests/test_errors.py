"""The one line of every error that a user can meet."""

from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest
import torch

from fedpbc.errors import DivergedError, FedpbcError, InputError, explained, one_line
from tests.commandline import fedpbc, refused


def error_of(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda: torch.empty(10**15), "not enough memory: 4,000,000,000,000,000 bytes more are"),
        (lambda: np.empty(10**15), "not enough memory: Unable to allocate"),
        (lambda: bytearray(2**62), "not enough memory"),
    ],
)
def test_out_of_memory_is_one_line(monkeypatch, function, line):
    error = error_of(function)
    assert str(explained(error)).startswith(line)
    assert one_line(error).startswith(line)
    monkeypatch.setattr("fedpbc.report.listing.list_choices", function)
    assert refused(fedpbc("list")).startswith(line)


def test_a_device_without_memory_is_one_line():
    error = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to …")
    assert explained(error) == "not enough memory on the device"


def test_other_runtime_errors_are_defects():
    assert explained(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


def test_errors_of_files_name_them():
    full = OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl")
    assert explained(full) == "runs/a/metrics.jsonl: No space left on device"


def test_an_error_of_ours_below_a_plugin_names_our_file_alone():
    """The plugin only called us, and it is our file that could not be read."""
    code = "from pathlib import Path\nfrom fedpbc.storage.files import read_regular_file\n"
    plugin = {"__name__": "fedpbc_plugin_own"}
    exec(compile(code, "own.py", "exec"), plugin)
    ours = error_of(lambda: eval("read_regular_file(Path('/nowhere'))", plugin))
    assert explained(ours) == "/nowhere: No such file or directory"
    its_own = error_of(lambda: eval("open('/nowhere')", plugin))
    assert explained(its_own) == "<string> line 1: /nowhere: No such file or directory"


@pytest.mark.parametrize(
    "error",
    [
        FedpbcError("a\x1b[31m\nb" + 5000 * "x"),
        InputError("a\x1b", "\x1b[31m", "\x1b"),
        DivergedError(3, 4, None, "runs/\x1b[31m"),
    ],
)
def test_every_message_is_one_clean_line(error):
    assert str(error).isprintable()
    assert len(str(error)) <= 1000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("command", [["run", "--out"], ["resume"], ["verify"], ["report"]])
def test_a_link_to_itself_is_one_line(tmp_path, command):
    (tmp_path / "loop").symlink_to("loop")
    line = refused(fedpbc(*command, tmp_path / "loop" / "x"))
    assert "loop" in line
