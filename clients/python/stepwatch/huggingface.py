"""For the Hugging Face Trainer (and TRL, and what else takes its callbacks):
``Trainer(..., callbacks=[StepwatchCallback()])``.

Every optimizer step is reported with its time. Loss and gradient norm come with the steps that the
Trainer logs (``logging_steps=1`` for all of them): it has waited for the device there already, and
an observer must not make it wait more often.
"""

import os
import sys
import time
from typing import Any, Dict, Optional

from ._adapter import Training, dtype_of, quiet
from ._run import Run
from .torch import describe_model

try:
    from transformers.trainer_callback import TrainerCallback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    TrainerCallback = object

#: What the Trainer calls it, and what the wire does.
_NAMES = {"learning_rate": "lr", "loss/policy_avg": "loss"}
#: Counters and summaries that are no metric of the step.
_LEFT_OUT = frozenset(("total_flos", "num_input_tokens_seen", "train_runtime", "train_tokens_per_second", "step_time"))


class StepwatchCallback(TrainerCallback):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own that is named after ``args.run_name`` and ends
    with training.

    ``tokens_per_step`` is the whole job's; without it tokens are reported when
    ``include_num_input_tokens_seen`` counts them.
    """

    def __init__(self, run: Optional[Run] = None, tokens_per_step: Optional[float] = None, **about: Any) -> None:
        self._training = Training(run, about)
        self._tokens = tokens_per_step
        self._seen_tokens: Optional[float] = None
        self._lr: Any = None
        #: A step that is done and whose log line, with the loss, may be about to come.
        self._step: Optional[Dict[str, Any]] = None
        #: What TRL's PPO logs of a step before that step ends.
        self._early: Dict[str, Any] = {}
        self._save: Any = None

    @property
    def run(self) -> Optional[Run]:
        return self._training.run

    @quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        about = describe_model(model) if model is not None else {}
        if getattr(args, "packing", False) and isinstance(about.get("model"), dict):
            # Sequences are filled up to this length; else they are as long as their texts, and the
            # length is unknown.
            length = getattr(args, "max_length", None) or getattr(args, "max_seq_length", None)
            if length:
                about["model"]["seq_len"] = int(length)
        mixed = "bf16" if getattr(args, "bf16", False) else "fp16" if getattr(args, "fp16", False) else None
        about.update(dtype=dtype_of(mixed) or about.get("dtype"))
        about.update(framework="transformers", version=getattr(sys.modules.get("transformers"), "__version__", None))
        self._training.begin(_run_name(args), world=args.world_size, rank=args.process_index, **about)
        self._seen_tokens = state.num_input_tokens_seen
        if self.run is not None and getattr(args, "logging_nan_inf_filter", False):
            text = "logging_nan_inf_filter replaces a NaN loss by the mean: set it to False to see one"
            self.run.event("nan_filter", text, level="warning", step=state.global_step)
        self._training.wait()

    @quiet
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The batches of the step are there."""
        self._pass_on()
        self._end_pauses()
        self._training.got()

    @quiet
    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        if optimizer is not None:
            self._lr = optimizer.param_groups[0].get("lr")  # of this step: the scheduler moves on before the step ends

    @quiet
    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self._pass_on()
        metrics: Dict[str, Any] = {"tokens": self._tokens_of(state), "lr": self._lr}
        if self._lr is None and optimizer is not None:
            metrics["lr"] = optimizer.param_groups[0].get("lr")
        metrics.update(self._early)
        self._early = {}
        self._step = {"step": state.global_step, "metrics": metrics, "at": time.monotonic()}
        if not control.should_log and str(getattr(args.logging_strategy, "value", "")) != "epoch":
            self._pass_on()
            self._go_on(args, state, control)

    @quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
        logs = logs or {}
        if "loss" not in logs and "loss/policy_avg" in logs:
            self._early = _metrics(logs)
            return
        if self._step is None or self._step["step"] != state.global_step or "loss" not in logs:
            return  # the results of an evaluation, or the summary at the end
        self._step["metrics"].update(_metrics(logs))
        self._pass_on()
        self._go_on(args, state, control)

    @quiet
    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        self._training.pause("eval")

    @quiet
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Optional[Dict[str, Any]] = None, **_: Any
    ) -> None:
        self._pass_on()
        self._end_pauses()
        own = {name[5:] if name.startswith("eval_") else name: value for name, value in (metrics or {}).items()}
        self._training.evaluation("eval", state.global_step, own)
        if control.should_save:
            self._begin_save(args, state)
        else:
            self._training.wait()

    @quiet
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._end_pauses()

    @quiet
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        if self._save is not None:
            self._end_pauses()
        elif self.run is not None and state.is_world_process_zero:
            self.run.checkpoint(state.global_step, path=_checkpoint_path(args, state))
        self._training.wait()

    @quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pass_on()
        self._end_pauses()
        self._training.end()

    def _pass_on(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            self._training.step(**step)

    def _tokens_of(self, state: Any) -> Optional[float]:
        seen, before = state.num_input_tokens_seen, self._seen_tokens
        self._seen_tokens = seen
        if self._tokens is not None:
            return self._tokens
        return seen - before if before is not None and seen > before else None

    def _go_on(self, args: Any, state: Any, control: Any) -> None:
        """The Trainer has decided already what it does before the next step; published now, it
        explains the silence while it lasts."""
        if control.should_evaluate:
            self._training.pause("eval")
        elif control.should_save:
            self._begin_save(args, state)
        else:
            self._training.wait()

    def _begin_save(self, args: Any, state: Any) -> None:
        if self._save is None:
            path = _checkpoint_path(args, state)
            self._save = self._training.saving(state.global_step, path, writes=state.is_world_process_zero)
            self._save.__enter__()

    def _end_pauses(self) -> None:
        self._training.resume()
        save, self._save = self._save, None
        if save is not None:
            save.__exit__(None, None, None)


def _metrics(logs: Dict[str, Any]) -> Dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in logs.items() if name not in _LEFT_OUT}


def _run_name(args: Any) -> Optional[str]:
    """What the script calls it. Some versions put the folder there that it writes to, which the
    next run writes to as well."""
    given = getattr(args, "run_name", None)
    return str(given) if given and given != str(args.output_dir) else None


def _checkpoint_path(args: Any, state: Any) -> str:
    return os.path.join(str(args.output_dir), "checkpoint-%d" % state.global_step)
