"""The Megatron-LM adapter against a stand-in: a module of its functions with the signatures of its
main branch of 2026, which calls them as its ``train`` does. It is in no package, so this is all
that can be had of it without a GPU and a checkout."""

import copy
import os
import pickle
import sys
import textwrap
import types
import unittest
from unittest import mock

from support import Case, until
from test_torch import FakeTorch, Stream, Tensor

import stepwatch.megatron as adapter

Space = types.SimpleNamespace

MODULE = """
    import types
    args = types.SimpleNamespace(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=128, padded_vocab_size=1000,
                                 tensor_model_parallel_size=2, bf16=True, fp16=False, fp8=None, save="/save", load=None, curr_iteration=None)
    losses, logged, saved = [], [], []
    checkpointing = None

    def get_args():
        return args

    def num_floating_point_operations(args, batch_size):
        return 128.0 * 6e9 * batch_size

    def training_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report_memory_flag, skipped_iter, grad_norm,
                     params_norm, num_zeros_in_grad, max_attention_logit, pg_collection=None, is_first_iteration=False):
        logged.append((dict(loss_dict), iteration))
        loss_dict.clear()
        return report_memory_flag

    def evaluate(forward_step_func, data_iterator, model, process_non_loss_data_func, config, verbose=False, non_loss_data_func=None):
        return {"lm loss": 2.5}, None, False

    def evaluate_and_print_results(prefix, forward_step_func, data_iterator, model, iteration, process_non_loss_data_func, config, verbose=False):
        evaluate(forward_step_func, data_iterator, model, process_non_loss_data_func, config, verbose)

    def save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, checkpointing_context,
                                 non_persistent_ckpt=False, train_data_iterator=None):
        if iteration in saved:
            raise OSError("no space left on device")
        saved.append(iteration)
        if checkpointing is not None:
            checkpointing.save_checkpoint()

    def maybe_finalize_async_save(blocking=False, terminate=False):
        checkpointing.finalize()

    def load_checkpoint(model, optimizer, opt_param_scheduler):
        if args.load == "/broken":
            raise OSError("stale file handle")
        return (1200, 0) if args.load else (0, 0)

    def train(forward_step_func, model, optimizer, iterations=4, fail=None):
        flag = True
        for iteration in range(1, iterations + 1):
            if iteration == fail:
                raise ValueError("bad shard 17")
            skipped = int(iteration == 3)
            loss = {} if skipped else {"lm loss": losses.pop(0), "load_balancing_loss": 0.5}
            args.curr_iteration = iteration
            flag = training_log(loss, {}, 0.01, iteration, 4096.0, flag, skipped, 0.5, None, None, None, is_first_iteration=iteration == 1)
            if iteration == 2:
                evaluate_and_print_results("iteration 2 on validation set", None, None, model, iteration, None, None)
                save_checkpoint_and_time(iteration, model, optimizer, None, 0.0, {})
        return iterations, 0
"""


CHECKPOINTING = """
    class AsyncRequest:
        def __init__(self):
            self.finalize_fns = []

        def add_finalize_fn(self, fn):
            self.finalize_fns.append(fn)

    scheduled, finalized, error = [], [], None

    def schedule_async_save(async_request):
        scheduled.append(async_request)

    def save_checkpoint():
        request = AsyncRequest()
        request.add_finalize_fn(lambda: finalized.append("metadata"))
        request.add_finalize_fn(lambda: finalized.append("latest"))
        schedule_async_save(request)

    def finalize():
        for fn in scheduled.pop(0).finalize_fns:
            if error is not None:
                raise error
            fn()
"""


