"""The torchtitan adapter without torchtitan: a stand-in with the interface of its 0.3.0, called in
its trainer's order."""

import contextlib
import logging
import sys
import types
import unittest
from unittest import mock

from support import Case, until

import stepwatch.torchtitan as adapter

Space = types.SimpleNamespace
METRICS = "torchtitan.components.metrics"


class BaseLogger:
    def log(self, metrics, step):
        pass

    def close(self):
        pass


class LoggerContainer(BaseLogger):
    def __init__(self):
        self._loggers = []

    def add_logger(self, logger):
        self._loggers.append(logger)

    def log(self, metrics, step):
        for logger in self._loggers:
            logger.log(metrics, step)

    def close(self):
        for logger in self._loggers:
            logger.close()


def stand_in(rank):
    """``torchtitan.components.metrics``, whose ``rank`` logs."""

    class MetricsProcessor:
        def __init__(self):
            self.logger = self._build_metric_logger(config=None, parallel_dims=Space(), pp_schedule="1F1B")

        def _build_metric_logger(self, *, config, parallel_dims, pp_schedule):
            return BaseLogger()

        def close(self):
            self.logger.close()

    return Space(
        BaseLogger=BaseLogger, LoggerContainer=LoggerContainer, MetricsProcessor=MetricsProcessor, _get_metrics_rank=lambda *, parallel_dims, pp_schedule: rank
    )


class Titan(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        self.logger = logging.getLogger("test.torchtitan.structured")
        self.logger.propagate, self.tags = False, ()
        self.logger.setLevel(logging.INFO)
        self.addCleanup(self.logger.handlers.clear)
        state = Space(get_step_tags=lambda: self.tags)
        modules = {METRICS: stand_in(0), "torchtitan.observability.structured_logger.step_state": state}
        environment = {"STEPWATCH_SOCKET": self.path, "STEPWATCH_RUN": "titan", "TITAN_STRUCT_LOGGER_HANDLERS": "mine.register,stepwatch.torchtitan.register"}
        for patch in (mock.patch.dict(sys.modules, modules), mock.patch.dict("os.environ", environment), mock.patch.object(adapter, "_shared", adapter._Shared())):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(lambda: adapter._shared.training and adapter._shared.training.end())

    def start(self, rank=0):
        adapter.register(structured_logger=self.logger, rank=rank, source="training", output_dir=self.folder)
        return sys.modules[METRICS].MetricsProcessor()

    @contextlib.contextmanager
    def span(self, name, step, ms=10.0, task=None):
        def log(kind, message="", value=None):
            self.logger.info(message, extra={"log_type_name": name + kind, "step": step, "value": value, "task_name": task})

        log("_start")
        try:
            yield
        except Exception as e:
            log("_error", "[step %s] %s_error: %s: %s" % (step, name, type(e).__name__, e))
            raise
        finally:
            log("_end", value=ms)

    def step(self, step, *parts, **logged):
        with self.span("step", step, 100.0):
            for part in parts:
                with self.span(part, step):
                    pass
            if logged:
                logged.pop("processor").logger.log(logged, step)

    def steps(self, count):
        return until(lambda: len(self.sink.events("step")) >= count and self.sink.events("step"))

    def test_steps_with_their_parts_and_what_was_logged(self):
        processor = self.start()
        self.step(1, "fetching_batch", "fetching_batch", "fwd_bwd", "optim", processor=processor, **{"loss_metrics/global_avg_loss": 3.0, "mfu(%)": 40.0})
        self.step(2, "fetching_batch", "fwd_bwd")
        processor.close()
        one, two = self.steps(2)
        self.assertEqual((one["m"]["loss"], one["m"]["mfu_reported"], one["m"]["step_time"]), (3.0, 0.4, 0.1))
        self.assertEqual((set(one["t"]), set(two["t"])), ({"data", "fwd_bwd", "optim"}, {"data", "fwd_bwd"}))
        self.assertNotIn("loss", two["m"])
        self.assertEqual(until(lambda: self.sink.events("bye"))[0]["code"], 0)

    def test_with_pipelines_only_the_rank_that_knows_the_loss_logs_it(self):
        sys.modules[METRICS] = stand_in(6)
        processor = self.start(rank=0)
        self.assertIs(type(processor.logger), BaseLogger)
        self.step(1, "fwd_bwd")
        self.assertEqual(self.steps(1)[0]["rank"], 0)

    def test_a_step_that_broke_is_no_step(self):
        processor = self.start()
        with contextlib.suppress(RuntimeError):
            with self.span("step", 7):
                with self.span("fwd_bwd", 7):
                    raise RuntimeError("CUDA error: device-side assert")
        with contextlib.suppress(StopIteration):
            with self.span("step", 8):
                raise StopIteration("DataloaderExhaustedError")
        processor.close()
        until(lambda: self.sink.events("bye"))
        events = [(e["name"], e["level"], e["step"], e["text"]) for e in self.sink.events("event")]
        self.assertEqual(events[0], ("fwd_bwd_error", "error", 7, "RuntimeError: CUDA error: device-side assert"))
        self.assertEqual(events[1][:2], ("dataloader_exhausted", "info"))
        self.assertEqual((len(events), self.sink.events("step")), (2, []), "it passes through every span and is published once")

    def test_checkpoints_are_those_that_are_marked_or_took_long(self):
        processor = self.start()
        for step, tags, ms in ((1, (), 0.1), (2, ("checkpoint_save",), 50.0), (3, (), 5000.0)):
            with self.span("step", step, ms + 20.0):
                with self.span("checkpoint_save", step, ms):
                    self.tags = tags
        processor.close()
        until(lambda: self.sink.events("bye"))
        self.assertEqual([(e["step"], e["phase"], e["seconds"]) for e in self.sink.events("ckpt")], [(2, "end", 0.05), (3, "end", 5.0)])
        self.assertEqual([e["m"]["step_time"] for e in self.steps(3)], [0.0201, 0.02, 0.02])

    def test_spans_of_tasks_do_not_nest_and_are_left_out(self):
        self.start()
        with self.span("step", 1):
            with self.span("rl_rollout", 1, task="Task-1"):
                pass
        self.assertNotIn("t", self.steps(1)[0])

    def test_records_that_are_none_of_these(self):
        self.start()
        for extra in ({}, {"log_type_name": None}, {"log_type_name": 7, "step": "x"}, {"log_type_name": "step_end", "value": "x", "step": object()}):
            self.logger.info("text", extra=extra)
        self.step(1, "fwd_bwd")
        self.assertEqual([e["step"] for e in self.steps(1)], [1])


if __name__ == "__main__":
    unittest.main()
