import glob
import os
import socket
import unittest
from unittest import mock

from support import Case, HttpReceiver, Receiver, parse, until

from stepwatch import _sender, _transport


class Order(Case):
    def http(self, *answers):
        receiver = HttpReceiver(answers)
        self.addCleanup(receiver.close)
        return receiver

    def lines(self):
        lines = []
        for name in glob.glob(os.path.join(self.folder, "out", "*.jsonl")):
            with open(name) as f:
                lines += [parse(line) for line in f]
        return lines

    def everything(self, **options):
        return self.run_(url=options.pop("url", ""), directory=os.path.join(self.folder, "out"), **options)

    def test_the_socket_first(self):
        receiver, http = self.receiver(), self.http()
        run = self.everything(url=http.url)
        run.step(1, loss=1.0)
        until(lambda: receiver.steps() == [1])
        self.assertEqual(run.connected, "seqpacket")
        self.assertEqual((http.lines, self.lines()), ([], []))

    def test_then_http(self):
        http = self.http()
        run = self.everything(url=http.url)
        run.step(1, loss=float("nan"))
        until(lambda: http.events("step"))
        self.assertEqual(run.connected, "http")
        self.assertEqual([e["k"] for e in http.events()][0], "hello")
        path, headers, body = http.requests[-1]
        self.assertEqual((path, headers["Content-Type"]), ("/v1/events", "application/x-ndjson"))
        self.assertIn(b'"loss":NaN', body)
        self.assertEqual(self.lines(), [])

    def test_then_a_file(self):
        run = self.everything(url="http://127.0.0.1:%d" % unused_port())
        run.step(1, loss=1.0)
        until(lambda: [e["k"] for e in self.lines()] == ["hello", "step"])
        self.assertEqual(run.connected, "jsonl")
        run.close()
        self.assertEqual(self.lines()[-1]["k"], "bye")

    def test_from_the_environment(self):
        env = {"STEPWATCH_URL": "http://h:1", "STEPWATCH_DIR": "/d"}
        names = [way.name for way in _transport.from_environment(env, "r", 0)]
        self.assertEqual(names, ["seqpacket", "http", "jsonl"])
        self.assertEqual([w.name for w in _transport.from_environment(dict(env, STEPWATCH_SOCKET=""), "r", 0)], ["http", "jsonl"])
        self.assertEqual(_transport.from_environment({}, "r", 0)[0]._path, "/run/stepwatch/ingest.sock")

    def test_a_better_way_is_taken_as_soon_as_it_is_there(self):
        run = self.everything()
        run.step(1)
        until(lambda: [e["step"] for e in self.lines() if e["k"] == "step"] == [1])
        receiver = self.receiver()
        until(lambda: run.connected == "seqpacket")
        run.step(2)
        until(lambda: receiver.steps() == [2])
        self.assertEqual(receiver.events()[0]["k"], "hello")

    def test_a_restart_of_the_exporter_does_not_spill_into_the_file(self):
        with mock.patch.object(_sender, "STABLE", 0.0):
            receiver = self.receiver()
            run = self.everything()
            run.step(1)
            until(lambda: receiver.steps() == [1])
            receiver.close()
            run.step(2)
            until(lambda: run.connected is None)
            again = self.receiver()
            until(lambda: again.steps() == [2])
        self.assertEqual(self.lines(), [])


