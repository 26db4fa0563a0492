"""SIGTERM becomes a goodbye, and is still what the process dies of."""

import signal
import unittest

from support import Case, until

KILL = """
    import ctypes, os, signal, sys, threading, time, stepwatch
    me = os.getpid()
    %s
    with stepwatch.Run("r") as run:
        run.step(1)
        while run._sender._taken < 1 or run._sender._outbox:
            time.sleep(0.001)
        %s
    print("went on", flush=True)
"""
TERM = "os.kill(me, signal.SIGTERM); time.sleep(30)"


class Sigterm(Case):
    def killed(self, before, during, **environment):
        receiver = self.receiver()
        status, out, err = self.script(KILL % (before, during), **environment)
        self.assertEqual(err, "")
        until(lambda: receiver.accepted and len(receiver.ended) == receiver.accepted)
        return status, out, [(e.get("code"), e.get("text")) for e in receiver.events("bye")]

    def test_a_goodbye_and_then_death(self):
        self.assertEqual(self.killed("pass", TERM), (-signal.SIGTERM, "", [(143, "SIGTERM")]))

    def test_also_while_the_main_thread_is_stuck_in_c_code(self):
        # pthread_join of a thread that sleeps goes on after a signal, as a hung collective does,
        # and Python never gets to run.
        stuck = "threading.Timer(0.1, os.kill, (me, signal.SIGTERM)).start(); L = ctypes.CDLL(None); m = ctypes.create_string_buffer(64);" \
            " L.pthread_mutex_lock(m); L.pthread_mutex_lock(m)"
        self.assertEqual(self.killed("pass", stuck), (-signal.SIGTERM, "", [(143, "SIGTERM")]))

    def test_a_handler_that_was_there_stays(self):
        mine = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
        self.assertEqual(self.killed(mine, TERM)[::2], (5, [(5, "SystemExit: 5")]))

    def test_a_handler_that_comes_later_decides(self):
        later = "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True)); os.kill(me, signal.SIGTERM); time.sleep(0.5)"
        self.assertEqual(self.killed("pass", later), (0, "mine\nwent on\n", [(0, None)]))

    def test_it_can_be_turned_off(self):
        self.assertEqual(self.killed("pass", TERM, STEPWATCH_NO_SIGNAL="1"), (-signal.SIGTERM, "", []))

    def test_a_run_of_another_thread_changes_nothing(self):
        code = "t = threading.Thread(target=stepwatch.Run, args=('x',)); t.start(); t.join(); assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL"
        self.assertEqual(self.killed(code, TERM)[0], -signal.SIGTERM)

    def test_a_killed_child_is_not_its_parent(self):
        fork = "pid = os.fork(); pid or (time.sleep(30), os._exit(9)); os.kill(pid, signal.SIGTERM); print(os.waitpid(pid, 0)[1]); time.sleep(0.4)"
        self.assertEqual(self.killed("pass", fork), (0, "15\nwent on\n", [(0, None)]))


if __name__ == "__main__":
    unittest.main()
