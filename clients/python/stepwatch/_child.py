"""A wrapped command that does not notice it: same terminal, same signals, same process group, same
bytes, same end.

The command stays in our process group and has our standard input, so that job control and Ctrl-C
reach it as they always do. Its output goes through a pipe, or through a pseudo-terminal where ours
is a terminal, and is copied byte for byte.
"""

import errno
import fcntl
import os
import resource
import select
import signal
import subprocess
import termios
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence

#: Bytes copied at once, and what a pipe holds: the command does not wait when we are not scheduled
#: for a moment.
BLOCK = 64 * 1024
PIPE_SIZE = 1024 * 1024
#: Seconds without output after which a pipe is given up that somebody the command left behind still
#: holds, and seconds in all.
DRAIN = 0.1
DRAIN_LIMIT = 2.0
#: Seconds after which we look ourselves whether the command has ended, should nothing have woken
#: us.
LOOK = 1.0
#: Seconds after which the witness is asked whether it got a signal, too (whoever signals many does
#: it one by one), and seconds that it has to answer.
GRACE = 0.05
TESTIMONY = 2.0
#: Its answer, among the numbers of signals.
ANSWER = 0

#: What is passed on. SIGKILL and SIGSTOP nobody can, and the rest (children, timers, faults) is not
#: meant for the command.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)

Tee = Callable[[str, bytes], None]