class Reconnect(Case):
    def test_hello_again_and_nothing_lost(self):
        first = self.receiver()
        run = self.run_()
        run.step(1)
        until(lambda: first.steps() == [1])
        first.close()
        for i in range(2, 50):
            run.step(i)
        until(lambda: run.connected is None)
        second = self.receiver()
        until(lambda: second.steps() == list(range(2, 50)))
        self.assertEqual([e["k"] for e in second.events()][:2], ["hello", "step"])
        self.assertEqual(run.dropped, 0)

    def test_a_receiver_that_hangs_up_at_once_is_not_hammered(self):
        class Rude(Receiver):
            def _read(self, number, connection):
                connection.close()

        receiver = self.receiver(Rude)
        run = self.run_()
        for i in range(2000):
            run.step(i)
        until(lambda: receiver.accepted >= 2)
        self.assertLessEqual(receiver.accepted, 4)
        self.assertLessEqual(len(run._sender._outbox), 2, "one hello is enough")

    def test_a_listener_that_never_accepts(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(self.path)
        listener.listen(0)
        runs = [self.run_() for _ in range(4)]  # more than the backlog holds
        for run in runs:
            run.step(1)
            run.close()

    def test_back_off(self):
        sender = _sender.Sender([_transport.SeqPacket(self.path)], mock.Mock(), 10, 5.0)
        gaps = []
        for _ in range(9):
            sender._back_off(1000.0)
            gaps.append(sender._next_open - 1000.0)
        for gap, want in zip(gaps, (0.2, 1, 2, 4, 8, 16, 30, 30, 30)):
            self.assertTrue(0.8 * want <= gap <= 1.2 * want, (gap, want))

    def test_the_global_random_generator_is_left_alone(self):
        import random

        random.seed(5)
        want = random.random()
        random.seed(5)
        run = self.run_()
        until(lambda: run._sender._failures >= 2)
        self.assertEqual(random.random(), want)


class Http(Case):
    def sent(self, *answers):
        http = HttpReceiver(answers)
        self.addCleanup(http.close)
        run = self.run_(socket="", url=http.url)
        run.step(1, loss=1.0)
        return http, run

    def test_an_overloaded_server_gets_it_again(self):
        http, run = self.sent(503, 429)
        until(lambda: http.events("step"))
        self.assertEqual([e["k"] for e in http.events()].count("step"), 1)
        self.assertEqual(run.dropped, 0)

    def test_lines_that_were_not_read_are_sent_again_and_the_others_are_not(self):
        for line, read in ((3, 2), (1, 0), (0, 0), (-5, 0), (99, 5)):
            body = b'{"accepted": 2, "unread_from_line": %d}' % line
            self.assertEqual(_transport._read_before(body, 5), read, body)
        for body in (b"", b"{}", b"[]", b'{"unread_from_line": null}', b'{"unread_from_line": 1e999}', b"busy"):
            self.assertEqual(_transport._read_before(body, 5), 0, body)

    def test_what_is_refused_is_not_sent_again(self):
        http, run = self.sent(400)
        until(lambda: http.requests)
        run.step(2)
        until(lambda: [e["step"] for e in http.events("step")][-1:] == [2])
        self.assertEqual(len([r for r in http.requests if b'"step":2' in r[2]]), 1)
        self.assertEqual(run.dropped, 1)

    def test_a_server_that_accepts_and_never_answers(self):
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        with mock.patch.object(_transport, "HTTP_TIMEOUT", 0.05):
            run = self.run_(socket="", url="http://127.0.0.1:%d" % listener.getsockname()[1])
            run.step(1)
            until(lambda: run._sender._failures >= 1)
        self.assertEqual(len(run._sender._outbox) > 0, True, "kept for the next attempt")

    def test_addresses(self):
        for url, host, port, path in (
            ("http://h:9765", "h", 9765, "/v1/events"), ("h:1", "h", 1, "/v1/events"), ("http://h/x/", "h", None, "/x/v1/events"),
            ("http://[::1]:2/v1/events", "::1", 2, "/v1/events"),
        ):
            way = _transport.Http(url)
            self.assertEqual((way._host, way._port, way._path), (host, port, path))
        self.assertEqual(_transport.Http("http://u:p%40@h")._headers["Authorization"], "Basic dTpwQA==")
        self.assertTrue(_transport.Http("https://h")._tls)


class Files(Case):
    def test_names_are_safe(self):
        way = _transport.JsonLines(self.folder, "../evil name/\u20ac" * 50, 3)
        way.open()
        way.send([b"{}"])
        way.close()
        (name,) = os.listdir(self.folder)
        self.assertRegex(name, r"^[\w.-]+-rank3-%d\.jsonl$" % os.getpid())

    def test_a_file_that_has_grown_is_put_aside_once(self):
        with mock.patch.object(_transport, "MAX_FILE_BYTES", 100):
            way = _transport.JsonLines(self.folder, "r", 0)
            way.open()
            for i in range(40):
                way.send([b'{"n":%02d}' % i])
            way.close()
        sizes = {name: os.path.getsize(os.path.join(self.folder, name)) for name in os.listdir(self.folder)}
        self.assertEqual(len(sizes), 2)
        self.assertTrue(all(0 < size <= 100 for size in sizes.values()), sizes)

    def test_a_full_disk_leaves_no_half_line(self):
        way = _transport.JsonLines(self.folder, "r", 0)
        way.open()
        way.send([b'{"n":1}'])
        real = os.write
        with mock.patch.object(_transport.os, "write", side_effect=fills_up(real)):
            with self.assertRaises(OSError):
                way.send([b'{"n":2}'])
        way.close()
        way.open()
        way.send([b'{"n":2}'])
        way.close()
        (name,) = os.listdir(self.folder)
        with open(os.path.join(self.folder, name)) as f:
            self.assertEqual(f.read(), '{"n":1}\n{"n":2}\n')


def fills_up(real):
    """Writes three bytes, then the disk is full."""
    calls = []

    def write(fd, data):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "no space")
        return real(fd, data[:3])

    return write


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
