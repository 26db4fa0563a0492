"""For the Hugging Face Trainer (and TRL, and what else takes its callbacks): ``Trainer(..., callbacks=[StepwatchCallback()])``.

Every optimizer step is reported with its time. Loss and gradient norm come with the steps that the Trainer logs (``logging_steps=1``
for all of them): it has waited for the device there already, and an observer must not make it wait more often.
"""

import functools
import os
import sys
import time
from typing import Any, Callable, Dict, Optional, TypeVar, cast

from ._checkpoint import Checkpoint
from ._run import Phase, Run
from .torch import describe_model

try:
    from transformers.trainer_callback import TrainerCallback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    TrainerCallback = object

#: What the Trainer calls it, and what the wire does.
_NAMES = {"learning_rate": "lr"}
#: Counters and summaries that are no metric of the step.
_LEFT_OUT = frozenset(("total_flos", "num_input_tokens_seen", "train_runtime", "train_tokens_per_second", "step_time"))

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _quiet(method: _Method) -> _Method:
    """Training goes on whatever happens here; and None leaves the Trainer's control alone."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            pass

    return cast(_Method, call)


class StepwatchCallback(TrainerCallback):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own that is named after ``args.run_name`` and ends with training.

    ``tokens_per_step`` is the whole job's; without it tokens are reported when ``include_num_input_tokens_seen`` counts them.
    """

    def __init__(self, run: Optional[Run] = None, tokens_per_step: Optional[float] = None, **about: Any) -> None:
        self.run = run
        self._own = run is None
        self._about, self._tokens = about, tokens_per_step
        self._last: Optional[float] = None
        self._seen_tokens: Optional[float] = None
        self._lr: Any = None
        #: A step that is done and whose log line, with the loss, may be about to come.
        self._step: Optional[Dict[str, Any]] = None
        self._eval: Optional[Phase] = None
        self._save: Optional[Checkpoint] = None

    @_quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        about = dict(describe_model(model) if model is not None else {}, **self._about)
        about.update(framework="transformers", version=getattr(sys.modules.get("transformers"), "__version__", None))
        if self._own:
            name = getattr(args, "run_name", None) or os.path.basename(str(args.output_dir).rstrip("/")) or None
            self.run = Run(name, world=args.world_size, rank=args.process_index, **about)
        elif self.run is not None:
            self.run.describe(**about)
        self._last, self._seen_tokens = time.monotonic(), state.num_input_tokens_seen
        if self.run is not None and getattr(args, "logging_nan_inf_filter", False):
            text = "logging_nan_inf_filter replaces a NaN loss by the mean: set it to False to see one"
            self.run.event("nan_filter", text, level="warning", step=state.global_step)

    @_quiet
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        self._end_pauses()

    @_quiet
    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        if optimizer is not None:
            self._lr = optimizer.param_groups[0].get("lr")  # of this step: the scheduler moves on before the step ends

    @_quiet
    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self._pass_on()
        if self.run is None:
            return
        now = time.monotonic()
        metrics: Dict[str, Any] = {"tokens": self._tokens_of(state), "lr": self._lr}
        if self._lr is None and optimizer is not None:
            metrics["lr"] = optimizer.param_groups[0].get("lr")
        phases = self.run.take_phases()
        self._step = {"at": now, "before": self._last, "step": state.global_step, "metrics": metrics, "phases": phases}
        self._last = now
        if not control.should_log and str(getattr(args.logging_strategy, "value", "")) != "epoch":
            self._pass_on()
            self._begin_pauses(args, state, control)

    @_quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
        logs = logs or {}
        if self._step is None or self._step["step"] != state.global_step or "loss" not in logs:
            return  # the results of an evaluation, or the summary at the end
        for name, value in logs.items():
            if name not in _LEFT_OUT:
                self._step["metrics"][_NAMES.get(name, name)] = value
        self._pass_on()
        self._begin_pauses(args, state, control)

    @_quiet
    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        self._begin_eval()

    @_quiet
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Optional[Dict[str, Any]] = None, **_: Any
    ) -> None:
        self._pass_on()
        self._end_pauses()
        if self.run is not None and metrics:
            own = {name[5:] if name.startswith("eval_") else name: value for name, value in metrics.items()}
            own.pop("step", None)
            own.pop("name", None)
            self.run.eval("eval", step=state.global_step, **own)
        if control.should_save:
            self._begin_save(args, state)

    @_quiet
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._end_pauses()

    @_quiet
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        if self._save is not None:
            self._end_pauses()
        elif self.run is not None and state.is_world_process_zero:
            self.run.checkpoint(state.global_step, path=_checkpoint_path(args, state))

    @_quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        self._end_pauses()
        if self._own and self.run is not None:
            self.run.close()

    def _pass_on(self) -> None:
        step, self._step = self._step, None
        if step is not None and self.run is not None:
            self.run.report(**step)

    def _tokens_of(self, state: Any) -> Optional[float]:
        seen, before = state.num_input_tokens_seen, self._seen_tokens
        self._seen_tokens = seen
        if self._tokens is not None:
            return self._tokens
        return seen - before if before is not None and seen > before else None

    def _begin_pauses(self, args: Any, state: Any, control: Any) -> None:
        """The Trainer has decided already what it does before the next step; said now, the silence is explained while it lasts."""
        if control.should_evaluate:
            self._begin_eval()
        elif control.should_save:
            self._begin_save(args, state)

    def _begin_eval(self) -> None:
        if self._eval is None and self.run is not None:
            self._eval = self.run.phase("eval")
            self._eval.__enter__()

    def _begin_save(self, args: Any, state: Any) -> None:
        # Every rank waits for a save, one writes it; the others say only why they are silent.
        if self._save is None and self.run is not None:
            if state.is_world_process_zero:
                self._save = self.run.checkpoint(state.global_step, path=_checkpoint_path(args, state))
            else:
                self._save = cast(Checkpoint, self.run.phase("ckpt"))
            self._save.__enter__()

    def _end_pauses(self) -> None:
        for pause in (self._eval, self._save):
            if pause is not None:
                pause.__exit__(None, None, None)
        self._eval = self._save = None


def _checkpoint_path(args: Any, state: Any) -> str:
    return os.path.join(str(args.output_dir), "checkpoint-%d" % state.global_step)
