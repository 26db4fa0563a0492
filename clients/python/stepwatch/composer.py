"""For MosaicML Composer and llm-foundry: a logger destination.

    from stepwatch.composer import StepwatchLogger
    Trainer(..., loggers=[StepwatchLogger()])

A step is a batch, numbered as ``state.timestamp.batch`` when it is done. Composer has waited for
the device to know the loss already, so every step has it, with the tokens of the whole job, and
with what callbacks log: ``OptimizerMonitor(batch_log_interval=1)`` gives the gradient norm.
"""

import re
import sys
from typing import Any, Dict, List, Optional

from ._adapter import Saving, Training, dtype_of, quiet
from ._run import Run
from .torch import describe_model, in_flight

try:
    from composer.loggers import LoggerDestination
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    LoggerDestination = object

#: What Composer calls them, and what the wire does.
_NAMES = {
    "loss/train/total": "loss",
    "l2_norm/grad/global": "grad_norm",
    "throughput/device/mfu": "mfu",
}
#: Counters that are in the step itself.
_LEFT_OUT = "time/"
#: Metrics of one step that no detector uses; more are left out. A monitor of the optimizer
#: logs several for each layer.
MAX_LOGGED = 128


class StepwatchLogger(LoggerDestination):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own that is named after the Trainer's and ends with
    ``fit``."""

    def __init__(self, run: Optional[Run] = None, name: Optional[str] = None, **about: Any) -> None:
        super().__init__()
        if name is not None:
            about["name"] = name
        self._training = Training(run, about, in_flight())
        self._taps: List[Saving] = []
        self._fitted = False
        #: Results of the evaluation that is going on, None while training.
        self._results: Optional[Dict[str, Any]] = None
        self._reset()

    def _reset(self) -> None:
        self._metrics: Dict[str, Any] = {}
        self._lr: Any = None

    # -- begin and end -----------------------------------------------------------------------------

    @quiet
    def fit_start(self, state: Any, logger: Any) -> None:
        composer: Any = sys.modules.get("composer")
        dist: Any = sys.modules.get("composer.utils.dist")
        about = describe_model(state.model)
        about.update(framework="composer", version=getattr(composer, "__version__", None))
        about["dtype"] = dtype_of(state.precision) or about["dtype"]
        if dist is not None:
            about.update(world=dist.get_world_size(), rank=dist.get_global_rank(), local_rank=dist.get_local_rank())
        self._training.begin(name=_given(state.run_name), **about)
        self._fitted = False
        self._reset()
        for callback in state.callbacks:
            if hasattr(callback, "saved_checkpoints") and hasattr(callback, "_save_checkpoint"):
                self._watch(callback)

    @quiet
    def fit_end(self, state: Any, logger: Any) -> None:
        self._fitted = True
        if state.evaluators:
            self._training.pause("fit_end")  # they may be about to run once more
        else:
            self._end()

    @quiet
    def close(self, state: Any, logger: Any) -> None:
        """Called when the process ends, too: where training has not, the end of the process has the
        reason."""
        if self._fitted:
            self._end()

    def _end(self) -> None:
        self._remove_taps()
        self._training.end()

    def _remove_taps(self) -> None:
        while self._taps:
            self._taps.pop().remove()

    # -- steps -------------------------------------------------------------------------------------

    @quiet
    def before_dataloader(self, state: Any, logger: Any) -> None:
        self._training.resume()
        self._training.wait()

    @quiet
    def after_dataloader(self, state: Any, logger: Any) -> None:
        self._training.got()

    @quiet
    def batch_start(self, state: Any, logger: Any) -> None:
        self._training.resume()
        self._training.got()
        # The rate that the step is made with: the scheduler moves on before the batch ends.
        self._lr = state.optimizers[0].param_groups[0].get("lr") if state.optimizers else None

    @quiet
    def log_metrics(self, metrics: Dict[str, Any], step: Optional[int] = None) -> None:
        if self._results is not None:
            for name, value in metrics.items():
                if name.startswith("metrics/"):
                    self._results[name.split("/", 2)[-1]] = value
            return
        for name, value in metrics.items():
            if name in _NAMES:
                self._metrics[_NAMES[name]] = value
            elif not name.startswith(_LEFT_OUT) and len(self._metrics) < MAX_LOGGED:
                self._metrics[name] = value

    @quiet
    def batch_end(self, state: Any, logger: Any) -> None:
        """After the callbacks', so that what they logged is there."""
        metrics, lr = self._metrics, self._lr
        self._reset()
        metrics["lr"] = lr
        tokens = int(state.timestamp.token) - int(state.previous_timestamp.token)
        if tokens > 0:
            metrics.setdefault("tokens", tokens)
        metrics.setdefault("samples", int(state.timestamp.sample) - int(state.previous_timestamp.sample))
        self._training.step(int(state.timestamp.batch), metrics)

    # -- evaluations and checkpoints ---------------------------------------------------------------

    @quiet
    def eval_before_all(self, state: Any, logger: Any) -> None:
        self._training.pause("eval")

    @quiet
    def eval_start(self, state: Any, logger: Any) -> None:
        self._training.pause("eval")
        self._results = {}

    @quiet
    def eval_end(self, state: Any, logger: Any) -> None:
        results, self._results = self._results, None
        self._training.evaluation(str(state.dataloader_label), int(state.timestamp.batch), results or {})

    @quiet
    def eval_after_all(self, state: Any, logger: Any) -> None:
        self._training.resume()
        if self._fitted:
            self._end()

    def _watch(self, saver: Any) -> None:
        def begin(state: Any, *_: Any, **__: Any) -> Any:
            run = self._training.run
            return self._training.saving(int(state.timestamp.batch), None, writes=run is not None and run.rank == 0)

        def done(checkpoint: Any) -> None:
            if saver.saved_checkpoints:
                checkpoint.path = str(saver.saved_checkpoints[-1])

        self._taps.append(Saving(saver, "_save_checkpoint", begin, done))


def _given(name: Any) -> Optional[str]:
    """The Trainer's name, unless it has made one up: after a restart it would be another run."""
    return None if name is None or re.match(r"^\d{10}-[a-z]+(-[a-z]+)*$", str(name)) else str(name)
