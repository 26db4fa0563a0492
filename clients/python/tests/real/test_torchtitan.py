"""The torchtitan adapter against torchtitan's own structured log and metrics, on the processor.

Its trainer wants an accelerator; what is driven here is what its trainer calls, in its order:
``init_structured_logger`` with the variable set, the spans of a step, and ``MetricsProcessor``,
whose one look at the accelerator, for its memory, is answered by a stand-in.
"""

import glob
import json
import os
import types
import unittest
from unittest import mock

from peers import Real, require

torchtitan, torch, metrics = require("torchtitan", "torch", "torchtitan.components.metrics")

from torchtitan.observability import structured_logger as sl  # noqa: E402
from torchtitan.observability.structured_logger import structured_logging  # noqa: E402

import stepwatch.torchtitan as adapter  # noqa: E402

Space = types.SimpleNamespace


class Memory:
    device_name = "a processor"

    def reset_peak_stats(self):
        pass

    def get_peak_stats(self):
        return metrics.DeviceMemStats(1.0, 10.0, 2.0, 20.0, 0, 0)


class Training(Real):
    def setUp(self):
        super().setUp()
        self.set_env(TITAN_STRUCT_LOGGER_HANDLERS="stepwatch.torchtitan.register", STEPWATCH_RUN="titan")
        for patch in (
            mock.patch.object(metrics, "build_device_memory_monitor", Memory),
            mock.patch.object(structured_logging, "_is_initialized", False),
            mock.patch.object(adapter, "_shared", adapter._Shared()),
            mock.patch.object(metrics.MetricsProcessor, "_build_metric_logger", metrics.MetricsProcessor._build_metric_logger),
            mock.patch.object(metrics.MetricsProcessor, "close", metrics.MetricsProcessor.close),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(structured_logging._structured_logger.handlers.clear)

    def start(self, source="training"):
        sl.init_structured_logger(source=source, output_dir=self.folder, rank=0)

    def processor(self, **config):
        parallel = Space(pp_enabled=False, non_data_parallel_size=1, world_size=1, pp=1)
        built = metrics.MetricsProcessor.Config(log_freq=2, disable_color_printing=True, **config).build(parallel_dims=parallel)
        built.num_flops_per_token, built.gpu_peak_flops = 1000, 1e9
        return built

    def train(self, processor, steps, fail_at=None, save_at=None, evaluate_at=None):
        """What ``Trainer.train`` and ``train_step`` do, as far as it is visible from outside."""
        sl.log_trace_instant("training_start")
        seen = 0
        for step in range(1, steps + 1):
            sl.set_step(step, relative_step=step)
            with sl.log_trace_span("step"):
                with sl.log_trace_span("fetching_batch"):
                    processor.ntokens_since_last_log += 64
                    processor.data_loading_times.append(0.001)
                    seen += 64
                sl.log_trace_scalar({"local_valid_tokens": 64})
                with sl.log_trace_span("fwd_bwd"):
                    with sl.log_trace_span("inner"):
                        torch.ones(64, 64) @ torch.ones(64, 64)
                with sl.log_trace_span("optim"):
                    pass
                if step == fail_at:
                    raise RuntimeError("Loss is not finite (global_avg_loss=nan) at step %d. Stopping training." % step)
                if processor.should_log(step):
                    processor.log(step, 3.0 / step, 4.0 / step, 0.5, extra_metrics={"n_tokens_seen": seen, "lr": 0.01})
                with sl.log_trace_span("checkpoint_save"):
                    if step == save_at:
                        sl.add_step_tag("checkpoint_save")
                if step == evaluate_at:
                    with sl.log_trace_span("eval"):
                        processor.log_validation(1.25, step)

    def test_one_variable_gives_every_step_of_every_rank_and_what_is_logged(self):
        self.start()
        processor = self.processor()
        self.train(processor, 4)
        processor.close()
        events = self.steps(4)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4])
        self.assertEqual([e["m"].get("loss") for e in events], [3.0, 1.5, None, 0.75])
        self.assertEqual([(e["m"]["grad_norm"], e["m"]["lr"]) for e in events if "loss" in e["m"]], [(0.5, 0.01)] * 3)
        self.assertEqual([e["m"].get("tokens") for e in events], [64, 64, None, 64])
        for e in events:
            self.assertEqual(set(e["t"]), {"data", "fwd_bwd", "optim"})
            self.assertLessEqual(sum(e["t"].values()), e["m"]["step_time"] + 0.001)
        m = events[3]["m"]
        self.assertAlmostEqual(m["mfu_reported"], m["tokens_per_second_per_gpu"] * 1000 / 1e9, places=6)
        self.assertEqual(m["memory_max_reserved_bytes"], 2 * 2**30)
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("titan", "torchtitan", torchtitan.__version__))

    def test_the_log_that_the_variable_would_switch_off_is_kept(self):
        self.start()
        self.train(self.processor(), 1)
        path, = glob.glob(os.path.join(self.folder, "structured_logs", "training.global_rank_0.*.jsonl"))
        with open(path) as f:
            names = [json.loads(line)["log_type_name"] for line in f]
        self.assertIn("fwd_bwd_end", names)

    def test_a_list_of_handlers_is_what_it_says(self):
        self.set_env(TITAN_STRUCT_LOGGER_HANDLERS="stepwatch.torchtitan.register, stepwatch.torchtitan.register")
        self.start()
        self.assertEqual(glob.glob(os.path.join(self.folder, "structured_logs", "*")), [])

    def test_generators_of_reinforcement_learning_are_no_ranks(self):
        self.start(source="generator")
        self.assertIsNone(adapter._shared.training)

    def test_a_loss_that_is_not_finite_is_published_although_torchtitan_stops_before_it_logs_it(self):
        self.start()
        processor = self.processor()
        try:
            self.train(processor, 4, fail_at=2)
        except RuntimeError:
            processor.close()  # as its ``main`` does
        bye = self.bye()
        self.assertEqual(bye["code"], 1)
        self.assertIn("Loss is not finite", bye["text"])
        events = self.steps(2)
        self.assertEqual([(e["step"], str(e["m"]["loss"])) for e in events], [(1, "3.0"), (2, "nan")])
        event = self.sink.events("event")[0]
        self.assertEqual((event["name"], event["level"], event["step"]), ("step_error", "error", 2))

    def test_evaluations_and_checkpoints(self):
        self.start()
        processor = self.processor()
        self.train(processor, 3, save_at=2, evaluate_at=3)
        processor.close()
        self.bye()
        events = self.sink.events("ckpt")
        self.assertEqual([(e["phase"], e["step"]) for e in events], [("end", 2)])
        evaluation = self.sink.events("eval")[0]
        self.assertEqual((evaluation["name"], evaluation["step"], evaluation["m"]), ("validation", 3, {"loss": 1.25}))
        self.assertEqual([(e["name"], e["phase"]) for e in self.sink.events("phase")], [("eval", "begin"), ("eval", "end")])

    def test_tensorboard_goes_on_beside_us(self):
        init = dict(backend="gloo", init_method="file://%s/store" % self.folder, rank=0, world_size=1)
        torch.distributed.init_process_group(**init)
        self.addCleanup(torch.distributed.destroy_process_group)
        self.start()
        processor = self.processor(enable_tensorboard=True)
        self.assertEqual(processor.logger.number_of_loggers, 2)
        self.train(processor, 2)
        processor.close()
        self.assertEqual([e["m"]["loss"] for e in self.steps(2)], [3.0, 1.5])
        self.assertTrue(glob.glob("outputs/tb/*/events.out.tfevents.*"))

    def test_without_a_structured_log_steps_are_those_that_are_logged(self):
        container = metrics.LoggerContainer()
        container.add_logger(adapter.StepwatchLogger(name="fork"))
        processor = self.processor()
        processor.logger = container
        for step in (1, 2, 3, 4):
            processor.ntokens_since_last_log += 64
            processor.data_loading_times.append(0.001)
            if processor.should_log(step):
                processor.log(step, 3.0 / step, 4.0, 0.5, {"n_tokens_seen": 64 * step})
        processor.close()
        events = self.steps(3)
        self.assertEqual([(e["step"], e["m"]["loss"]) for e in events], [(1, 3.0), (2, 1.5), (4, 0.75)])
        self.assertEqual(self.bye()["code"], 0)


if __name__ == "__main__":
    unittest.main()
