from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from fedpbc.deployment.device import trainer_socket
from fedpbc.deployment.device.trainer_socket import TrainerSocket, request
from fedpbc.deployment.protocol.messages import Payload, Vector, write_payload
from fedpbc.errors import FedpbcError, InputError


def echo(payload):
    if payload.kind == "bad":
        raise FedpbcError("no such thing")
    if payload.kind == "worse":
        raise ZeroDivisionError("oh")
    return payload


def test_a_payload_is_sent_and_its_reply_received(tmp_path):
    with TrainerSocket(tmp_path / "s", echo):
        reply = request(tmp_path / "s", Payload({"kind": "x"}, {"v": Vector("float32", b"abcd")}))
        assert reply.vectors["v"].data == b"abcd"
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        assert request(tmp_path / "s", Payload({"kind": "bad"})).header["reason"] == "no such thing"
        assert "oh" in request(tmp_path / "s", Payload({"kind": "worse"})).header["reason"]
    assert not (tmp_path / "s").exists()


def test_a_full_disk_is_one_line_until_there_is_space_again(tmp_path, caplog):
    full = [True]

    def handle(payload):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", "answers.jsonl")
        return payload

    with TrainerSocket(tmp_path / "s", handle):
        for _ in range(3):
            reply = request(tmp_path / "s", Payload({"kind": "x"}))
            assert reply.header["reason"] == "answers.jsonl: No space left on device"
        lines = ["refused a message: answers.jsonl: No space left on device"]
        assert caplog.messages == lines
        assert not any(record.exc_info for record in caplog.records)
        full.clear()
        assert request(tmp_path / "s", Payload({"kind": "x"})).kind == "x"
        full.append(True)
        request(tmp_path / "s", Payload({"kind": "x"}))
        assert caplog.messages == lines * 2


def test_noise_does_not_stop_the_socket(tmp_path):
    with TrainerSocket(tmp_path / "s", echo):
        with socket.socket(socket.AF_UNIX) as noise:
            noise.connect(str(tmp_path / "s"))
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert request(tmp_path / "s", Payload({"kind": "x"})).kind == "x"


def test_a_restarted_trainer_is_reached(tmp_path):
    # As a killed trainer left it.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    replies = []

    def client_app():
        replies.append(request(tmp_path / "s", Payload({"kind": "x"}), timeout=20))

    waiting = threading.Thread(target=client_app)
    waiting.start()
    time.sleep(0.3)
    with TrainerSocket(tmp_path / "s", echo):
        waiting.join()
    assert replies[0].kind == "x"


def test_no_trainer_is_a_refusal(tmp_path):
    assert "no trainer responds" in str(
        request(tmp_path / "s", Payload({"kind": "x"})).header["reason"]
    )
    with pytest.raises(InputError, match="bytes long"):
        TrainerSocket(tmp_path / ("s" * 120), echo)


@pytest.mark.parametrize(("user", "is_sent"), [(4711, False), (0, True), (None, True)])
def test_nothing_is_sent_to_another_users_process(tmp_path, monkeypatch, user, is_sent):
    received = []
    monkeypatch.setattr(trainer_socket, "peer_user", lambda connection: user)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    with TrainerSocket(tmp_path / "s", lambda payload: received.append(payload) or payload):
        reply = request(tmp_path / "s", Payload({"kind": "x"}), timeout=5)
    assert bool(received) == is_sent
    if not is_sent:
        assert reply.header["reason"] == f"{tmp_path}/s belongs to user 4711, not to user 1000"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_the_user_of_the_listening_process_is_checked(tmp_path):
    code = f"""
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind({str(tmp_path / "s")!r})
os.setuid(1)
server.listen()
print(flush=True)
server.accept()[0].recv(1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"\n"
            reason = request(tmp_path / "s", Payload({"kind": "x"})).header["reason"]
        finally:
            other.kill()
    assert reason == f"{tmp_path}/s belongs to user 1, not to user 0"


def test_the_module_imports_no_torch():
    code = "import fedpbc.deployment.device.trainer_socket, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_client_that_leaves_before_the_reply_is_logged(tmp_path, caplog):
    """And no traceback: pytest would fail for one in a thread."""
    gone = threading.Event()

    def handle(payload):
        assert gone.wait(10)
        return payload

    with TrainerSocket(tmp_path / "s", handle):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impatient:
            impatient.connect(str(tmp_path / "s"))
            with impatient.makefile("wb") as stream:
                write_payload(stream, Payload({"kind": "hello"}))
        gone.set()
        end = time.monotonic() + 10
        while not caplog.messages:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert caplog.messages[0].startswith("connection lost: BrokenPipeError")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_but_a_socket_is_replaced(tmp_path, kind):
    path, precious = tmp_path / "s", tmp_path / "precious"
    precious.write_text("mine")
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(precious)
    with pytest.raises(InputError, match="where nothing is but an earlier socket"):
        TrainerSocket(path, echo)
    assert precious.read_text() == "mine"
    assert path.is_dir() or path.read_text() == "mine"


def test_what_took_the_place_of_the_socket_stays(tmp_path):
    with TrainerSocket(tmp_path / "s", echo):
        (tmp_path / "s").unlink()
        (tmp_path / "s").write_text("mine")
    assert (tmp_path / "s").read_text() == "mine"