class Megatron(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        self.module = types.ModuleType("megatron.training.training")
        exec(textwrap.dedent(MODULE), vars(self.module))
        calculator = Space(get_current_global_batch_size=lambda: 16)
        names = {"megatron": Space(), "megatron.training": Space(training=self.module), "megatron.training.training": self.module,
                 "megatron.core.num_microbatches_calculator": calculator}
        for patch in (mock.patch.dict(sys.modules, names), mock.patch.dict("os.environ", {"STEPWATCH_SOCKET": self.path})):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(adapter.uninstall)

    def steps(self, count):
        return until(lambda: len(self.sink.events("step")) >= count and self.sink.events("step"))

    def test_every_iteration(self):
        self.module.losses[:] = [3.0, 2.0, 1.0]
        before = self.module.training_log
        self.assertTrue(adapter.install(name="gpt"))
        self.assertTrue(adapter.install(), "a second time changes nothing")
        self.assertEqual(self.module.train(None, [], None), (4, 0))
        adapter.uninstall()
        self.assertIs(self.module.training_log, before)
        events = self.steps(4)
        self.assertEqual([e["m"].get("loss") for e in events], [3.0, 2.0, None, 1.0])
        self.assertEqual([e["m"].get("skipped") for e in events], [None, None, 1, None])
        for e in events:
            self.assertEqual((e["m"]["lr"], e["m"]["grad_norm"], e["m"]["loss_scale"]), (0.01, 0.5, 4096.0))
            self.assertEqual((e["m"]["samples"], e["m"]["tokens"]), (16, 2048))
        self.assertEqual(events[0]["m"]["load_balancing_loss"], 0.5)
        self.assertEqual(self.module.logged[0], ({"lm loss": 3.0, "load_balancing_loss": 0.5}, 1), "Megatron's own log has what it had")
        self.assertEqual(until(lambda: self.sink.events("bye"))[0]["code"], 0)
        evaluation = self.sink.events("eval")[0]
        self.assertEqual((evaluation["name"], evaluation["step"], evaluation["m"]), ("validation", 2, {"loss": 2.5}))
        checkpoint = self.sink.events("ckpt")
        self.assertEqual([(e["phase"], e["step"], e["path"]) for e in checkpoint], [(p, 2, "/save/iter_0000002") for p in ("start", "end")])
        hello = self.sink.events("hello")[-1]
        self.assertEqual((hello["run"], hello["framework"], hello["dtype"], hello["tp"]), ("gpt", "megatron", "bfloat16", 2))
        self.assertEqual((hello["flops_per_token"], hello["convention"]), (6e9, "megatron"))
        self.assertEqual((hello["model"]["layers"], hello["model"]["vocab"]), (2, 1000))

    def folder_with_a_checkpoint(self):
        with open(os.path.join(self.folder, "latest_checkpointed_iteration.txt"), "w") as f:
            f.write("1200")
        return self.folder

    def asynchronous(self, **options):
        """A module that writes behind the training, after a save of step 300."""
        checkpointing = types.ModuleType("megatron.training.checkpointing")
        exec(textwrap.dedent(CHECKPOINTING), vars(checkpointing))
        self.module.checkpointing = checkpointing
        patch = mock.patch.dict(sys.modules, {"megatron.training.checkpointing": checkpointing})
        patch.start()
        self.addCleanup(patch.stop)
        before = dict(vars(checkpointing))
        adapter.install(name="gpt")
        self.module.load_checkpoint([], None, None)
        self.module.save_checkpoint_and_time(300, [], None, None, 0.0, {}, **options)
        self.module.args.curr_iteration = 310
        return checkpointing, before

    def stages(self):
        return [(e.get("stage", "save"), e["phase"], e.get("step"), e.get("path")) for e in self.sink.events("ckpt")]

    def test_a_checkpoint_that_is_written_behind_the_training(self):
        self.module.args.load = load = self.folder_with_a_checkpoint()
        checkpointing, before = self.asynchronous()
        path = "/save/iter_0000300"
        first = [("load", "start", None, load), ("load", "end", 1200, load), ("save", "start", 300, path), ("save", "end", 300, path)]
        until(lambda: self.stages() == first + [("write", "start", 300, path)])
        self.module.maybe_finalize_async_save()
        self.assertEqual(checkpointing.finalized, ["metadata", "latest"])
        until(lambda: self.stages()[5:] == [("write", "end", 300, path), ("durable", "end", 300, path)])
        adapter.uninstall()
        self.assertEqual(vars(checkpointing), before)

    def test_one_whose_writing_fails(self):
        checkpointing, _ = self.asynchronous()
        checkpointing.error = OSError("no space left on device")
        with self.assertRaises(OSError) as raised:
            self.module.maybe_finalize_async_save(blocking=True)
        self.assertIs(raised.exception, checkpointing.error)
        last = until(lambda: self.sink.events("ckpt")[3:])[0]
        self.assertEqual((last["stage"], last["phase"], last["step"], last["text"]), ("write", "fail", 300, "OSError: no space left on device"))

    def test_a_load_that_fails(self):
        adapter.install(name="gpt")
        self.module.args.load = "/broken"
        with self.assertRaises(OSError):
            self.module.load_checkpoint([], None, None)
        until(lambda: self.stages() == [("load", "fail", None, "/broken")])

    def test_a_run_that_starts_afresh_loads_nothing(self):
        adapter.install(name="gpt")
        self.module.args.load = self.folder
        with mock.patch.dict(self.module.load_checkpoint.stepwatch.__globals__, {"args": Space(load=None)}):
            self.assertEqual(self.module.load_checkpoint([], None, None), (0, 0))
        self.assertEqual(self.module.load_checkpoint([], None, None), (1200, 0), "from a checkpoint that its node kept")
        self.module.train(None, [], None, iterations=0)
        until(lambda: self.stages() == [("load", "end", 1200, self.folder)])
        self.assertGreaterEqual(self.sink.events("ckpt")[0]["seconds"], 0.0)

    def test_a_checkpoint_of_each_node_is_never_durable(self):
        self.asynchronous(non_persistent_ckpt=True)
        self.module.maybe_finalize_async_save()
        self.module.checkpointing = None
        self.module.save_checkpoint_and_time(301, [], None, None, 0.0, {}, True)
        self.module.save_checkpoint_and_time(302, [], None, None, 0.0, {}, False)
        stages = [("save", "start", 300), ("save", "end", 300), ("write", "start", 300), ("write", "end", 300), ("save", "start", 301),
                  ("save", "end", 301)]  # fmt: skip
        until(lambda: len(self.stages()) == 8)
        self.assertEqual(self.stages()[:6], [(*stage, None) for stage in stages])
        self.assertEqual({stage[3] for stage in self.stages()[6:]}, {"/save/iter_0000302"})

    def test_where_the_argument_is_that_says_so(self):
        def fork(iteration, model, ema, non_persistent_ckpt=False):
            pass

        def wrapper(*args, **kwargs):
            pass

        for function, args, kwargs, local in (
            (fork, (1, 2, 3, True), {}, True), (fork, (1, 2, 3), {}, False), (fork, (1, 2, 3), {"non_persistent_ckpt": True}, True),
            (wrapper, (1,), {"non_persistent_ckpt": True}, True), (wrapper, (1, 2, 3, True), {}, False),
            (fork, (1,), {"non_persistent_ckpt": True}, True), (None, (), {}, False),
        ):  # fmt: skip
            self.assertIs(adapter._local(function, args, kwargs), local)

    def test_the_callback_is_copied_and_pickled_after_a_save(self):
        callback = adapter.StepwatchCallback(run=self.run_())
        self.module.checkpointing = None
        with callback._megatron.saving(4, "/save"):
            pass
        request = Space(add_finalize_fn=lambda fn: None)
        callback._megatron.scheduled(lambda request: None, request)
        for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
            self.assertEqual((copied._training.run, copied._megatron._written), (None, []))
            self.assertIs(copied._training, copied._megatron.training)
        self.assertEqual(len(callback._megatron._written), 1)

    def test_a_loss_on_its_device_is_never_waited_for(self):
        stream = Stream()
        self.module.losses[:] = [Tensor(3.0, stream=stream), Tensor(2.0, stream=stream)]
        with mock.patch.dict(sys.modules, {"torch": FakeTorch(stream)}):
            adapter.install()
            self.module.train(None, [], None, iterations=2)
            self.assertEqual((stream.waits, self.sink.events("step")), (0, []))
            stream.done = True
            adapter.uninstall()
        self.assertEqual([e["step"] for e in self.steps(2)], [1, 2])
        self.assertEqual(stream.waits, 0)

    def test_an_exception_is_the_last_word_and_a_checkpoint_that_failed_is_published(self):
        self.module.losses[:] = [3.0, 2.0]
        self.module.saved.append(2)
        adapter.install()
        with self.assertRaises(OSError):
            self.module.train(None, [], None)
        bye = until(lambda: self.sink.events("bye"))[0]
        self.assertEqual((bye["code"], bye["text"]), (1, "OSError: no space left on device"))
        self.assertEqual([e["phase"] for e in self.sink.events("ckpt")], ["start", "fail"])

    def test_other_arguments_than_expected_cost_the_report_and_not_the_run(self):
        adapter.install()
        self.assertIs(self.module.training_log({"lm loss": 1.0}, {}, None, "one", None, True, 0, None, None, None, None), True)
        with self.assertRaises(TypeError):
            self.module.training_log()

    def test_where_there_is_no_megatron(self):
        with mock.patch.dict(sys.modules, {"megatron.training.training": None}), mock.patch("sys.stderr"):
            self.assertFalse(adapter.install())

    def test_a_script_is_run_with_the_adapter(self):
        package = os.path.join(self.folder, "megatron", "training")
        os.makedirs(package)
        for path, text in (
            ("megatron/__init__.py", ""), ("megatron/training/__init__.py", ""), ("megatron/training/training.py", textwrap.dedent(MODULE)),
            ("pretrain_gpt.py", "import sys\nfrom megatron.training import training\ntraining.losses[:] = [3.0, 2.0, 1.0]\n"
             "if __name__ == '__main__':\n    training.train(None, [], None, fail=int(sys.argv[1]))\n"),
        ):  # fmt: skip
            with open(os.path.join(self.folder, path), "w") as f:
                f.write(text)
        script = os.path.join(self.folder, "pretrain_gpt.py")
        code, _, err = self.program("-m", "stepwatch.megatron", script, "9")
        self.assertEqual(code, 0, err)
        self.assertEqual([e["step"] for e in self.steps(4)], [1, 2, 3, 4])
        self.assertEqual(until(lambda: self.sink.events("bye"))[0]["code"], 0)
        code, _, err = self.program("-m", "stepwatch.megatron", script, "3")
        self.assertEqual(code, 1)
        self.assertIn("ValueError: bad shard 17", err)
        bye = until(lambda: self.sink.events("bye")[1:])[0]
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))


if __name__ == "__main__":
    unittest.main()
