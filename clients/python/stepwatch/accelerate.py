"""For Hugging Face Accelerate: a tracker, called by its name as any other once this module is
imported.

    import stepwatch.accelerate
    accelerator = Accelerator(log_with="stepwatch")          # or log_with=[StepwatchTracker(tokens_per_step=2**19), "wandb"]
    accelerator.init_trackers("llama-70b", config={...})
    ...
    accelerator.log({"loss": loss.detach(), "lr": lr}, step=step)
    accelerator.end_training()

What is logged is what is seen: a call with a loss is a step of training, ``eval_...`` and
``val/...`` are results of an evaluation. Tensors may stay on their device; they are copied behind
the computation, never waited for. Accelerate logs on its main process only, and trackers do not
hear of its checkpoints: ``accelerator.get_tracker("stepwatch").attach(accelerator)`` adds those of
``save_state``.
"""

import sys
import time
from typing import Any, Dict, Optional

from ._adapter import Saving, Training, dtype_of, metric, of_evaluation, quiet
from ._run import Run
from .torch import in_flight

try:
    from accelerate.tracking import GeneralTracker
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    GeneralTracker = object


class StepwatchTracker(GeneralTracker):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own that ends with ``end_training``.
    ``tokens_per_step`` is the whole job's."""

    name = "stepwatch"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: Optional[str] = None,
        run: Optional[Run] = None,
        tokens_per_step: Optional[float] = None,
        **about: Any
    ) -> None:
        super().__init__()
        if run_name is not None:
            about["name"] = run_name
        self._training = Training(run, about, in_flight())
        self._tokens_per_step = tokens_per_step
        self._step: Optional[int] = None
        self._at = 0.0

    @property
    def tracker(self) -> Optional[Run]:
        """What ``get_tracker("stepwatch", unwrap=True)`` returns."""
        return self._training.run

    @quiet
    def start(self) -> None:
        """Called by ``init_trackers``, when the process group stands."""
        accelerate: Any = sys.modules["accelerate"]
        state = accelerate.state.AcceleratorState()
        self._training.begin(
            world=state.num_processes,
            rank=state.process_index,
            local_rank=state.local_process_index,
            framework="accelerate",
            version=getattr(accelerate, "__version__", None),
            dtype=dtype_of(state.mixed_precision),
            distributed=str(getattr(state.distributed_type, "value", state.distributed_type)),
        )

    @quiet
    def attach(self, accelerator: Any) -> None:
        """Reports the checkpoints that ``accelerator.save_state`` writes."""
        Saving(accelerator, "save_state", lambda output_dir=None, *_, **__: self._save(output_dir))

    def _save(self, path: Any) -> Any:
        return self._training.saving(self._step, path)

    @quiet
    def store_init_configuration(self, values: Dict[str, Any]) -> None:
        self._training.describe(config=values)

    @quiet
    def log(self, values: Dict[str, Any], step: Optional[int] = None, **_: Any) -> None:
        metrics: Dict[str, Any] = {}
        evaluations: Dict[str, Dict[str, Any]] = {}
        for name, value in values.items():
            evaluated = of_evaluation(name)
            if evaluated is None:
                metrics[metric(name)] = value
            else:
                evaluations.setdefault(evaluated[0], {})[evaluated[1]] = value
        if "loss" in metrics:
            self._log_step(metrics, step)
        elif metrics:
            self._training.add(self._step if step is None else step, metrics)
        for which, own in evaluations.items():
            self._training.evaluation(which, self._step if step is None else step, own)

    def _log_step(self, metrics: Dict[str, Any], step: Optional[int]) -> None:
        before, now = self._step, time.monotonic()
        self._step = step if step is not None else 1 if before is None else before + 1
        metrics.setdefault("tokens", self._tokens_per_step)
        if before is None:
            self._training.add(self._step, metrics)  # nobody knows when it began
        else:
            # Many scripts log every so many steps only.
            metrics.setdefault("step_time", round((now - self._at) / max(1, self._step - before), 6))
            self._training.step(self._step, metrics, now)
        self._at = now

    @quiet
    def finish(self) -> None:
        self._training.end()


def _register() -> None:
    """So that ``log_with="stepwatch"`` finds it; before Accelerate 1.15 a tracker can only be given
    as an object."""
    try:
        from accelerate import tracking

        if "stepwatch" not in tracking.LOGGER_TYPE_TO_CLASS:
            tracking.register_tracker_class(StepwatchTracker)
    except Exception:
        pass


_register()
