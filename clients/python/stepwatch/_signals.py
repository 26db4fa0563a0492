"""SIGTERM, by which ``scancel``, Kubernetes and ``torchrun`` end a process, is a goodbye: not a
rank that died for no reason.

Only the default action is replaced, and the process still dies of the signal. Whoever handles
SIGTERM already (to write a last checkpoint, to requeue the job) decides how the run ends, and
leaves by ``SystemExit`` or ``atexit``, where the goodbye is said.

A handler in Python waits for the main thread to leave C code, and that of a hung collective never
does, whereas the default action kills at once. So the signal is also seen by a thread of our own,
through ``signal.set_wakeup_fd``, that does the same when the main thread has not done it within
``GRACE``.
"""

import os
import signal
import threading
import time
from typing import Any, Callable

#: The exit status that a shell gives for a process that died of SIGTERM.
CODE = 128 + int(signal.SIGTERM)
TEXT = "SIGTERM"
#: Seconds for the main thread to notice the signal.
GRACE = 0.2

_say_goodbye: Callable[[], None] = lambda: None


def install(say_goodbye: Callable[[], None]) -> None:
    """Once a process, from its main thread: elsewhere Python does not let us, and the signal keeps
    its default action."""
    global _say_goodbye
    if os.environ.get("STEPWATCH_NO_SIGNAL", "") not in ("", "0", "false", "no"):
        return
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    _say_goodbye = say_goodbye
    signal.signal(signal.SIGTERM, _on_signal)
    _watch()


def uninstall() -> None:
    """For a framework that has a way of its own to end on SIGTERM, and would find ours in its
    place."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_signal(number: int, frame: Any) -> None:
    _goodbye()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _goodbye() -> None:
    try:
        _say_goodbye()
    except Exception:
        pass  # whatever went wrong, the signal must end the process


def _watch() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    if before != -1:  # an event loop needs it more than we do
        signal.set_wakeup_fd(before)
        os.close(ours)
        os.close(theirs)
        return
    threading.Thread(target=_wait, args=(ours,), name="stepwatch-signal", daemon=True).start()


def _wait(pipe: int) -> None:
    try:
        while int(signal.SIGTERM) not in os.read(pipe, 64):
            pass
        time.sleep(GRACE)
        if signal.getsignal(signal.SIGTERM) is not _on_signal:
            return  # the main thread is at it, or somebody else took the signal over
        import ctypes

        _goodbye()
        # Python sets handlers in the main thread only.
        restore = ctypes.CDLL(None).signal
        restore.argtypes, restore.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        restore(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception:
        pass


_forking = threading.local()


def _before_fork() -> None:
    # Until the child has its own disposition a SIGTERM to it waits: ours would swallow it there,
    # and wake the parent's thread.
    try:
        if signal.getsignal(signal.SIGTERM) is _on_signal:
            _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    except Exception:
        pass


def _after_fork() -> None:
    try:
        mask = getattr(_forking, "mask", None)
        _forking.mask = None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except Exception:
        pass


def _in_child() -> None:
    """A forked child sends no goodbye."""
    try:
        if signal.getsignal(signal.SIGTERM) is _on_signal:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except Exception:
        pass
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
