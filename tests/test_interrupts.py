"""Signals end a block in order; what was ignored stays ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref

import pytest

from fedpbc import interrupts
from fedpbc.interrupts import Interrupted, exit_code, handled, held_back
from tests.processes import PATIENCE, child

pytestmark = [
    pytest.mark.usefixtures("signals_as_in_a_terminal"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(interrupts, "REPEAT_SECONDS", 0.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_keyboard_interrupt_with_a_code(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, handled():
        signal.raise_signal(number)
    assert isinstance(caught.value, Interrupted)
    assert caught.value.number == number
    assert exit_code() == 128 + number
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_code_is_that_of_the_first():
    with handled():
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(Interrupted):
                signal.raise_signal(number)
        assert exit_code() == 143


def test_repeats_of_one_event_count_once(monkeypatch):
    monkeypatch.setattr(interrupts, "REPEAT_SECONDS", 60.0)
    with handled():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)


def test_signals_are_held_back_until_the_end_of_the_block():
    steps = []

    def work() -> None:
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            steps.append("still here")
        steps.append("too far")

    with handled():
        with pytest.raises(Interrupted):
            work()
        assert steps == ["still here"]
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(interrupts.SIGNALS)


def test_processes_begin_with_the_signals_blocked():
    code = (
        "import signal, os\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "from fedpbc.interrupts import leave_to_parent\n"
        "leave_to_parent()\n"
        "print('alive')"
    )
    with held_back():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.communicate()[0] == "alive\n"


def test_other_threads_may_use_it():
    done = []

    def work() -> None:
        with handled(), held_back():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_finalizer_does_not_swallow_a_signal():
    class Holder:
        pass

    def work() -> None:
        holder = Holder()
        weakref.finalize(holder, signal.raise_signal, signal.SIGTERM)
        del holder
        threading.Event().wait(60)

    with handled(), pytest.raises(Interrupted):
        work()


def test_a_quick_exit_does_what_was_registered_and_flushes():
    code = (
        "import atexit, sys\n"
        "from fedpbc import interrupts\n"
        "atexit.register(lambda: sys.stdout.write('cleaned up'))\n"
        "sys.stderr.write('said')\n"
        "class Module:\n"
        "    def __del__(self): sys.stdout.write('torn down')\n"
        "kept = Module()\n"
        "interrupts.exit_quickly(130)\n"
    )
    with child([sys.executable, "-c", code]) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "cleaned up", "said")
