"""The DeepSpeed adapter against DeepSpeed's own engine, on the processor."""

import logging
import os
import socket
import sys
import unittest

from peers import Real, require, until

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed, torch = require("deepspeed", "torch")

import stepwatch.deepspeed  # noqa: E402

STEPS = 5


def setUpModule():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It would compile an operator in C++ for collectives between processes of one machine; there is
    # one process.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def tearDownModule():
    deepspeed.comm.destroy_process_group()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, y):
        return (self.layer(x) - y).square().mean()


class Engine(Real):
    def engine(self, accumulate=1, **more):
        model = Model()
        config = dict(train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=accumulate, gradient_clipping=1.0)
        config.update(optimizer={"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}, zero_force_ds_cpu_optimizer=False, **more)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, dist_init_required=False)
        return engine

    def train(self, engine, batches, nan_at=None):
        losses = []
        for i in range(batches):
            torch.manual_seed(i)
            x = torch.randn(4, 8)
            loss = engine(x * float("nan") if i == nan_at else x, torch.ones(4, 1))
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
        return losses

    def test_every_step_with_what_the_engine_knows(self):
        engine = self.engine()
        attached = stepwatch.deepspeed.attach(engine, name="ds", tokens_per_step=64)
        losses = self.train(engine, STEPS)
        attached.remove()
        events = self.steps(STEPS)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5])
        self.assert_losses(events, losses)
        self.assertEqual({(e["m"]["lr"], e["m"]["tokens"], e["m"]["samples"]) for e in events}, {(0.01, 64, 4)})
        self.assertTrue(all(0 <= e["t"]["data"] <= e["m"]["step_time"] for e in events[1:]))
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("ds", "deepspeed", deepspeed.__version__))
        self.assertEqual((hello["model"]["n_params"], hello["world"], hello["rank"]), (9, 1, 0))
        self.assertNotIn("forward", vars(engine))

    def test_zero_in_bfloat16_gives_the_norm(self):
        engine = self.engine(bf16={"enabled": True}, zero_optimization={"stage": 1})
        attached = stepwatch.deepspeed.attach(engine, name="ds")
        for i in range(3):
            torch.manual_seed(i)
            loss = engine(torch.randn(4, 8).bfloat16(), torch.ones(4, 1).bfloat16())
            engine.backward(loss)
            engine.step()
            self.norm = float(engine.get_global_grad_norm())
        attached.remove()
        events = self.steps(3)
        self.assertAlmostEqual(events[2]["m"]["grad_norm"], self.norm, places=5)
        self.assertEqual((self.hello()["dtype"], self.hello()["zero_stage"]), ("bfloat16", 1))

    def test_micro_batches_are_one_step_and_nan_is_nan(self):
        engine = self.engine(accumulate=2)
        attached = stepwatch.deepspeed.attach(engine)
        losses = self.train(engine, 6, nan_at=4)
        attached.remove()
        events = self.steps(3)
        self.assertEqual([e["step"] for e in events], [1, 2, 3])
        self.assert_losses(events, [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2, float("nan")])
        self.assertEqual({e["m"]["samples"] for e in events}, {8})

    def test_its_own_monitors_go_on_and_are_heard(self):
        monitor = {"enabled": True, "output_path": self.folder, "job_name": "own"}
        engine = self.engine(csv_monitor=monitor, wall_clock_breakdown=True)
        attached = stepwatch.deepspeed.attach(engine)
        self.train(engine, 3)
        engine.monitor.write_events([("Train/Samples/perplexity", 7.5, 12), ("Train/Samples/eval_loss", 1.25, 12)])
        attached.remove()
        events = self.steps(4)
        self.assertEqual({"forward", "backward", "optim"} - set(events[0]["t"]), set())
        self.assertEqual((events[3]["step"], events[3]["m"]), (3, {"perplexity": 7.5}), "steps, not samples")
        evaluation = until(lambda: self.sink.events("eval"))[0]
        self.assertEqual((evaluation["step"], evaluation["m"]), (3, {"loss": 1.25}))
        with open(os.path.join(self.folder, "own", "Train_Samples_lr.csv")) as f:
            self.assertEqual(f.read().splitlines(), ["step,lr", "4,0.01", "8,0.01", "12,0.01"])
        self.assertIsInstance(engine.monitor, deepspeed.monitor.monitor.MonitorMaster)

    def test_checkpoints_and_going_on_from_them(self):
        engine = self.engine()
        attached = stepwatch.deepspeed.attach(engine)
        self.train(engine, 2)
        engine.save_checkpoint(self.folder)
        self.train(engine, 2)
        engine.load_checkpoint(self.folder)
        self.train(engine, 1)
        attached.remove()
        self.bye()
        self.assertEqual([e["step"] for e in self.sink.events("step")], [1, 2, 3, 4, 3])
        events = self.sink.events("ckpt")
        self.assertEqual([(e["phase"], e["step"]) for e in events], [("start", 2), ("end", 2)])
        self.assertEqual(events[1]["path"], os.path.join(self.folder, "global_step2"))
        self.assertTrue(os.path.isdir(events[1]["path"]))

    def test_installed_it_attaches_to_every_engine(self):
        before = deepspeed.initialize
        self.addCleanup(setattr, deepspeed, "initialize", before)
        self.assertTrue(stepwatch.deepspeed.install(name="auto"))
        engine = self.engine()
        self.train(engine, 2)
        engine.destroy()
        self.assertEqual(self.bye()["code"], 0)
        self.assertEqual(([e["step"] for e in self.sink.events("step")], self.hello()["run"]), ([1, 2], "auto"))


if __name__ == "__main__":
    unittest.main()
