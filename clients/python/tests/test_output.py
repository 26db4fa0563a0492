"""From blocks of bytes to lines, batches and last words."""

import json
import random
import threading
import types
import unittest
from unittest import mock

import support  # noqa: F401

from stepwatch import _output
from stepwatch._output import Lines, Tee, batches, last_words


def whole(data):
    lines = Lines()
    return lines.feed(data, last=True), lines.take_cut()


class Splitting(unittest.TestCase):
    def test_ends_of_lines(self):
        self.assertEqual(whole(b"a\nb\r\nc\rd\n\n \n e \nrest")[0], ["a", "b", "c", "d", " e ", "rest"])

    def test_any_division_into_blocks_gives_the_same_lines(self):
        dice = random.Random(11)
        for _ in range(300):
            alphabet = [b"a", b"\n", b"\r", b"\xff", "\u20ac".encode(), b"\x00", b" ", b"b" * 3000]
            data = b"".join(dice.choice(alphabet) for _ in range(dice.randrange(60)))
            lines, found = Lines(), []
            rest = data
            while rest:
                size = dice.randrange(1, 5000)
                found += lines.feed(rest[:size])
                rest = rest[size:]
            found += lines.feed(b"", last=True)
            self.assertEqual((found, lines.take_cut()), whole(data))

    def test_after_a_gap_the_first_line_is_no_line(self):
        lines = Lines()
        self.assertEqual(lines.feed(b"one\ntw"), ["one"])
        self.assertEqual(lines.feed(b"en", gap=True), [])
        self.assertEqual(lines.feed(b"ty\nthree\nfo"), ["three"])
        self.assertEqual(lines.feed(b"ur", last=True), ["four"])

    def test_a_line_without_end_takes_no_memory(self):
        lines = Lines()
        for _ in range(100):
            self.assertEqual(lines.feed(b"x" * 65536), [])
            self.assertLessEqual(len(lines._rest), _output.MAX_LINE + 1)
        self.assertEqual(lines.feed(b"\nnext\n"), ["x" * _output.MAX_LINE, "next"])
        self.assertEqual((lines.take_cut(), lines.take_cut()), (1, 0))

    def test_batches_keep_everything_in_order(self):
        dice = random.Random(12)
        for _ in range(100):
            lines = whole(b"\n".join(bytes(dice.randrange(256) for _ in range(dice.randrange(3000))) for _ in range(20)))[0]
            cut = list(batches(lines))
            self.assertEqual([line for batch in cut for line in batch], lines)
            self.assertTrue(all(len(json.dumps(batch, separators=(",", ":"))) <= _output.MAX_BATCH + 2 for batch in cut))


class Handed(unittest.TestCase):
    def test_the_end_waits_for_what_is_being_handed_over(self):
        """A busy machine may leave the thread in the middle of it."""
        lines, entered, go = [], threading.Event(), threading.Event()

        def put(kind, step, metrics, output):
            if not entered.is_set():
                entered.set()
                go.wait(20)
            lines.extend(output._keys["lines"])

        tee = Tee(types.SimpleNamespace(connected="here", queue=[], put=put))
        with mock.patch.object(_output, "TICK", 0.01):
            tee.start()
            tee.put("stdout", b"one\ntwo\nthr")
            self.assertTrue(entered.wait(20))
            tee.put("stdout", b"ee\nfour\n")
            end = threading.Thread(target=tee.close)
            end.start()
            end.join(0.1)
            go.set()
            end.join()
        self.assertEqual(lines, ["one", "two", "three", "four"])


class Words(unittest.TestCase):
    def test_the_last_exception(self):
        self.assertEqual(last_words(b"""\
step 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
RuntimeError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[W socket.cpp] destroying
"""), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")

    def test_behind_a_launchers_prefix_and_its_own_exception(self):
        self.assertEqual(last_words(b"""\
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 3, in <module>
[rank3]: ValueError: \x1b[31mno\x1b[0m such shard
E1121 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""), "ValueError: no such shard")

    def test_a_launchers_exception_is_better_than_nothing(self):
        text = b"Traceback (most recent call last):\n  File\nsubprocess.CalledProcessError: Command 'x' returned 1\n"
        self.assertEqual(last_words(text), "subprocess.CalledProcessError: Command 'x' returned 1")

    def test_without_one_the_last_lines(self):
        self.assertEqual(last_words(b"a\nb\n\n 50%|#\r100%|##\nBus error\nKilled\n"), "100%|##\nBus error\nKilled")
        self.assertEqual(len(last_words(b"x" * 10_000)), 256)
        self.assertIsNone(last_words(b""))
        self.assertIsNone(last_words(b"\n \n\x1b[0m\n"))

    def test_never_fails(self):
        dice = random.Random(13)
        pieces = [b"Traceback (most recent call last):", b"\n", b"  File", b"E: x", b"[rank0]: ", b"\x1b[", b"\x1b]", b"\xff", b":", b"\r"]
        for _ in range(2000):
            words = last_words(b"".join(dice.choice(pieces) for _ in range(dice.randrange(30))))
            self.assertTrue(words is None or 0 < len(words) <= 256)


if __name__ == "__main__":
    unittest.main()