class Child:
    """A command that runs. To be started before any thread of this process, because it forks."""

    def __init__(self, command: List[str], env: Dict[str, str]) -> None:
        """Raises OSError when the command cannot be run."""
        _open_standard()
        # Who ignores a signal (nohup, a shell's background job) wants the command to ignore it, and
        # it does.
        self._handled = [n for n in FORWARDED if signal.getsignal(n) not in (signal.SIG_IGN, None)]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self._witness = Witness(self._handled, self._mask)
        try:
            self._channels = channels()
            self._process = self._start(command, env)
            for number in self._handled:
                signal.signal(number, self._forward)
            signal.signal(signal.SIGCONT, self._continued)
            signal.signal(signal.SIGWINCH, self._resized)
        except BaseException:
            self._witness.dismiss()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _start(self, command: List[str], env: Dict[str, str]) -> "subprocess.Popen[bytes]":
        out, err = self._channels[0], self._channels[-1]
        try:
            return subprocess.Popen(
                command, env=env, stdout=out.end, stderr=err.end, close_fds=False, preexec_fn=self._before_exec
            )
        finally:
            for channel in self._channels:
                os.close(channel.end)

    def _before_exec(self) -> None:
        # A signal that came meanwhile does to the command what it would have done just after its
        # start.
        for number in self._handled:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, tee: Tee) -> int:
        """Copies the output until the command has ended: its exit status, negative for a signal."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A signal that comes just before a system call would not interrupt it: its handler would
        # wait until the command ends.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        ended, end = os.pipe()
        for channel in self._channels:
            threading.Thread(target=channel.copy, args=(ended, tee, wake), name="stepwatch-copy", daemon=True).start()
        status: Optional[int] = None
        while status is None or not all(channel.done for channel in self._channels):
            if status is None:
                status = self._process.poll()
                if status is not None:
                    os.close(end)
                    continue
            select.select([woken], [], [], LOOK)
            _drain(woken)
        self._witness.dismiss()
        return status

    # -- signals: handlers run in the main thread --------------------------------------------------

    def _forward(self, number: int, frame: Any) -> None:
        if self._process.returncode is not None:
            die_of(number)  # there is only our own reader to wait for
        if not self._witness.saw(number):
            self._process.send_signal(number)
        if number == signal.SIGTSTP:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # stops here until SIGCONT
            signal.signal(number, self._forward)

    def _continued(self, number: int, frame: Any) -> None:
        self._process.send_signal(number)  # twice does no harm
        self._resized(signal.SIGWINCH, frame)

    def _resized(self, number: int, frame: Any) -> None:
        # The command had this signal before the new size, so the signal is sent again.
        if any([channel.resize() for channel in self._channels]):
            self._process.send_signal(number)


class Channel:
    """One way out of the command: what it writes to ``end`` is copied to ``target``."""

    def __init__(self, target: int, stream: str) -> None:
        self._target, self._stream = target, stream
        #: Everything is copied that ever will be.
        self.done = False
        self._terminal = os.isatty(target)
        if self._terminal:
            self._source, self.end = os.openpty()
            _imitate(self.end, target)
            self.resize()
            return
        self._source, self.end = os.pipe()
        try:
            fcntl.fcntl(self._source, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_SIZE)
        except OSError:
            pass  # the default is enough while we are scheduled

    def resize(self) -> bool:
        """Gives the pseudo-terminal the size of the terminal; whether it had another."""
        if not self._terminal:
            return False
        try:
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
            changed = size != fcntl.ioctl(self._source, termios.TIOCGWINSZ, bytes(8))
            if changed:
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)
            return changed
        except OSError:
            return False

    def copy(self, ended: int, tee: Tee, wake: int) -> None:
        """Until everybody has closed ``end``, or the command has ended (``ended`` is closed) and
        nothing more comes."""
        try:
            self._copy(ended, tee)
        finally:
            os.close(self._source)  # whoever still writes gets an error, as if our reader had gone away
            self.done = True
            os.write(wake, b"\0")

    def _copy(self, ended: int, tee: Tee) -> None:
        look = select.poll()
        look.register(self._source, select.POLLIN)
        look.register(ended, select.POLLIN)
        deadline: Optional[float] = None
        while True:
            ready = dict(look.poll(None if deadline is None else DRAIN * 1000))
            if ended in ready:
                look.unregister(ended)
                deadline = time.monotonic() + DRAIN_LIMIT
            if self._source in ready:
                block = self._read()
                if not block or not self._write(block):
                    break
                try:
                    tee(self._stream, block)
                except Exception:
                    pass
            elif ended not in ready:
                break
            if deadline is not None and time.monotonic() > deadline:
                break

    def _read(self) -> bytes:
        try:
            return os.read(self._source, BLOCK)
        except OSError:
            return b""  # a pseudo-terminal says EIO when everybody has closed it

    def _write(self, block: bytes) -> bool:
        """False when there is no reader any more."""
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                wait = select.poll()  # whoever shares our output has made it non-blocking
                wait.register(self._target, select.POLLOUT)
                wait.poll()
            except OSError as e:
                # A full disk is not the end of the training run; a reader that has gone is the end
                # of its output.
                return e.errno != errno.EPIPE
        return True


def channels() -> List[Channel]:
    """One for standard output and one for standard error; one for both where they are the same
    file, or their order would be lost."""
    out, err = os.fstat(1), os.fstat(2)
    if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
        return [Channel(1, "stdout")]
    return [Channel(1, "stdout"), Channel(2, "stderr")]


class Witness:
    """Distinguishes a signal that was sent to us alone, which is passed on to the command, from one
    that was sent to all of us.

    Terminals, shells, ``timeout``, Slurm and systemd signal whole groups, ``kill`` and container
    runtimes one process, and a signal does not say which it was. A command that is interrupted
    twice by one Ctrl-C breaks off the clean-up that it began at the first. So a process that does
    nothing is kept beside the command: a signal that it gets, too, was sent to all.
    """

    def __init__(self, signals: Sequence[int], mask: Any) -> None:
        #: When it reported a signal that we have not been asked about.
        self._heard: Dict[int, float] = {}
        self._questions = self._answers = 0
        self._reports, reports = os.pipe()
        asked, self._ask = os.pipe()
        for end in (self._reports, reports, self._ask):
            os.set_blocking(end, False)
        try:
            self._pid = os.fork()
        except OSError:
            self._pid = -1  # without it every signal is passed on
        if self._pid == 0:
            try:
                for end in (0, 1, 2, self._reports, self._ask):
                    os.close(end)
                _testify(signals, mask, reports, asked)
            finally:
                os._exit(0)
        os.close(reports)
        os.close(asked)

    def saw(self, number: int) -> bool:
        """Whether it got this signal, too. It answers behind what it has got, so a machine that is
        busy makes this slow, not wrong."""
        start = time.monotonic()
        question = 0
        while self._pid > 0 and time.monotonic() < start + TESTIMONY:
            if self._heard.pop(number, 0.0) > start - TESTIMONY / 4:
                return True
            if question and self._answers >= question:
                return False
            try:
                if not question and time.monotonic() > start + GRACE:
                    os.write(self._ask, b"?")
                    self._questions += 1
                    question = self._questions
                # Not long: the handler of another signal, which may come meanwhile, reads here,
                # too.
                if select.select([self._reports], [], [], GRACE / 5)[0]:
                    self._hear(os.read(self._reports, 256))
            except BlockingIOError:
                pass
            except OSError:
                return False  # it was killed
        return False

    def _hear(self, report: bytes) -> None:
        if not report:
            raise OSError(errno.EPIPE, "nobody there")
        self._answers += report.count(ANSWER)
        self._heard.update((number, time.monotonic()) for number in report if number != ANSWER)

    def dismiss(self) -> None:
        if self._pid > 0:
            pid, self._pid = self._pid, -1
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _testify(signals: Sequence[int], mask: Any, reports: int, asked: int) -> None:
    """Reports the number of each signal, and an answer to each question, until the process that
    sends them has ended."""
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(reports, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while os.read(asked, 1):
        os.write(reports, bytes([ANSWER]))


def _drain(pipe: int) -> None:
    try:
        os.read(pipe, 4096)
    except BlockingIOError:
        pass


def die_of(number: int) -> NoReturn:
    """Ends this process as the command ended: a process that waits for us sees the same signal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # its core is the one of interest
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # process 1 of a container does not die of its own signals


def _imitate(end: int, terminal: int) -> None:
    """Makes a pseudo-terminal look like ``terminal``, but leaves what is written to it as it is:
    the terminal itself will change it."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(end, termios.TCSANOW, attributes)


def _open_standard() -> None:
    """Descriptors 0 to 2 must be taken: a pipe of ours that got such a number would be taken for
    the command's output."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
