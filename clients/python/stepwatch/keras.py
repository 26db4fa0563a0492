"""For Keras 3 on any backend: ``model.fit(..., callbacks=[StepwatchCallback()])``.

A step is a batch, numbered as ``optimizer.iterations``. Keras gives callbacks the mean since the
epoch began; the loss of each batch is worked out from it. That takes batches to be of one size, so
the last, smaller one of an epoch is a little off, and it inherits the rounding of a sum over the
epoch so far (a thousandth of the loss after 10,000 batches). Evaluations and saves are announced
while they last. Keras fetches data within the step: there is no separate time for it.
"""

import collections
import sys
import threading
import time
from typing import Any, Deque, Dict, List, Optional, Tuple

from ._adapter import Saving, Training, metric, quiet
from ._run import Run

try:
    from keras.callbacks import Callback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    Callback = object


#: Batches that may have begun before the end of an earlier one was reported; what a later one
#: overtakes by more is published together with it.
MAX_AHEAD = 1024


class StepwatchCallback(Callback):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own that ends with ``fit``. ``tokens_per_step`` is the
    whole job's."""

    #: Keras may report the end of a batch in other threads, which block nothing, and then in any
    #: order. For a callback that does not declare this it waits for the device after every batch.
    async_safe = True

    def __init__(
        self,
        run: Optional[Run] = None,
        name: Optional[str] = None,
        tokens_per_step: Optional[float] = None,
        **about: Any
    ) -> None:
        super().__init__()
        if name is not None:
            about["name"] = name
        self._training = Training(run, about)
        self._tokens_per_step = tokens_per_step
        self._taps: List[Saving] = []
        self._lock = threading.Lock()
        self._fitting = False
        self._step = self._first = 0
        self._mean = Mean()
        #: Batches that have begun, and those of them that ended too early to be published, with the
        #: time and what is known.
        self._begun: Deque[int] = collections.deque(maxlen=MAX_AHEAD)
        self._ended: Dict[int, Tuple[float, Dict[str, Any]]] = {}
        self._lr: Optional[float] = None

    # -- begin and end -----------------------------------------------------------------------------

    @quiet
    def on_train_begin(self, logs: Any = None) -> None:
        keras: Any = sys.modules["keras"]
        self._training.begin(framework="keras", version=keras.__version__, backend=keras.backend.backend(), **_place(keras))
        model = self._model
        self._training.describe(model={"n_params": int(model.count_params())}, dtype=str(model.dtype_policy.compute_dtype))
        self._fitting = True
        for method in ("save", "save_weights"):
            self._taps.append(Saving(model, method, lambda filepath, *_, **__: self._save(filepath)))

    @quiet
    def on_train_end(self, logs: Any = None) -> None:
        self._fitting = False
        while self._taps:
            self._taps.pop().remove()
        self._training.end()

    # -- steps -------------------------------------------------------------------------------------

    @quiet
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._training.resume()
        optimizer = self._model.optimizer
        with self._lock:
            # Between epochs the variables are those of the model on every backend, and a restored
            # one has its number.
            self._first = self._step = int(optimizer.iterations)
            self._mean = Mean()
            self._begun.clear()
            self._ended.clear()
        self._lr = _constant_rate(optimizer)

    @quiet
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._training.resume()
        with self._lock:
            self._begun.append(batch)

    @quiet
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.monotonic()
        at_once = max(1, int(getattr(self._model, "steps_per_execution", None) or 1))
        with self._lock:
            if batch < self._mean.batches:
                return
            self._ended[batch] = now, dict(logs or {})
            while self._ended:
                batch = min(self._ended)
                if self._begun and batch >= self._begun[0] + at_once:
                    break  # an earlier one has not ended
                if self._begun:
                    self._begun.popleft()
                self._publish(batch, *self._ended.pop(batch))

    def _publish(self, batch: int, at: float, logs: Dict[str, Any]) -> None:
        steps = (self.params or {}).get("steps")
        done = batch + 1 if steps is None else min(batch + 1, steps)  # with several at once, the last may be fewer
        metrics = {metric(name): value for name, value in logs.items()}
        if "loss" in metrics:
            metrics["loss"] = self._mean.advance(metrics["loss"], done)
        self._mean.batches = done
        self._step = self._first + done
        metrics["lr"] = self._rate(self._step - 1)
        metrics["tokens"] = self._tokens_per_step
        self._training.step(self._step, metrics, at)

    def _rate(self, step: int) -> Optional[float]:
        schedule = getattr(self._model.optimizer, "_learning_rate", None)
        if not callable(schedule):
            return self._lr
        # On the host's processor: asking the accelerator means waiting for it.
        with sys.modules["keras"].device("cpu:0"):
            return float(schedule(step))

    # -- evaluations and checkpoints ---------------------------------------------------------------

    @quiet
    def on_test_begin(self, logs: Any = None) -> None:
        if self._fitting:
            self._training.pause("eval")

    @quiet
    def on_test_end(self, logs: Any = None) -> None:
        if self._fitting:
            self._training.resume()
            self._training.evaluation("val", self._step, dict(logs or {}))

    def _save(self, path: Any) -> Any:
        run = self._training.run
        return self._training.saving(self._step, path, writes=run is not None and run.rank == 0)


class Mean:
    """The loss of each batch from the means so far: the n-th is n times the mean less what there
    was before."""

    def __init__(self) -> None:
        self.batches = 0
        self._total = 0.0

    def advance(self, mean: float, batches: int) -> float:
        """``mean`` is that of the first ``batches``. Between two calls may lie several; then it is
        their mean."""
        total, before = mean * batches, self._total
        self._total = total
        if before - before != 0.0:
            return mean  # once it is not finite it stays so until the epoch ends
        return (total - before) / (batches - self.batches)


def _constant_rate(optimizer: Any) -> Optional[float]:
    rate = getattr(optimizer, "_learning_rate", None)
    return None if rate is None or callable(rate) else float(rate)


def _place(keras: Any) -> Dict[str, Any]:
    """JAX finds its processes without a launcher; the other backends have one, which sets the
    environment."""
    jax = sys.modules.get("jax")
    if keras.backend.backend() == "jax" and jax is not None and jax.process_count() > 1:
        return {"rank": jax.process_index(), "world": jax.process_count()}
    return {}
