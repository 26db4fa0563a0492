"""For a JAX loop of one's own (Flax, Optax, plain JAX): reports without ever waiting for the
device.

``float(loss)`` makes the host wait until the device has computed it, and JAX runs ahead of the
device for a reason. The reporter starts a copy to the host behind the computation, and passes a
step on once its values are ready: usually while the next step runs.

    run = stepwatch.jax.run("llama-70b")                     # after jax.distributed.initialize()
    with stepwatch.jax.StepReporter(run, params=state.params, schedule=schedule, tokens=tokens_per_step) as reporter:
        for step, batch in enumerate(loader):
            state, metrics = train_step(state, batch)
            reporter.step(step, **metrics)                   # arrays: loss=..., grad_norm=...

``CheckpointReporter(run, manager)`` reports every stage of what Orbax saves and restores.
"""

import sys
import time
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

from ._adapter import Training
from ._flight import Here, InFlight, Value
from ._orbax import CheckpointReporter as CheckpointReporter
from ._run import Run


def run(name: Optional[str] = None, **about: Any) -> Run:
    """A ``Run`` with its place among JAX's processes. It starts the backend: call it after
    ``jax.distributed.initialize()``."""
    found: Dict[str, Any] = {}
    try:
        jax: Any = _jax()
        found.update(framework="jax", version=jax.__version__, devices=jax.device_count())
        found.update(device_kind=jax.devices()[0].device_kind)
        found.update(rank=jax.process_index(), world=jax.process_count())
    except Exception:
        pass  # a run all the same, with what the environment says
    found.update(about)
    return Run(name, **found)


class StepReporter:
    """Fills in what it is given once: ``tokens`` of the whole job in a step, the learning rate by
    an Optax ``schedule``, parameter count and dtype of ``params``."""

    def __init__(
        self,
        run: Run,
        params: Any = None,
        schedule: Optional[Callable[[int], Any]] = None,
        tokens: Optional[float] = None,
    ) -> None:
        self._schedule, self._tokens = schedule, tokens
        self._training = Training(run, {}, InFlight(_Value.of))
        try:
            if params is not None:
                run.describe(**describe_params(params))
        except Exception:
            pass

    def step(self, step: int, state: Any = None, **metrics: Any) -> None:
        """As ``Run.step``; the values may be arrays on any device. ``state`` is a Flax
        ``TrainState`` or an Optax state whose hyperparameters hold the learning rate
        (``optax.inject_hyperparams``)."""
        try:
            now = time.monotonic()
            if "lr" not in metrics:
                metrics["lr"] = learning_rate(state) if self._schedule is None else self._schedule(step)
            metrics.setdefault("tokens", self._tokens)
            self._training.step(step, metrics, now)
        except Exception:
            pass

    def eval(self, name: str = "eval", step: Optional[int] = None, **metrics: Any) -> None:
        """As ``Run.eval``, in order with the steps."""
        try:
            self._training.evaluation(name, step, metrics)
        except Exception:
            pass

    def flush(self) -> None:
        """Reports what is left, waiting for the device: for the end of training."""
        try:
            self._training.end()
        except Exception:
            pass

    def __enter__(self) -> "StepReporter":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            # After an exception the device may never answer again: what has not landed by now is
            # given up.
            self._training.end(None if kind is None else 1)
        except Exception:
            pass


class _Value:
    """A scalar on a device, on its way to the host."""

    __slots__ = ("_array",)

    def __init__(self, array: Any) -> None:
        self._array = array

    @classmethod
    def of(cls, value: Any) -> Value:
        if not hasattr(value, "copy_to_host_async"):
            return Here(value)
        if value.size != 1:
            raise ValueError("it has %d elements" % value.size)
        if not value.is_fully_addressable:
            if not value.is_fully_replicated:
                raise ValueError("a part of it is on another host")
            value = value.addressable_data(0)
        value.copy_to_host_async()
        return cls(value)

    def landed(self, newest: bool) -> bool:
        return bool(self._array.is_ready())

    def read(self) -> Any:
        return self._array.item()


def learning_rate(state: Any) -> Any:
    """The learning rate in the state of an optimizer made by ``optax.inject_hyperparams``, left on
    the device; None without one."""
    found = _hyperparams(getattr(state, "opt_state", state), 4)
    rate = None if found is None else found.get("learning_rate")
    # A copy: the state is usually donated to the next step, and its buffers are gone then.
    return None if rate is None else _jax().numpy.array(getattr(rate, "value", rate), copy=True)


def _hyperparams(state: Any, depth: int) -> Any:
    own = getattr(state, "hyperparams", None)
    if own is not None or depth == 0 or not isinstance(state, tuple):
        return own
    return next((found for found in (_hyperparams(part, depth - 1) for part in state) if found is not None), None)


def describe_params(params: Any) -> Dict[str, Any]:
    """Parameter count and dtype of a pytree. A sharded array has its whole size."""
    leaves = [leaf for leaf in _jax().tree_util.tree_leaves(params) if hasattr(leaf, "size") and hasattr(leaf, "dtype")]
    if not leaves:
        return {}
    return {"model": {"n_params": sum(int(leaf.size) for leaf in leaves)}, "dtype": str(leaves[0].dtype)}


def _jax() -> Any:
    """A program with arrays has imported it."""
    return sys.modules["jax"]
