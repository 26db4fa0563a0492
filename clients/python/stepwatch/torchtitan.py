"""For torchtitan: one environment variable, and no code at all.

    export TITAN_STRUCT_LOGGER_HANDLERS=stepwatch.torchtitan.register

torchtitan calls ``register`` when it sets up its structured log. Every rank then reports every step
with the time it spent in each part of it, evaluations, checkpoints and what broke; the rank that
logs reports loss, gradient norm and throughput at every ``log_freq`` steps, and no TensorBoard has
to be switched on for that. The structured log itself, which the variable would switch off, is kept.

In a fork that has no structured log, call ``stepwatch.torchtitan.install()`` before the trainer is
made, or give its logger container a ``StepwatchLogger()``: steps are then those that are logged.
"""

import importlib
import logging
import os
import re
import sys
from typing import Any, Callable, Dict, List, Optional

from ._adapter import Training, quiet
from ._run import Phase, Run, _describe, _exit_code
from .torch import in_flight

try:
    from torchtitan.components.metrics import BaseLogger
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    BaseLogger = object

_METRICS = "torchtitan.components.metrics"
_OURS = __name__ + ".register"
_THEIRS = "torchtitan.observability.structured_logger.jsonl_handler.register_jsonl_handler"
#: Processes that train. Those of reinforcement learning that generate or score have ranks of their
#: own that start at 0, too.
_SOURCES = ("training", "trainer")

