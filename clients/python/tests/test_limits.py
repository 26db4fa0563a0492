"""A receiver that is stopped, or not there, costs the training loop nothing and the newest events
survive."""

import time
import unittest
from unittest import mock

from support import Case, StoppableReceiver, until

from stepwatch import _sender, _transport


class Stopped(Case):
    def fill(self, run, count):
        """Steps until the receiver is full and the queue has overflowed; the slowest call in
        seconds."""
        slowest = 0.0
        for i in range(count):
            start = time.perf_counter()
            run.step(i, loss=1.0)
            slowest = max(slowest, time.perf_counter() - start)
            if i % 200 == 0:
                time.sleep(0.005)  # the thread gets its turn
        return slowest

    def test_never_blocks_drops_the_oldest_and_says_how_many(self):
        receiver = self.receiver(StoppableReceiver)
        run = self.run_(heartbeat=0.1)
        until(lambda: receiver.events("hello"))
        receiver.stop()
        count = 6000
        slowest = self.fill(run, count)
        self.assertLess(slowest, 0.1, "no call waits for a receiver")
        until(lambda: run.dropped > 0, "drops")
        receiver.go_on()
        until(lambda: [e["step"] for e in receiver.events("step")][-1:] == [count - 1])
        until(lambda: any(e.get("dropped") for e in receiver.events("hb")), "a heartbeat with the count")
        steps = [e["step"] for e in receiver.events("step")]
        self.assertEqual(steps, sorted(set(steps)), "in order, none twice")
        self.assertEqual(len(steps) + run.dropped, count, "each is either there or counted")
        self.assertEqual(receiver.events("hb")[-1]["dropped"], run.dropped)
        newest = list(range(count - _sender.QUEUE_LIMIT, count))
        self.assertEqual(steps[-len(newest):], newest)
        run.close()
        self.assertEqual(until(lambda: receiver.events("bye"))[0]["dropped"], run.dropped)

    def test_leaving_takes_at_most_50_ms(self):
        receiver = self.receiver(StoppableReceiver)
        receiver.stop()
        took = []
        for _ in range(3):
            run = self.run_()
            until(lambda: run.connected)
            self.fill(run, 3000)
            start = time.perf_counter()
            run.close()
            took.append(time.perf_counter() - start)
        self.assertLessEqual(min(took), 0.05)


class Busy(Case):
    def test_a_goodbye_is_not_lost_for_want_of_processor_time(self):
        receiver = self.receiver()
        run = self.run_()
        until(lambda: receiver.events("hello"))
        real = _transport.SeqPacket.send

        def starved(way, lines):
            time.sleep(0.1)
            return real(way, lines)

        with mock.patch.object(_transport.SeqPacket, "send", starved):
            run.close()
            self.assertFalse(run._sender._thread.is_alive())
        until(lambda: receiver.events("bye"))


class Absent(Case):
    def test_the_newest_are_kept_for_later(self):
        run = self.run_(queue_limit=100)
        for i in range(1000):
            run.step(i)
        until(lambda: run._sender._failures >= 1)
        self.assertEqual(run.dropped, 900)
        receiver = self.receiver()
        until(lambda: len(receiver.steps()) == 100)
        self.assertEqual(receiver.steps(), list(range(900, 1000)))
        self.assertEqual(receiver.events("hello")[0]["dropped"], 900)

    def test_leaving_is_quick(self):
        run = self.run_()
        for i in range(2000):
            run.step(i)
        start = time.perf_counter()
        run.close()
        self.assertLessEqual(time.perf_counter() - start, 0.05)


class Exits(Case):
    """Of whole processes: what ``atexit`` does."""

    def leave(self, code):
        # Handlers run in reverse order of registration, so the client's own stands between these
        # two.
        return self.script("""
            import atexit, os, time
            began = []
            atexit.register(lambda: print("took", time.perf_counter() - began[0]))
            import stepwatch
            atexit.register(lambda: began.append(time.perf_counter()))
            run = stepwatch.Run("r")
            %s
        """ % code.replace("\n", "\n" + " " * 12))

    def check_quickest(self, code):
        """The best of three: what a machine that is busy with other tests adds is not ours."""
        took = []
        for _ in range(3):
            status, out, err = self.leave(code)
            self.assertEqual((status, err), (0, ""))
            took.append(float(out.split()[-1]))
        self.assertLessEqual(min(took), 0.05)

    def test_a_run_that_is_never_closed_says_goodbye(self):
        receiver = self.receiver()
        status, out, err = self.leave("run.step(1, loss=2.0)")
        self.assertEqual((status, err), (0, ""))
        bye = until(lambda: receiver.events("bye"))[0]
        self.assertEqual(receiver.steps(), [1])
        self.assertNotIn("code", bye, "how the process ends is not known here")

    def test_an_exception_that_nobody_caught(self):
        receiver = self.receiver()
        status, _, _ = self.leave("run.step(1)\nraise RuntimeError('NCCL watchdog')")
        self.assertEqual(status, 1)
        bye = until(lambda: receiver.events("bye"))[0]
        self.assertEqual((bye["code"], bye["text"]), (1, "RuntimeError: NCCL watchdog"))

    def test_a_stopped_receiver_delays_the_exit_by_50_ms_at_most(self):
        receiver = self.receiver(StoppableReceiver)
        receiver.stop()
        self.check_quickest("for i in range(5000):\n    run.step(i, loss=1.0)\n    i % 500 or time.sleep(0.01)")

    def test_no_receiver(self):
        self.check_quickest("run.step(1)")

    def test_killed_means_no_goodbye(self):
        receiver = self.receiver()
        sent = "while run._sender._taken < 1 or run._sender._outbox: time.sleep(0.001)"
        self.leave("run.step(1)\n" + sent + "\nos.kill(os.getpid(), 9)")
        until(lambda: receiver.ended)
        self.assertEqual((receiver.steps(), receiver.events("bye")), ([1], []))


if __name__ == "__main__":
    unittest.main()
