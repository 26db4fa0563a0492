"""What the tests share: receivers that are real sockets, and waiting for a condition instead of for
a time."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

#: Nothing in these tests takes nearly as long; a machine under load may.
PATIENCE = 20.0

_VARIABLES = (
    "RANK WORLD_SIZE LOCAL_RANK OMPI_COMM_WORLD_RANK MV2_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID SLURM_JOB_ID SLURM_JOB_NAME"
    " TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT SLURM_RESTART_COUNT STEPWATCH_SOCKET STEPWATCH_URL STEPWATCH_DIR"
    " STEPWATCH_DISABLED STEPWATCH_RUN STEPWATCH_RUN_BY STEPWATCH_JOB_ID WANDB_NAME WANDB_RUN_ID MLFLOW_RUN_ID"
).split()
for _variable in _VARIABLES:
    os.environ.pop(_variable, None)  # the tests may themselves run under Slurm
os.environ["STEPWATCH_SHM"] = ""  # nothing of a test is for the eyes of an exporter on this machine


def until(condition, what="the condition"):
    """Polls until ``condition()`` is true and returns its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s did not come true within %.0f s" % (what, PATIENCE))
        time.sleep(0.002)


def needs(*modules):
    """Skips the calling test, loudly, where a module is not installed; where all must be there it
    fails instead."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    if os.environ.get("STEPWATCH_REQUIRE_PEERS") == "1":
        raise AssertionError("not installed: " + ", ".join(missing))
    print("SKIPPED for lack of %s" % ", ".join(missing), file=sys.stderr)
    raise unittest.SkipTest("not installed: " + ", ".join(missing))


def parse(line):
    return json.loads(line)  # takes bare NaN and Infinity


class Receiver:
    """A SEQPACKET socket that keeps what it gets: ``packets`` as (connection number, bytes), and
    which connections have ended."""

    def __init__(self, path):
        self.path = path
        self.packets, self.ended, self.accepted, self._closed = [], set(), 0, False
        self._connections = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._closed:
                connection.close()
                return
            number = self.accepted
            self._connections.append(connection)
            self.accepted += 1
            threading.Thread(target=self._read, args=(number, connection), daemon=True).start()

    def _read(self, number, connection):
        while True:
            try:
                packet = connection.recv(65536)
            except OSError:
                packet = b""
            if not packet:
                self.ended.add(number)
                return
            self.packets.append((number, packet))

    def events(self, kind=None, connection=None):
        found = [parse(p) for n, p in list(self.packets) if connection is None or n == connection]
        return [e for e in found if kind is None or e["k"] == kind]

    def steps(self, connection=None):
        return [e["step"] for e in self.events("step", connection)]

    def close(self):
        self._closed = True
        self._listener.close()
        try:
            os.unlink(self.path)
        except OSError:
            pass
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()


class HttpReceiver:
    """Answers POSTs with the next of ``answers`` (then 204) and keeps the lines of those it
    accepted."""

    def __init__(self, answers=()):
        self.lines, self.requests, self.answers = [], [], list(answers)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                status = outer.answers.pop(0) if outer.answers else 204
                if status < 300:
                    outer.lines += body.decode("ascii").splitlines()
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def events(self, kind=None):
        found = [parse(line) for line in list(self.lines)]
        return [e for e in found if kind is None or e["k"] == kind]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


RECEIVER_PROCESS = """
    import socket, sys
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[1])
    listener.listen(16)
    print("ready", flush=True)
    connection, _ = listener.accept()
    print("accepted", flush=True)
    while True:
        packet = connection.recv(65536)
        if not packet:
            break
        sys.stdout.write(packet.decode() + "\\n")
        sys.stdout.flush()
"""


class StoppableReceiver:
    """A receiver in a process of its own, to be stopped with SIGSTOP."""

    def __init__(self, path):
        code = textwrap.dedent(RECEIVER_PROCESS)
        self.process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, universal_newlines=True)
        self.lines = []
        assert self.process.stdout.readline() == "ready\n"
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def events(self, kind=None):
        found = [parse(line) for line in list(self.lines) if line.startswith("{")]
        return [e for e in found if kind is None or e["k"] == kind]

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        until(lambda: self._state() == "T", "SIGSTOP")

    def _state(self):
        with open("/proc/%d/stat" % self.process.pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self):
        self.go_on()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Case(unittest.TestCase):
    """A test with a folder of its own, whose runs and receivers are closed behind it."""

    #: Seconds that a program may take.
    timeout = 60

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sw")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.path = os.path.join(self.folder, "ingest.sock")

    def receiver(self, kind=Receiver):
        receiver = kind(self.path)
        self.addCleanup(receiver.close)
        return receiver

    def run_(self, name="r", **options):
        import stepwatch

        options.setdefault("socket", self.path)
        options.setdefault("url", "")
        options.setdefault("directory", "")
        run = stepwatch.Run(name, **options)
        self.addCleanup(run.close)
        return run

    def script(self, code, *arguments, **environment):
        """Runs ``code`` as a process of its own with our package; (exit status, stdout, stderr)."""
        return self.program("-c", textwrap.dedent(code), *arguments, **environment)

    def program(self, *arguments, **environment):
        env = dict(os.environ, PYTHONPATH=ROOT, STEPWATCH_SOCKET=self.path, PYTHONDONTWRITEBYTECODE="1")
        env.update(environment)
        env["PYTHONWARNINGS"] = "ignore::DeprecationWarning"  # of forking with threads, which is what some of these do
        command = [sys.executable] + [str(a) for a in arguments]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=self.timeout, universal_newlines=True)
        return done.returncode, done.stdout, done.stderr
