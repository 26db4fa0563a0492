"""The stages of a checkpoint: in a block, by calls of their own, and from several threads."""

import os
import threading
import unittest

from support import Case, until


class Stages(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        self.run_one = self.run_()

    def events(self, count):
        return until(lambda: self.sink.events("ckpt")[count - 1 :] and self.sink.events("ckpt"), "%d events" % count)

    def words(self, count):
        return [(e.get("stage"), e["phase"], e.get("step")) for e in self.events(count)]

    def file(self, name, size=10):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(b"x" * size)
        return path

    def test_one_checkpoint_through_all_of_them(self):
        run = self.run_one
        run.step(7, loss=1.0)
        with run.checkpoint(path=self.file("c", 33), stage="save") as save:
            pass
        write = save.then("write").start()
        run.step(8, loss=1.0)
        thread = threading.Thread(target=lambda: write.end(bytes=11))
        thread.start()
        thread.join()
        save.then("upload").end()
        save.then("durable").end()
        events = {(e.get("stage"), e["phase"]): e for e in self.events(6)}
        stages = [(None, "start"), (None, "end"), ("write", "start"), ("write", "end"), ("upload", "end"), ("durable", "end")]
        self.assertEqual(set(events), set(stages))
        self.assertEqual({e["step"] for e in events.values()}, {7}, "the step of the save, although the run went on")
        self.assertEqual({e["path"] for e in events.values()}, {save.path})
        sizes = [events[stage].get("bytes") for stage in stages]
        self.assertEqual(sizes, [None, None, None, 11, 33, 33], "a save with more to come is not measured")
        self.assertTrue(events["write", "end"]["seconds"] > 0)
        self.assertNotIn("seconds", events["durable", "end"])

    def test_what_goes_on_behind_the_training_is_no_part_of_a_step(self):
        run = self.run_one
        with run.checkpoint(1, stage="write"), run.checkpoint(1, stage="upload"):
            self.assertEqual(run._open, [])
        with run.checkpoint(stage="load") as load:
            self.assertEqual([block.name for block in run._open], ["load"])
            load.step = 40
        with run.checkpoint(1, stage="save"):
            self.assertEqual([block.name for block in run._open], ["ckpt"])
        run.step(2)
        until(self.sink.steps)
        self.assertEqual(set(self.sink.events("step")[0]["t"]), {"ckpt"})
        self.assertEqual([e.get("step") for e in self.events(8) if e.get("stage") == "load"], [None, 40])

    def test_the_first_word_on_how_it_ended_counts(self):
        run = self.run_one
        with run.checkpoint(1, stage="save") as save:
            save.fail("the disk is full")
        upload = run.checkpoint(2, stage="upload").start()
        threads = [threading.Thread(target=end) for end in [upload.end, upload.fail] * 8]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.checkpoint(3, stage="write").fail(OSError("no space left on device"))
        run.event("last")
        until(lambda: self.sink.events("event"))
        self.assertEqual([(e["step"], e["phase"]) for e in self.sink.events("ckpt") if e["step"] != 2], [(1, "start"), (1, "fail"), (3, "fail")])
        self.assertEqual(len([e for e in self.sink.events("ckpt") if e["step"] == 2]), 2)
        self.assertEqual(self.sink.events("ckpt")[-1]["text"], "OSError: no space left on device")

    def test_a_block_that_raises_fails_its_stage_and_raises(self):
        with self.assertRaises(OSError):
            with self.run_one.checkpoint(5, stage="upload"):
                raise OSError("reset by peer")
        self.assertEqual(self.words(2), [("upload", "start", 5), ("upload", "fail", 5)])

    def test_no_step_is_filled_in_where_it_could_be_wrong(self):
        run = self.run_one
        run.step(7)
        for stage in ("write", "upload", "durable", "load"):
            run.checkpoint(stage=stage).start().end()
            run.checkpoint("no step", stage=stage).end()
        self.assertEqual({e.get("step") for e in self.events(12)}, {None})

    def test_the_step_is_the_one_that_the_run_was_at(self):
        """The size is found out while the next steps are made."""
        run = self.run_one
        run.step(7)
        with run.checkpoint(path=self.file("c")):
            pass
        for step in range(8, 60):
            run.step(step)
        self.assertEqual(self.words(2), [(None, "start", 7), (None, "end", 7)])

    def test_a_stage_that_does_not_exist_is_said_so(self):
        with self.assertLogs("stepwatch", "WARNING") as logs:
            with self.run_one.checkpoint(1, stage="commit") as nothing:
                nothing.then("write").start().end(bytes=1)
            self.run_one.checkpoint(2, stage="save").then("commit").start().fail()
        self.assertEqual(len(logs.output), 2)
        self.assertIn("save, write, upload, durable, load", logs.output[0])

    def test_nothing_raises_whatever_is_given(self):
        class Bad:
            def __str__(self):
                raise RuntimeError("no text")

            __fspath__ = __int__ = __float__ = __str__

        for stage in ("save", "write", "durable"):
            checkpoint = self.run_one.checkpoint(Bad(), path=Bad(), bytes=Bad(), stage=stage)
            checkpoint.start().fail(Bad())
            checkpoint.then("upload").end(bytes=Bad())
        self.run_one.checkpoint(9, stage="write").start()
        self.assertIn(("write", "start", 9), until(lambda: self.words(1)[-1:] == [("write", "start", 9)] and self.words(1)))


if __name__ == "__main__":
    unittest.main()
