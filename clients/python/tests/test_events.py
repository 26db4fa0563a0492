import decimal
import fractions
import os
import time
import unittest

from support import Case, until

import stepwatch
from stepwatch import _wire


class HostileFloat:
    def __float__(self):
        raise RuntimeError("no")


class HostileEverything:
    """Raises whatever is asked of it."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError("str")

    __repr__ = __float__ = __int__ = __bool__ = __hash__ = __len__ = __str__


class Scalar:
    """As a NumPy scalar or a tensor in host memory."""

    def __init__(self, value, device=None):
        self._value = value
        if device is not None:
            self.device = device
        self.reads = 0

    def item(self):
        self.reads += 1
        return self._value


class Device:
    def __init__(self, kind):
        self.type = kind

    def __str__(self):
        return self.type + ":0"


class Steps(Case):
    def test_the_contract(self):
        receiver = self.receiver()
        run = self.run_("llama-70b", rank=3, world=512)
        before = time.time()
        run.step(12345, loss=2.3456, grad_norm=0.87, lr=3e-4, tokens=4194304, mine=1.5)
        event = until(lambda: receiver.events("step"))[0]
        self.assertLess(abs(event.pop("ts") - before), 1.0)
        m = {"loss": 2.3456, "grad_norm": 0.87, "lr": 3e-4, "tokens": 4194304, "mine": 1.5}
        self.assertEqual(event, {"v": 1, "k": "step", "run": "llama-70b", "rank": 3, "world": 512, "step": 12345, "m": m})

    def test_nan_and_infinities_go_out_bare(self):
        receiver = self.receiver()
        self.run_().step(1, loss=float("nan"), a=float("inf"), b=float("-inf"), c=Scalar(float("nan")))
        until(lambda: receiver.events("step"))
        packet = receiver.packets[-1][1]
        self.assertIn(b'"m":{"loss":NaN,"a":Infinity,"b":-Infinity,"c":NaN}', packet)

    def test_step_time_is_the_time_between_calls_and_absent_at_first(self):
        receiver = self.receiver()
        run = self.run_()
        times = []
        for i in range(3):
            times.append(time.monotonic())
            run.step(i)
            time.sleep(0.03)  # the step
        run.step(3, step_time=4.5)
        until(lambda: len(receiver.events("step")) == 4)
        got = [e["m"].get("step_time") for e in receiver.events("step")]
        self.assertIsNone(got[0])
        self.assertAlmostEqual(got[1], times[1] - times[0], delta=0.01)
        self.assertAlmostEqual(got[2], times[2] - times[1], delta=0.01)
        self.assertEqual(got[3], 4.5)

    def test_phases_become_t_of_the_step_they_are_in(self):
        receiver = self.receiver()
        run = self.run_()
        for _ in range(2):
            with run.phase("data"):
                time.sleep(0.005)
        run.step(1, t={"optim": 0.25})
        run.step(2)
        until(lambda: len(receiver.events("step")) == 2)
        first, second = receiver.events("step")
        self.assertGreaterEqual(first["t"]["data"], 0.01)
        self.assertEqual(first["t"]["optim"], 0.25)
        self.assertNotIn("t", second)
        self.assertEqual(receiver.events("phase"), [], "parts of a step are not announced")

    def test_odd_numbers(self):
        receiver = self.receiver()
        run = self.run_()
        values = dict(
            a=True, b=decimal.Decimal("1.5"), c=fractions.Fraction(1, 4), d="2.5", e=Scalar(7.0), f=Scalar(8.0, Device("cpu")),
            g=None, h=10**400, i=-(10**400), j=Scalar(9.0, "cpu"), k=2**70,
        )
        run.step(Scalar(5), **values)
        event = until(lambda: receiver.events("step"))[0]
        self.assertEqual(event["step"], 5)
        want = {"a": 1, "b": 1.5, "c": 0.25, "d": 2.5, "e": 7.0, "f": 8.0, "h": float("inf"), "i": float("-inf"), "j": 9.0}
        want["k"] = 2.0**70
        self.assertEqual(event["m"], want)

    def test_a_tensor_on_a_device_is_never_read(self):
        receiver = self.receiver()
        run = self.run_()
        for kind in ("cuda", "mps", "xla"):
            loss = Scalar(1.0, Device(kind))
            with self.assertLogs("stepwatch", "WARNING") as logs:
                run.step(1, **{"loss_" + kind: loss})
                until(lambda: logs.output)
            self.assertIn("StepReporter", logs.output[0])
            self.assertEqual(loss.reads, 0)
        until(lambda: len(receiver.events("step")) == 3)
        self.assertFalse(any(name.startswith("loss") for e in receiver.events("step") for name in e["m"]))

    def test_hostile_values_cost_only_themselves(self):
        receiver = self.receiver()
        run = self.run_()
        with self.assertLogs("stepwatch", "WARNING") as logs:
            for i in range(3):
                run.step(i, loss=2.0, bad=HostileFloat(), worse=HostileEverything(), odd=[1, 2], text="no number", obj=object())
            until(lambda: len(receiver.events("step")) == 3)
        self.assertEqual(receiver.events("step")[0]["m"], {"loss": 2.0})
        self.assertEqual(len(logs.output), 5, "once a metric, not once a step")

    def test_hostile_steps_are_left_out_and_counted(self):
        receiver = self.receiver()
        run = self.run_()
        for step in (None, "x", float("nan"), float("inf"), 1.5, HostileFloat(), HostileEverything(), 2**60, [1]):
            run.step(step, loss=1.0)
        run.step(10)
        until(lambda: receiver.steps() == [10])
        self.assertEqual(run.dropped, 9)

    def test_nothing_else_raises_either(self):
        receiver = self.receiver()
        run = self.run_()
        bad = HostileEverything()
        with self.assertLogs("stepwatch", "WARNING"):
            run.eval(bad, bad, bad, bad)
            run.eval("v", loss=bad)
            run.event(bad, text=bad, extra=bad)
            run.event()
            run.describe(bad)
            run.describe(model=bad, git="abc")
            with run.phase(bad):
                pass
            with run.phase():
                pass
            with run.checkpoint(bad, path=bad, bytes=bad) as c:
                c.bytes = bad
            with run.checkpoint(1, 2, 3, 4, 5):
                pass
            run.checkpoint(bad, bad)
            run.step(1)
            until(lambda: receiver.steps() == [1])

    def test_a_run_made_from_nonsense_reports_all_the_same(self):
        receiver = self.receiver()
        nonsense = [{"rank": "x"}, {"world": object()}, {"rank": -5}, {"model": HostileEverything()}, {"job": [1]}, {"tp": object()}]
        nonsense += [{"heartbeat": None}, {"queue_limit": "many"}, {"queue_limit": -1}, {"heartbeat": float("nan")}]
        with self.assertLogs("stepwatch", "WARNING"):
            for i, options in enumerate(nonsense):
                run = self.run_(**options)
                run.step(i)
                until(lambda: receiver.steps()[-1:] == [i], "a step of %r" % list(options))
                run.close()

    def test_an_upload_is_not_of_the_step_that_the_run_is_at(self):
        receiver = self.receiver()
        run = self.run_()
        run.step(7, loss=1.0)
        with run.checkpoint(stage="upload"):
            pass
        with run.checkpoint(5, stage="durable"):
            pass
        with run.checkpoint():
            pass
        until(lambda: receiver.events("ckpt")[5:])
        known = [(e.get("stage"), e["phase"], e.get("step")) for e in receiver.events("ckpt")]
        wanted = [("upload", None), ("durable", 5), (None, 7)]
        self.assertEqual(known, [(stage, phase, step) for stage, step in wanted for phase in ("start", "end")])

    def test_8_kib(self):
        receiver = self.receiver()
        run = self.run_("x" * 5000, git="\u20ac" * 9000, note={"k%d" % i: "v" * 300 for i in range(200)})
        run.step(1, loss=1.0, **{"metric_%s_%d" % ("y" * 100, i): i for i in range(1000)})
        run.event("name" * 1000, text="\u20ac" * 100000, a="b" * 5000, lone="\ud800")
        run.checkpoint(1, path="/" + "p" * 100000, bytes=1)
        until(lambda: receiver.events("ckpt"))
        self.assertTrue(all(len(packet) <= _wire.MAX_EVENT_BYTES for _, packet in receiver.packets))
        self.assertEqual({e["k"] for e in receiver.events()}, {"hello", "step", "event", "ckpt"})
        step = receiver.events("step")[0]
        self.assertEqual((step["m"]["loss"], len(step["run"])), (1.0, 256))
        self.assertLessEqual(len(step["m"]), _wire.MAX_METRICS)
        self.assertEqual(run.dropped, 0)


class Others(Case):
    def test_hello(self):
        receiver = self.receiver()
        model = {"n_params": 7e10, "layers": 80}
        self.run_("r", world=8, rank=2, local_rank=2, job="j1", model=model, dtype="bfloat16", tp=8, git="abc", framework="x", version="2")
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertEqual((hello["pid"], hello["model"], hello["dtype"]), (os.getpid(), model, "bfloat16"))
        self.assertEqual((hello["job"], hello["local_rank"], hello["tp"], hello["git"]), ("j1", 2, 8, "abc"))
        self.assertEqual((hello["framework"], hello["version"]), ("x", "2"))
        self.assertIn("hostname", hello)
        self.assertEqual(hello["client"], "stepwatch-python/" + stepwatch.__version__)

    def test_what_the_user_adds_cannot_take_the_place_of_the_contract(self):
        receiver = self.receiver()
        run = self.run_("r", step="x", name_="y", k="z", code="w")
        run.event("e", k="step", m=5, ts="never", fine=1)
        event = until(lambda: receiver.events("event"))[0]
        self.assertEqual((event["k"], event["fine"]), ("event", 1))
        self.assertNotIn("m", event)
        hello = receiver.events("hello")[0]
        self.assertNotIn("step", hello)
        self.assertNotIn("code", hello)

    def test_describe_says_hello_again(self):
        receiver = self.receiver()
        run = self.run_()
        until(lambda: receiver.events("hello"))
        run.describe(model={"n_params": 5})
        run.step(1)
        until(lambda: receiver.steps() == [1])
        self.assertEqual(until(lambda: receiver.events("hello")[1:])[0]["model"], {"n_params": 5})

    def test_eval_and_event_belong_to_the_last_step(self):
        receiver = self.receiver()
        run = self.run_()
        run.step(7, loss=1.0)
        run.eval("val", loss=2.5, acc=0.5)
        run.event("lr_changed", "halved", level="warning", by="me")
        event = until(lambda: receiver.events("event"))[0]
        self.assertEqual({k: event[k] for k in ("step", "name", "text", "level", "by")},
                         {"step": 7, "name": "lr_changed", "text": "halved", "level": "warning", "by": "me"})
        evaluation = receiver.events("eval")[0]
        self.assertEqual((evaluation["name"], evaluation["step"], evaluation["m"]), ("val", 7, {"loss": 2.5, "acc": 0.5}))

    def test_a_planned_restart_is_announced(self):
        receiver = self.receiver()
        run = self.run_()
        run.step(7, loss=1.0)
        run.maintenance(600, "new kernel")
        event = until(lambda: receiver.events("event"))[0]
        self.assertEqual({k: event[k] for k in ("name", "text", "seconds")},
                         {"name": "maintenance", "text": "new kernel", "seconds": 600})

    def test_a_phase_that_holds_up_training_is_announced_when_it_begins(self):
        receiver = self.receiver()
        run = self.run_()
        run.step(4)
        with run.phase("compile"):
            began = until(lambda: receiver.events("phase"))
            self.assertEqual((began[0]["name"], began[0]["phase"], began[0]["step"]), ("compile", "begin", 4))
        run.step(5)
        until(lambda: len(receiver.events("step")) == 2)
        ended = receiver.events("phase")[1]
        self.assertEqual((ended["phase"], ended["seconds"] > 0), ("end", True))
        self.assertNotIn("t", receiver.events("step")[1], "once is enough")

    def test_heartbeats_say_which_step_and_where(self):
        receiver = self.receiver()
        run = self.run_(heartbeat=0.05)
        run.step(41)
        with run.phase("allreduce"):
            beats = until(lambda: [e for e in receiver.events("hb") if e.get("in_phase")])
        self.assertEqual((beats[0]["step"], beats[0]["in_phase"]), (41, "allreduce"))
        self.assertGreaterEqual(beats[0]["step_age"], 0)
        self.assertGreaterEqual(beats[0]["phase_age"], 0)

    def test_disabled(self):
        receiver = self.receiver()
        os.environ["STEPWATCH_DISABLED"] = "1"
        try:
            run = self.run_()
        finally:
            del os.environ["STEPWATCH_DISABLED"]
        with run, run.phase("ckpt"), run.checkpoint(1):
            run.step(1, loss=1.0)
            run.eval("v")
        self.assertEqual((receiver.accepted, len(run._sender.queue), run._sender._thread), (0, 0, None))


class Checkpoints(Case):
    def kinds(self, receiver):
        return [(e["phase"], e["step"]) for e in receiver.events("ckpt")]

    def test_in_one_call(self):
        receiver = self.receiver()
        run = self.run_()
        run.checkpoint(500, path="/c/500", bytes=123, sharded=True)
        run.step(501)
        end = until(lambda: receiver.events("ckpt"))[0]
        self.assertEqual((end["phase"], end["step"], end["path"], end["bytes"], end["sharded"]), ("end", 500, "/c/500", 123, True))

    def test_with(self):
        receiver = self.receiver()
        run = self.run_()
        with run.checkpoint(500, path="/c/500") as c:
            until(lambda: self.kinds(receiver) == [("start", 500)])
            c.bytes = 77
        until(lambda: len(self.kinds(receiver)) == 2)
        run.step(501)
        until(lambda: receiver.steps() == [501])
        self.assertEqual(self.kinds(receiver), [("start", 500), ("end", 500)])
        self.assertEqual(receiver.events("ckpt")[1]["bytes"], 77)
        self.assertGreater(receiver.events("ckpt")[1]["seconds"], 0)
        self.assertIn("ckpt", receiver.events("step")[0]["t"])

    def test_failure(self):
        receiver = self.receiver()
        run = self.run_()
        with self.assertRaises(OSError):
            with run.checkpoint(500, path="/c/500"):
                raise OSError("disk full")
        until(lambda: self.kinds(receiver) == [("start", 500), ("fail", 500)])
        self.assertIn("disk full", receiver.events("ckpt")[1]["text"])

    def test_the_size_is_found_out(self):
        for name, size in (("a", 1000), (os.path.join("shards", "b"), 24)):
            path = os.path.join(self.folder, "ckpt", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(b"x" * size)
        receiver = self.receiver()
        run = self.run_()
        run.checkpoint(1, path=os.path.join(self.folder, "ckpt"))
        with run.checkpoint(2, path=os.path.join(self.folder, "ckpt", "a")):
            pass
        run.checkpoint(3, path=os.path.join(self.folder, "nowhere"))
        until(lambda: len(receiver.events("ckpt")) == 4)
        sizes = {e["step"]: e.get("bytes") for e in receiver.events("ckpt") if e["phase"] == "end"}
        self.assertEqual(sizes, {1: 1024, 2: 1000, 3: None})

    def test_those_that_are_still_open_leave_with_the_goodbye(self):
        receiver = self.receiver()
        run = self.run_()
        until(lambda: receiver.events("hello"))
        run.checkpoint(1, bytes=5)
        until(lambda: run._sender._aside)
        run.checkpoint(2, path=__file__)
        run.close()
        until(lambda: receiver.events("bye"))
        self.assertEqual(self.kinds(receiver), [("end", 1), ("end", 2)])
        self.assertEqual(receiver.events()[-1]["k"], "bye")


class Goodbyes(Case):
    def bye(self, error):
        receiver = self.receiver()
        try:
            with self.run_() as run:
                run.step(9)
                if error is not None:
                    raise error
        except BaseException as e:
            self.assertIs(e, error)
        event = until(lambda: receiver.events("bye"))[0]
        receiver.close()
        return event

    def test_codes(self):
        for error, code in (
            (None, 0), (SystemExit(), 0), (SystemExit(3), 3), (SystemExit("why"), 1), (KeyboardInterrupt(), 130), (ValueError("x"), 1),
        ):
            self.assertEqual(self.bye(error)["code"], code, repr(error))

    def test_the_exception_is_named(self):
        event = self.bye(RuntimeError("CUDA error: device-side assert " + "x" * 5000))
        self.assertTrue(event["text"].startswith("RuntimeError: CUDA error"))
        self.assertLessEqual(len(event["text"]), 256)
        self.assertEqual(event["step"], 9)

    def test_an_exception_that_cannot_be_printed(self):
        class Odd(Exception):
            __str__ = HostileEverything.__str__

        self.assertEqual(self.bye(Odd())["text"], "Odd")

    def test_nothing_follows_the_goodbye(self):
        """Also when the thread looks after the goodbye is said and before it is marked as the
        last."""
        receiver = self.receiver()
        run = self.run_()
        sender, work, finish, looks = run._sender, run._sender._work, run._sender.finish, []

        def finish_late():
            before = len(looks)
            sender._rouse()
            until(lambda: len(looks) > before + 1 or not sender._thread.is_alive())
            finish()

        sender._work, sender.finish = lambda: looks.append(work()) or looks[-1], finish_late
        run.checkpoint(1)
        run.close()
        until(lambda: receiver.ended)
        self.assertEqual([e["k"] for e in receiver.events()], ["hello", "ckpt", "bye"])

    def test_steps_after_the_end_go_nowhere(self):
        receiver = self.receiver()
        run = self.run_()
        run.step(1)
        run.close()
        until(lambda: receiver.events("bye"))
        run._sender._thread.join(5)
        for i in range(3000):
            run.step(i)
        run.close()
        self.assertEqual((receiver.steps(), len(run._sender.queue)), ([1], 0))


if __name__ == "__main__":
    unittest.main()
