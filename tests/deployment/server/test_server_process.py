"""How the server's process ends, and what it says."""

from __future__ import annotations

import errno
import logging
import sys

import pytest

from fedpbc.deployment.server import server_process
from fedpbc.deployment.server.server_loop import NotServedError
from fedpbc.errors import InputError


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(errno.ENOSPC, "No space left", "rounds.jsonl"), 1, "rounds.jsonl: No space left"),
        (InputError("settings is a, but started with b"), 2, "settings is a, but started with b"),
        (NotServedError("all were refused"), 2, "all were refused"),
    ],
    ids=["disk", "input", "refusals"],
)
@pytest.mark.parametrize("is_full", [False, True])
def test_its_last_line_says_why(tmp_path, monkeypatch, capfd, error, code, line, is_full):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr(sys, "argv", ["server", str(tmp_path), "--socket", "s", "--insecure"])
    monkeypatch.setattr(server_process, "run_job", fail)
    if is_full:
        # Nothing can be logged there.
        (tmp_path / "server.log").mkdir()
    assert server_process.main() == code
    out, err = capfd.readouterr()
    assert err == ""
    (said,) = out.splitlines()
    assert said.endswith(f" fedpbc: {line}")
    if not is_full:
        assert (tmp_path / "server.log").read_text() == out