#: What torchtitan calls them, what the wire does, and the divisor to base units.
_NAMES = {
    "loss_metrics/global_avg_loss": ("loss", 1.0),
    "loss_metrics/global_max_loss": ("loss_max", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "throughput(tps)": ("tokens_per_second_per_gpu", 1.0),
    "tflops": ("tflops_reported", 1.0),
    "mfu(%)": ("mfu_reported", 100.0),
    "lr": ("lr", 1.0),
    "memory/num_alloc_retries": ("num_alloc_retries", 1.0),
    "memory/num_ooms": ("num_ooms", 1.0),
    "memory/max_reserved(GiB)": ("memory_max_reserved_bytes", 1 / 2.0**30),
    "memory/max_active(GiB)": ("memory_max_active_bytes", 1 / 2.0**30),
}
#: In the step itself, or in a number that is there already.
_LEFT_OUT = ("time_metrics/", "memory/", "validation_metrics/")
_LR = re.compile(r"^(?:lr|learning_rate)\b")
_EVAL_LOSS = "validation_metrics/loss"

#: Spans that keep the next step waiting, and are announced.
_PHASES = ("eval", "checkpoint_load", "torch_distributed_init", "model_parallelism_init", "torch_distributed_teardown")
#: Parts of a step by the names that others have for them.
_PARTS = {"fetching_batch": "data", "gc_collect": "gc"}
_CHECKPOINT = "checkpoint_save"
#: Seconds: the span of a checkpoint is there at every step, and where nothing was saved it takes
#: less.
_CHECKPOINT_SECONDS = 1.0
#: The text with which torchtitan logs that the data is over, which is no failure.
_EXHAUSTED = "DataloaderExhausted"
#: It stops at a loss that is not finite, before it logs it.
_NOT_FINITE = re.compile(r"global_avg_loss=(-?(?:nan|inf))", re.IGNORECASE)
#: Spans within spans.
_MAX_DEPTH = 32


class StepwatchLogger(BaseLogger):  # type: ignore[misc]
    """What is logged: for ``LoggerContainer.add_logger``. Reports to ``run``, or to the one run of
    this process."""

    def __init__(self, run: Optional[Run] = None, name: Optional[str] = None, **about: Any) -> None:
        super().__init__()
        if name is not None:
            about["name"] = name
        own = run is not None or bool(about) or _shared.training is None
        self._training = Training(run, about, in_flight()) if own else _shared.training
        self._spans = None if own else _shared.spans
        self._tokens: Optional[int] = None
        self._step: Optional[int] = None

    @quiet
    def log(self, metrics: Dict[str, Any], step: int) -> None:
        training = self._training
        if training is None:
            return
        if training.run is None:
            _begin(training)
        if _EVAL_LOSS in metrics:
            training.evaluation("validation", step, {"loss": metrics[_EVAL_LOSS]})
            return
        found = self._step_metrics(metrics, step)
        if self._spans is not None:
            self._spans.metrics.update(found)  # the step that it belongs to is not over yet
        else:
            seconds = metrics.get("time_metrics/end_to_end(s)")
            training.step(step, dict(found, step_time=seconds) if seconds is not None and self._step is not None else found)
        self._step = step

    def _step_metrics(self, metrics: Dict[str, Any], step: int) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for name, value in metrics.items():
            if name in _NAMES:
                ours, divisor = _NAMES[name]
                found[ours] = value if divisor == 1.0 else value / divisor
            elif _LR.match(name):
                found.setdefault("lr", value)
            elif not name.startswith(_LEFT_OUT) and name != "n_tokens_seen":
                found[name] = value
        tokens, before = metrics.get("n_tokens_seen"), self._tokens
        self._tokens = tokens
        if tokens is not None:
            if before is not None and self._step is not None and step > self._step:
                found["tokens"] = (tokens - before) / (step - self._step)
            elif step == 1:
                found["tokens"] = tokens
        return found

    @quiet
    def close(self) -> None:
        """Called when training is over, and when it failed, then with the exception still at
        hand."""
        if self._training is not None:
            _end(self._training)


class _Spans(logging.Handler):
    """The structured log of this rank: spans that begin and end, the innermost last."""

    def __init__(self, training: Training) -> None:
        super().__init__(logging.INFO)
        self.metrics: Dict[str, Any] = {}
        self._training = training
        self._names: List[str] = []
        #: The part of the step that goes on: also what a heartbeat contains while it hangs.
        self._part: Optional[Phase] = None
        self._reset()

    def _reset(self) -> None:
        self._leave(timed=False)
        self._apart = 0.0
        self._failed = False
        self.metrics = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            name = str(getattr(record, "log_type_name", None) or "")
            if getattr(record, "task_name", None) is not None:
                return  # spans of tasks that run at the same time do not nest
            for end, take in (("_start", self._start), ("_end", self._end), ("_error", self._error)):
                if name.endswith(end):
                    take(name[: -len(end)], record)
        except Exception:
            pass

    def _start(self, name: str, _: logging.LogRecord) -> None:
        if name == "step":
            del self._names[:]
            self._reset()
        run = self._training.run
        if name in _PHASES:
            self._training.pause(name)
        elif self._names == ["step"] and run is not None:
            self._leave(timed=False)
            self._part = run.phase(_PARTS.get(name, name), announce=False).__enter__()
        if len(self._names) < _MAX_DEPTH:
            self._names.append(name)

    def _end(self, name: str, record: logging.LogRecord) -> None:
        if name not in self._names:
            return
        del self._names[len(self._names) - 1 - self._names[::-1].index(name) :]
        seconds = float(getattr(record, "value", None) or 0.0) / 1000.0
        directly = self._names == ["step"]
        saved = name == _CHECKPOINT and (_saved() or seconds >= _CHECKPOINT_SECONDS)
        if directly:
            self._leave(timed=name != _CHECKPOINT)
            self._apart += seconds if saved or name in _PHASES else 0.0
        if name in _PHASES:
            self._training.resume()
        elif saved:
            self._checkpoint(record, seconds)
        elif name == "step":
            self._step(record, seconds)

    def _leave(self, timed: bool) -> None:
        part, self._part = self._part, None
        if part is not None and self._training.run is not None:
            self._training.run.leave(part, timed=timed)

    def _step(self, record: logging.LogRecord, seconds: float) -> None:
        step = getattr(record, "step", None)
        if self._failed or step is None:
            return
        self.metrics.setdefault("step_time", round(max(0.0, seconds - self._apart), 6))
        self._training.step(step, self.metrics)

    def _checkpoint(self, record: logging.LogRecord, seconds: float) -> None:
        run = self._training.run
        if run is None:
            return
        # With asynchronous checkpointing it ends here when the copy is staged; then it is written
        # behind the training.
        if self._failed:
            run.checkpoint(getattr(record, "step", None)).fail("it ended in an exception")
        else:
            run.checkpoint(getattr(record, "step", None), seconds=round(seconds, 6))

    def _error(self, name: str, record: logging.LogRecord) -> None:
        """An exception passes through every span that is open; it is published once."""
        if self._failed:
            return
        self._failed, run = True, self._training.run
        text = record.getMessage().split("_error: ", 1)[-1]
        if run is None:
            return
        step = getattr(record, "step", None)
        if _EXHAUSTED in text:
            run.event("dataloader_exhausted", text, level="info", step=step)
            return
        loss = _NOT_FINITE.search(text)
        if loss is not None:
            self._training.add(step, {"loss": float(loss.group(1))})
        run.event(name + "_error", text, level="error", step=step)


class _Shared:
    """The one run of this process: the structured log and the loggers both report to it."""

    training: Optional[Training] = None
    spans: Optional[_Spans] = None


_shared = _Shared()


def register(structured_logger: Any = None, rank: Optional[int] = None, source: str = "", output_dir: str = "", **more: Any) -> None:
    """The factory for ``TITAN_STRUCT_LOGGER_HANDLERS``; torchtitan calls it once in every
    process."""
    quiet(_keep_theirs)(structured_logger, rank, source, output_dir, more)
    if source in _SOURCES:
        quiet(_register)(structured_logger, rank)


def _keep_theirs(structured_logger: Any, rank: Any, source: str, output_dir: str, more: Dict[str, Any]) -> None:
    """The variable replaces torchtitan's own handler. Several names are taken exactly as they
    are."""
    named = [name.strip() for name in os.environ.get("TITAN_STRUCT_LOGGER_HANDLERS", "").split(",") if name.strip()]
    if named == [_OURS]:
        module, factory = _THEIRS.rsplit(".", 1)
        own = getattr(importlib.import_module(module), factory)
        own(structured_logger=structured_logger, rank=rank, source=source, output_dir=output_dir, **more)


def _register(structured_logger: Any, rank: Optional[int]) -> None:
    if _shared.spans is None:
        training = Training(None, {}, in_flight())
        _begin(training, rank)
        _shared.training, _shared.spans = training, _Spans(training)
    structured_logger.addHandler(_shared.spans)
    install()


def install() -> bool:
    """Has every ``MetricsProcessor`` that is made from now on log to us, too, on the rank that
    logs. Returns whether it could."""
    try:
        module = importlib.import_module(_METRICS)
        processor = module.MetricsProcessor
        if not hasattr(processor._build_metric_logger, "stepwatch"):
            processor._build_metric_logger = _with_logger(module, processor._build_metric_logger)
            processor.close = _with_end(processor.close)
        return True
    except Exception:
        logging.getLogger("stepwatch").warning("stepwatch: torchtitan's metrics are not as expected: no loss is reported", exc_info=True)
        return False


def _with_logger(module: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        built = inner(self, *args, **kwargs)
        try:
            if _logs_here(module, kwargs):
                container = built
                if not hasattr(built, "add_logger"):
                    container = module.LoggerContainer()
                    if type(built) is not module.BaseLogger:
                        container.add_logger(built)
                container.add_logger(StepwatchLogger())
                return container
        except Exception:
            logging.getLogger("stepwatch").debug("stepwatch: no loss is reported", exc_info=True)
        return built

    build.stepwatch = True  # type: ignore[attr-defined]
    return build


def _logs_here(module: Any, options: Dict[str, Any]) -> bool:
    """Whether this rank has the loss: with pipeline parallelism most others do not."""
    dist: Any = sys.modules.get("torch.distributed")
    rank = dist.get_rank() if dist is not None and dist.is_initialized() else 0
    here = module._get_metrics_rank(parallel_dims=options["parallel_dims"], pp_schedule=options.get("pp_schedule", "1F1B"))
    return bool(rank == here)


def _with_end(inner: Callable[..., Any]) -> Callable[..., Any]:
    def close(self: Any) -> Any:
        if _shared.training is not None:
            quiet(_end)(_shared.training)
        return inner(self)

    return close


def _begin(training: Training, rank: Optional[int] = None) -> None:
    titan: Any = sys.modules.get("torchtitan")
    training.begin(rank=rank, framework="torchtitan", version=getattr(titan, "__version__", None))


def _end(training: Training) -> None:
    error = sys.exc_info()[1]
    if error is None:
        training.end()
    else:
        training.end(_exit_code(type(error), error), _describe(type(error), error))


def _saved() -> bool:
    """Whether torchtitan has marked this step as one that is saved."""
    state: Any = sys.modules.get("torchtitan.observability.structured_logger.step_state")
    return state is not None and _CHECKPOINT in state.get_step_tags()
