"""For OLMo-core: a callback.

    from stepwatch.olmo import StepwatchCallback
    trainer_config = TrainerConfig(...).with_callback("stepwatch", StepwatchCallback())

Every rank reports every step with its time and the time that it waited for data. The metrics come
when OLMo-core has reduced them over the ranks, which is every ``metrics_collect_interval`` steps,
and then for every step since: loss, gradient norm, learning rate, throughput. They are numbers by
then; nothing here waits for a device. Checkpoints with their path, evaluations, and the exception
that ended training.
"""

import re
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from ._adapter import Around, Saving, Tap, Training, quiet
from ._run import _describe, _exit_code
from .torch import describe_model, in_flight

try:
    from olmo_core.train.callbacks import Callback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    Callback = object

#: What OLMo-core calls them, what the wire does, and the divisor to base units.
_NAMES = {
    "train/CE loss": ("loss", 1.0),
    "optim/total grad norm": ("grad_norm", 1.0),
    "optim/LR": ("lr", 1.0),
    "optim/LR (group 0)": ("lr", 1.0),
    "optim/step skipped": ("skipped", 1.0),
    "throughput/device/TPS": ("tokens_per_second_per_gpu", 1.0),
    "throughput/device/MFU": ("mfu_reported", 100.0),
    "throughput/device/TFLOPs_per_GPU": ("tflops_reported", 1.0),
}
#: Means over the whole run, clocks and counters, which are in the steps themselves.
_LEFT_OUT = re.compile(r"^throughput/|^checkpoint/|^gpu_memory/.*total|\(actual avg\)$")
_EVAL = re.compile(r"^eval/(?:(?:lm|downstream)/)?(.+?)/([^/]+)$")
_NOT_FINITE = re.compile(r"^(-?(?:nan|inf)) loss encountered at step (\d+)")
#: Metrics of one step that no detector uses; more are left out.
MAX_CUSTOM = 96


@dataclass
class StepwatchCallback(Callback):  # type: ignore[misc]
    """Reports to a run of its own, named ``name``, that lasts as long as ``fit``."""

    name: Optional[str] = None
    tokens_per_step: Optional[float] = None

    def __post_init__(self) -> None:
        self._training = Training(None, {"name": self.name} if self.name else {}, in_flight())
        self._taps: List[Tap] = []
        #: The checkpoint that training waited for last.
        self._saving: Optional[str] = None
        self._seen = 0
        self._open = False

    # -- begin and end -----------------------------------------------------------------------------

    @quiet
    def pre_train(self) -> None:
        olmo: Any = sys.modules.get("olmo_core.version")
        about = describe_model(self.trainer.train_module.model) if hasattr(self.trainer.train_module, "model") else {}
        about.update(framework="olmo-core", version=getattr(olmo, "VERSION", None))
        # Its own handlers of SIGTERM stand while it trains, and cancel the run.
        self._training.begin(signals=False, **about)
        self._open = True
        self._seen = self.trainer.global_train_tokens_seen
        self._tap()
        self._training.restart_clock()

    def _tap(self) -> None:
        trainer = self.trainer
        self._taps.append(Saving(trainer, "save_checkpoint", self._save))
        self._taps.append(Around(trainer, "save_checkpoint_async", lambda *_, **__: self._training.pause("ckpt"), self._resume))
        for callback in list(trainer.callbacks.values()):
            if hasattr(callback, "perform_eval"):
                self._taps.append(Around(callback, "perform_eval", lambda *_, **__: self._training.pause("eval"), self._resume))

    def _resume(self, _: Any) -> None:
        self._training.resume()

    @quiet
    def on_error(self, exc: BaseException) -> None:
        loss = _NOT_FINITE.match(str(exc))
        if loss is not None:  # it stops before it logs it
            self._training.add(int(loss.group(2)), {"loss": float(loss.group(1))})
        self._end(_exit_code(type(exc), exc), _describe(type(exc), exc))

    @quiet
    def close(self) -> None:
        """The last of all, when what was still being reduced and written has been published."""
        canceled = getattr(self.trainer, "is_canceled", False)
        self._end(0, getattr(self.trainer, "_cancel_reason", None) if canceled else None)

    def _end(self, code: int, text: Any) -> None:
        if self._open:
            self._open = False
            while self._taps:
                self._taps.pop().remove()
            self._training.end(code, text)

    # -- steps -------------------------------------------------------------------------------------

    @quiet
    def pre_load_batch(self) -> None:
        self._training.resume()
        self._training.wait()

    @quiet
    def pre_step(self, batch: Any) -> None:
        self._training.got()

    @quiet
    def post_train_batch(self) -> None:
        """Before ``post_step``, in which others evaluate and save."""
        seen, before = self.trainer.global_train_tokens_seen, self._seen
        self._seen = seen
        tokens = self.tokens_per_step or (seen - before if seen else None)
        self._training.step(self.trainer.global_step, {"tokens": tokens or None})

    @quiet
    def log_metrics(self, step: int, metrics: Dict[str, float]) -> None:
        found: Dict[str, Any] = {}
        sets: Dict[str, Dict[str, Any]] = {}
        custom = 0
        for name, value in metrics.items():
            evaluated = _EVAL.match(name)
            if name in _NAMES:
                ours, divisor = _NAMES[name]
                found[ours] = value if divisor == 1.0 else value / divisor
            elif evaluated is not None:
                metric = "loss" if evaluated.group(2).lower() == "ce loss" else evaluated.group(2)
                sets.setdefault(evaluated.group(1), {})[metric] = value
            elif not _LEFT_OUT.search(name) and custom < MAX_CUSTOM:
                found[name] = value
                custom += 1
        self._training.add(step, found)
        for name, own in sets.items():
            self._training.evaluation(name, step, own)

    # -- checkpoints -------------------------------------------------------------------------------

    def _save(self, *_: Any, **__: Any) -> Any:
        trainer, run = self.trainer, self._training.run
        path = "%s/%s" % (str(trainer.save_folder).rstrip("/"), trainer.checkpointer.checkpoint_dirname(trainer.global_step))
        self._saving = path
        return self._training.saving(trainer.global_step, path, writes=run is not None and run.rank == 0)

    @quiet
    def post_checkpoint_saved(self, path: Any) -> None:
        """Where it is written behind the training: it is complete. That is in another thread, and
        steps later."""
        run = self._training.run
        if run is not None and run.rank == 0 and str(path) != self._saving:
            found = re.search(r"step(\d+)/?$", str(path))
            run.checkpoint(int(found.group(1)) if found else self.trainer.global_step, path=str(path))
