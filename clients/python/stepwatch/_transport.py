"""Three ways to hand lines to an exporter, in the order in which they are tried.

Each is used by one thread, and none is ever waited for by the training loop. ``send`` takes lines
in order and answers how many it took: fewer than given means "full, ask again"; an OSError means
that this way is dead until it is opened anew.
"""

import base64
import errno
import http.client
import json
import os
import re
import socket
import ssl
from typing import List, Mapping, Optional, Sequence, Union
from urllib.parse import unquote, urlsplit

DEFAULT_SOCKET = "/run/stepwatch/ingest.sock"
#: Seconds for one request: a receiver that accepts and never answers costs the sending thread this,
#: and training nothing.
HTTP_TIMEOUT = 2.0
#: A file that has grown to this is put aside as ``.1``, once: at most twice this is ever on disk
#: for a process.
MAX_FILE_BYTES = 64 * 1024 * 1024

_FULL = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS)


class Transport:
    name = ""
    #: Lines handed to one ``send``; the rest stays in the bounded queue, where the oldest gives
    #: way.
    batch = 1
    #: Whether the other side wants heartbeats.
    live = True
    #: Whether ``send`` answers without waiting for anybody.
    prompt = True
    #: Lines that the receiver will never take.
    refused = 0

    def open(self) -> None:
        raise NotImplementedError

    def send(self, lines: Sequence[bytes]) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Closes this process' descriptor and nothing else: in a forked child the parent's
        connection goes on."""
        raise NotImplementedError


class SeqPacket(Transport):
    """One packet, one event. The kernel keeps the boundaries, gives the exporter our pid, and
    closes the connection when we die."""

    name = "seqpacket"

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: Optional[socket.socket] = None

    def open(self) -> None:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            s.setblocking(False)
            s.connect(self._path)
        except BaseException:
            s.close()
            raise
        self._socket = s

    def send(self, lines: Sequence[bytes]) -> int:
        if self._socket is None:
            raise OSError(errno.ENOTCONN, "not connected")
        for taken, line in enumerate(lines):
            try:
                self._socket.send(line)
            except OSError as e:
                if e.errno in _FULL:
                    return taken
                if e.errno != errno.EMSGSIZE:
                    raise
                self.refused += 1
        return len(lines)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _read_before(body: bytes, lines: int) -> int:
    """How many of the lines were read before their user sent too fast: the others are sent
    again."""
    try:
        read = int(json.loads(body)["unread_from_line"]) - 1
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
    return max(0, min(read, lines))


class Http(Transport):
    """``POST /v1/events``, newline-delimited, over one kept connection."""

    name = "http"
    batch = 64
    prompt = False

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else "http://" + url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port
        path = parts.path.rstrip("/")
        self._path = path if path.endswith("/v1/events") else path + "/v1/events"
        self._headers = {"Content-Type": "application/x-ndjson"}
        if parts.username:
            pair = "%s:%s" % (unquote(parts.username), unquote(parts.password or ""))
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        self._connection: Union[http.client.HTTPConnection, None] = None

    def open(self) -> None:
        if self._tls:
            context = ssl.create_default_context()
            c: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=HTTP_TIMEOUT, context=context
            )
        else:
            c = http.client.HTTPConnection(self._host, self._port, timeout=HTTP_TIMEOUT)
        c.connect()
        self._connection = c

    def send(self, lines: Sequence[bytes]) -> int:
        if self._connection is None:
            raise OSError(errno.ENOTCONN, "not connected")
        try:
            self._connection.request("POST", self._path, b"\n".join(lines) + b"\n", self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except http.client.HTTPException as e:
            raise OSError(errno.EPROTO, "not an answer: %r" % (e,)) from e
        if answer.status == 429:
            return _read_before(body, len(lines))
        if answer.status in (400, 413, 415, 422):
            self.refused += 1  # the events are at fault: the same bytes would be refused again
        elif not 200 <= answer.status < 300:
            raise OSError(errno.EPROTO, "status %d" % answer.status)
        return len(lines)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class JsonLines(Transport):
    """A file for an exporter to tail, or for none: the last resort on a node without one."""

    name = "jsonl"
    batch = 256
    live = False

    def __init__(self, directory: str, run: str, rank: int) -> None:
        self._directory = directory
        self._stem = "%s-rank%d" % (re.sub(r"[^\w.-]+", "_", run)[:100] or "run", rank)
        self._fd: Optional[int] = None
        self._path = ""
        self._size = 0

    def open(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        self._path = os.path.join(self._directory, "%s-%d.jsonl" % (self._stem, os.getpid()))
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        self._size = os.fstat(self._fd).st_size

    def send(self, lines: Sequence[bytes]) -> int:
        if self._fd is None:
            raise OSError(errno.EBADF, "not open")
        block = b"\n".join(lines) + b"\n"
        if self._size and self._size + len(block) > MAX_FILE_BYTES:
            self.close()
            os.replace(self._path, self._path + ".1")
            self.open()
        before, fd = self._size, self._fd
        try:
            while block:
                n = os.write(fd, block)
                self._size += n
                block = block[n:]
        except OSError:
            os.ftruncate(fd, before)  # a full disk must not leave half a line for the next one to be glued to
            raise
        return len(lines)

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def from_environment(
    env: Mapping[str, str],
    run: str,
    rank: int,
    path: Optional[str] = None,
    url: Optional[str] = None,
    directory: Optional[str] = None,
) -> List[Transport]:
    """The ways that are configured, best first; an argument beats the environment, an empty one
    turns the way off."""
    ways: List[Transport] = []
    path = path if path is not None else env.get("STEPWATCH_SOCKET", DEFAULT_SOCKET)
    url = url if url is not None else env.get("STEPWATCH_URL")
    directory = directory if directory is not None else env.get("STEPWATCH_DIR")
    if path:
        ways.append(SeqPacket(path))
    if url:
        ways.append(Http(url))
    if directory:
        ways.append(JsonLines(directory, run, rank))
    return ways
