from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from fedpbc.deployment.device import trainer_socket as local
from fedpbc.deployment.device.trainer_socket import TrainerSocket, ask
from fedpbc.deployment.protocol.messages import Payload, Vector, write_payload
from fedpbc.errors import FedpbcError, InputError


def echo(parcel):
    if parcel.kind == "bad":
        raise FedpbcError("no such thing")
    if parcel.kind == "worse":
        raise ZeroDivisionError("oh")
    return parcel


def test_a_parcel_goes_there_and_back(tmp_path):
    with TrainerSocket(tmp_path / "s", echo):
        found = ask(tmp_path / "s", Payload({"kind": "x"}, {"v": Vector("float32", b"abcd")}))
        assert found.vectors["v"].data == b"abcd"
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        assert ask(tmp_path / "s", Payload({"kind": "bad"})).header["reason"] == "no such thing"
        assert "oh" in ask(tmp_path / "s", Payload({"kind": "worse"})).header["reason"]
    assert not (tmp_path / "s").exists()


def test_noise_does_not_stop_the_desk(tmp_path):
    with TrainerSocket(tmp_path / "s", echo):
        with socket.socket(socket.AF_UNIX) as noise:
            noise.connect(str(tmp_path / "s"))
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ask(tmp_path / "s", Payload({"kind": "x"})).kind == "x"


def test_a_trainer_that_comes_back_is_found_again(tmp_path):
    # What a killed one left behind is in the way of nobody.
    (tmp_path / "s").touch()
    answers = []

    def patient():
        answers.append(ask(tmp_path / "s", Payload({"kind": "x"}), patience=20))

    waiting = threading.Thread(target=patient)
    waiting.start()
    time.sleep(0.3)
    with TrainerSocket(tmp_path / "s", echo):
        waiting.join()
    assert answers[0].kind == "x"


def test_no_trainer_is_a_refusal(tmp_path):
    assert "no trainer answers" in str(ask(tmp_path / "s", Payload({"kind": "x"})).header["reason"])
    with pytest.raises(InputError, match="bytes long"):
        TrainerSocket(tmp_path / ("s" * 120), echo)


@pytest.mark.parametrize(("user", "is_asked"), [(4711, False), (0, True), (None, True)])
def test_another_users_process_is_asked_nothing(tmp_path, monkeypatch, user, is_asked):
    asked = []
    monkeypatch.setattr(local, "peer_user", lambda connection: user)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    with TrainerSocket(tmp_path / "s", lambda parcel: asked.append(parcel) or parcel):
        reply = ask(tmp_path / "s", Payload({"kind": "x"}), patience=5)
    assert bool(asked) == is_asked
    if not is_asked:
        assert reply.header["reason"] == f"it is user 4711 who answers at {tmp_path}/s, not 1000"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_who_listens_is_known(tmp_path):
    code = f"""
import os, socket
desk = socket.socket(socket.AF_UNIX)
desk.bind({str(tmp_path / "s")!r})
os.setuid(1)
desk.listen()
print(flush=True)
desk.accept()[0].recv(1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"\n"
            reason = ask(tmp_path / "s", Payload({"kind": "x"})).header["reason"]
        finally:
            other.kill()
    assert reason == f"it is user 1 who answers at {tmp_path}/s, not 0"


def test_the_clients_side_imports_no_torch():
    code = "import fedpbc.deployment.device.trainer_socket, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_whoever_leaves_before_the_answer_is_a_line_in_the_log(tmp_path, caplog):
    """And no traceback: pytest would fail for one in a thread."""
    gone = threading.Event()

    def handle(parcel):
        assert gone.wait(10)
        return parcel

    with TrainerSocket(tmp_path / "desk", handle):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impatient:
            impatient.connect(str(tmp_path / "desk"))
            with impatient.makefile("wb") as stream:
                write_payload(stream, Payload({"kind": "hello"}))
        gone.set()
        end = time.monotonic() + 10
        while not caplog.messages:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert caplog.messages[0].startswith("a message was lost on its way: BrokenPipeError")
