"""For Lightning Fabric: installed beside it, it needs no code at all (the entry point
``lightning.fabric.callbacks_factory``).

Fabric leaves the loop to the user, so the steps are counted where they can be seen: at every step
of the first optimizer. Their loss is what ``fabric.backward`` got, where it was called once in the
step; their number and further metrics are those that ``fabric.log_dict`` names; checkpoints are
those of ``fabric.save``. To give it a name or tokens per step, add it, and the one of the entry
point stands back:

    Fabric(..., callbacks=[StepwatchFabricCallback(name="llama-70b", tokens_per_step=2**19)])
"""

import atexit
import os
import sys
import time
import weakref
from typing import Any, Dict, List, Mapping, Optional

from ._adapter import Saving, Tap, Training, metric, of_evaluation, quiet, wanted
from ._run import Run
from .torch import describe_model, in_flight


class StepwatchFabricCallback:
    """Reports to ``run``, or to a run of its own that lasts as long as the process.
    ``tokens_per_step`` is the whole job's."""

    #: Made by the entry point and not by the user.
    automatic = False

    def __init__(
        self,
        run: Optional[Run] = None,
        name: Optional[str] = None,
        tokens_per_step: Optional[float] = None,
        **about: Any
    ) -> None:
        if name is not None:
            about["name"] = name
        self._training = Training(run, about, in_flight())
        self._tokens_per_step = tokens_per_step
        self._begun = False
        self._leader: Any = None
        self._step = 0
        #: A step that is done, and whose metrics the script may be about to log.
        self._pending: Optional[Dict[str, Any]] = None
        self._at = 0.0
        self._losses: List[Any] = []

    @quiet
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Called by ``fabric.setup``, in the process that trains."""
        if self._begun or self is not _leading(fabric._callbacks):
            return
        self._begun = True
        self._training.begin(
            world=fabric.world_size,
            rank=fabric.global_rank,
            local_rank=fabric.local_rank,
            strategy=type(fabric.strategy).__name__,
        )
        about = describe_model(module)
        about.update(framework="fabric", version=_version(fabric))
        self._training.describe(**about)
        Tap(fabric, "backward", self._on_backward)
        Tap(fabric, "log_dict", self._on_log)
        Saving(fabric, "save", lambda path, *_, **__: self._save(fabric, path))
        _at_exit(self)

    @quiet
    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        if not self._begun:
            return
        leader = self._leader() if self._leader is not None else None
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            return  # of a second optimizer: part of the same step
        self._pass_on()
        self._step += 1
        self._at = time.monotonic()
        self._pending = {"lr": optimizer.param_groups[0].get("lr"), "tokens": self._tokens_per_step}
        if len(self._losses) == 1:  # with several, only the script knows whether they are parts or a sum of parts
            self._pending["loss"] = self._losses[0]
        self._losses = []

    def _on_backward(self, tensor: Any, *_: Any, **__: Any) -> None:
        self._pass_on()
        self._training.resume()
        self._losses = self._losses[-1:] + [tensor.detach()]

    def _on_log(self, metrics: Mapping[str, Any], step: Optional[int] = None) -> None:
        evaluations: Dict[str, Dict[str, Any]] = {}
        values: Dict[str, Any] = {}
        for name, value in metrics.items():
            evaluated = of_evaluation(name)
            if evaluated is None:
                values[metric(name)] = value.detach() if hasattr(value, "detach") else value
            else:
                evaluations.setdefault(evaluated[0], {})[evaluated[1]] = value
        if self._pending is not None and values:
            if step is not None and step >= self._step:
                self._step = int(step)  # the script counts from elsewhere: after a restart, say
            self._pending.update(values)
        elif values:
            self._training.add(self._step, values)
        for which, own in evaluations.items():
            self._training.evaluation(which, self._step, own)

    def _save(self, fabric: Any, path: Any) -> Any:
        self._pass_on()
        return self._training.saving(self._step, path, writes=fabric.is_global_zero)

    def _pass_on(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._training.step(self._step, pending, self._at)
        else:
            self._training.poll()

    # -- what scripts call by ``fabric.call``, if they do ------------------------------------------

    @quiet
    def on_validation_start(self, *_: Any, **__: Any) -> None:
        self._pass_on()
        self._training.pause("eval")

    on_validation_epoch_start = on_validation_start

    @quiet
    def on_validation_end(self, *_: Any, **__: Any) -> None:
        self._training.resume()

    on_validation_epoch_end = on_validation_end

    @quiet
    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._pass_on()
        self._training.end()


def factory() -> List[Any]:
    """The entry point: a callback for every Fabric, where there is somewhere to report to."""
    try:
        if wanted(os.environ):
            callback = StepwatchFabricCallback()
            callback.automatic = True
            return [callback]
    except Exception:
        pass
    return []


def _leading(callbacks: List[Any]) -> Any:
    """One reports for all: the user's before that of an entry point."""
    ours = [callback for callback in callbacks if isinstance(callback, StepwatchFabricCallback)]
    return min(ours, key=lambda callback: callback.automatic, default=None)


def _at_exit(callback: StepwatchFabricCallback) -> None:
    """The last step waits for its metrics until the next one begins."""
    alive = weakref.ref(callback)

    def pass_on() -> None:
        left = alive()
        if left is not None:
            quiet(left._pass_on)()

    atexit.register(pass_on)


def _version(fabric: Any) -> Optional[str]:
    package = type(fabric).__module__.split(".")[0]
    return getattr(sys.modules.get(package), "__version__", None)
