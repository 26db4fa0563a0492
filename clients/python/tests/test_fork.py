"""A forked child is not its parent: it never writes to the parent's connection, and does not keep
it open."""

import os
import signal
import unittest

from support import Case, until


@unittest.skipUnless(hasattr(os, "fork"), "no fork on this system")
class Fork(Case):
    def test_a_child_that_reports_nothing_stays_silent(self):
        receiver = self.receiver()
        status, out, err = self.script("""
            import os, sys, stepwatch
            with stepwatch.Run("r") as run:
                run.step(1)
                pid = os.fork()
                if pid == 0:
                    sys.exit(0)  # through the with block and atexit: neither may say goodbye
                os.waitpid(pid, 0)
                run.step(2)
        """)
        self.assertEqual((status, err), (0, ""))
        until(lambda: receiver.events("bye"))
        self.assertEqual((receiver.accepted, receiver.steps(), len(receiver.events("bye"))), (1, [1, 2], 1))

    def test_a_child_that_reports_has_a_connection_of_its_own(self):
        receiver = self.receiver()
        status, out, err = self.script("""
            import os, sys, time, stepwatch
            run = stepwatch.Run("r")
            for i in range(100):
                run.step(i)  # some of it still in the queue when we fork
            pid = os.fork()
            if pid == 0:
                for i in range(1000, 1003):
                    run.step(i)
                run.close()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            run.step(100)
            run.close()
            print(os.getpid(), pid)
        """)
        self.assertEqual((status, err), (0, ""))
        parent, child = map(int, out.split())
        until(lambda: len(receiver.ended) == 2)
        by_pid = {receiver.events("hello", n)[0]["pid"]: n for n in (0, 1)}
        self.assertEqual(receiver.steps(by_pid[parent]), list(range(101)))
        self.assertEqual(receiver.steps(by_pid[child]), [1000, 1001, 1002])
        self.assertEqual(len(receiver.events("bye")), 2)

    def test_the_death_of_the_parent_is_seen_while_a_child_lives(self):
        receiver = self.receiver()
        status, out, err = self.script("""
            import os, signal, sys, time, stepwatch
            run = stepwatch.Run("r")
            run.step(1)
            while run._sender._taken < 1 or run._sender._outbox:
                time.sleep(0.001)
            pid = os.fork()
            if pid == 0:  # a data-loading worker
                os.close(1)
                os.close(2)
                time.sleep(60)
                os._exit(0)
            print(pid, flush=True)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
        worker = int(out)
        try:
            until(lambda: receiver.ended, "end of file")
            os.kill(worker, 0)  # it lives
        finally:
            os.kill(worker, signal.SIGKILL)

    def test_forking_all_the_time_neither_hangs_nor_mixes_up_packets(self):
        receiver = self.receiver()
        status, out, err = self.script("""
            import os, sys, stepwatch
            with stepwatch.Run("r") as run:
                for i in range(40):
                    run.step(i, loss=1.0)
                    pid = os.fork()
                    if pid == 0:
                        run.step(10000 + i)
                        os._exit(0)
                    assert os.waitpid(pid, 0)[1] == 0
        """)
        self.assertEqual((status, err), (0, ""))
        until(lambda: receiver.events("bye"))
        self.assertEqual(receiver.steps(0), list(range(40)))

    def test_a_run_that_was_closed_stays_closed_in_a_child(self):
        receiver = self.receiver()
        status, out, err = self.script("""
            import os, stepwatch
            with stepwatch.Run("r") as run:
                run.step(1)
            pid = os.fork()
            if pid == 0:
                run.step(2)
                os._exit(run._sender.running)
            assert os.waitpid(pid, 0)[1] == 0
        """)
        self.assertEqual((status, err), (0, ""))
        until(lambda: receiver.ended)
        self.assertEqual((receiver.accepted, receiver.steps()), (1, [1]))

    def test_multiprocessing_workers_report_to_the_end(self):
        receiver = self.receiver()
        for method in ("fork", "spawn"):
            path = os.path.join(self.folder, method + ".py")
            with open(path, "w") as f:
                f.write(WORKERS % method)
            before = len(receiver.events("bye"))
            status, out, err = self.program(path)
            self.assertEqual((status, err), (0, ""), method)
            until(lambda: len(receiver.events("bye")) == before + 2, "goodbyes of the workers")
        self.assertEqual(sorted(receiver.steps()), [7, 7, 7, 7])


WORKERS = """
import multiprocessing
import stepwatch

def work(rank):
    run = stepwatch.Run("r", rank=rank, world=2)
    run.step(7)

if __name__ == "__main__":
    context = multiprocessing.get_context("%s")
    workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


if __name__ == "__main__":
    unittest.main()
