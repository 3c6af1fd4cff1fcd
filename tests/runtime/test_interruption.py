"""Signals stop at a safe point, none is lost, and the last one is recorded."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from bnrecon.runtime import interruption

NUMBERS = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGUSR2")]


@contextlib.contextmanager
def once_loaded():
    with interruption.handle_signals():
        interruption.finish_loading()
        yield


@pytest.mark.parametrize("number", NUMBERS)
def test_job_handles_a_signal_after_loading(number):
    with interruption.handle_signals(postpone=True):
        signal.raise_signal(number)
        assert interruption.received_signal() == number
        with pytest.raises(KeyboardInterrupt):
            interruption.finish_loading()
        interruption.finish_loading()  # no second interrupt


def test_signal_of_an_earlier_job_does_not_affect_the_next():
    with interruption.handle_signals(postpone=True):
        signal.raise_signal(signal.SIGINT)
    with interruption.handle_signals(postpone=True):
        interruption.finish_loading()


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_is_recorded_inside_the_block_and_raised_outside(number):
    def work():
        with interruption.StopRequest() as stop:
            assert stop.reason is None
            signal.raise_signal(number)
            raise RuntimeError(stop.reason)

    with once_loaded():
        with pytest.raises(RuntimeError, match=f"{number.name} was received"):
            work()
        assert interruption.received_signal() == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
def test_late_signal_takes_effect_after_the_block_and_a_second_one_at_once(
    number, repeated, monkeypatch
):
    monkeypatch.setattr(interruption, "REPEATED", 0)
    passed = []

    def work():
        with interruption.StopRequest():
            signal.raise_signal(number)
            passed.append("the first")
            if repeated:
                signal.raise_signal(number)
                passed.append("the second")
        passed.append("the block")

    with once_loaded(), pytest.raises(KeyboardInterrupt):
        work()
    assert passed == ["the first"]


@pytest.mark.parametrize("number", NUMBERS)
def test_simultaneous_signals_count_once_except_ctrl_c(number):
    def work():
        with interruption.StopRequest() as stop:
            signal.raise_signal(number)
            signal.raise_signal(number)
            raise RuntimeError(stop.reason)

    end = KeyboardInterrupt if number == signal.SIGINT else RuntimeError
    with once_loaded(), pytest.raises(end):
        work()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_worker_survives_a_signal_before_it_leaves_the_group(number):
    with interruption.signals_blocked():
        child = os.fork()
        if child == 0:
            time.sleep(0.2)  # the signal arrives before the group is left
            with contextlib.suppress(BaseException):
                interruption.leave_group()
                has_left = os.getpgid(0) == os.getpid() and not signal.sigpending()
                os._exit(3 if has_left and not signal.pthread_sigmask(signal.SIG_BLOCK, []) else 4)
            os._exit(5)
        os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.process
def test_process_ends_if_its_parent_ended_before_its_job():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    code = (
        "import time; from bnrecon.runtime.interruption import ending_with_parent\n"
        f"with ending_with_parent({ended.pid}): time.sleep(100)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGTERM
