"""For PyTorch Lightning: installed beside it, it needs no code at all.

Lightning asks the installed packages for callbacks (the entry point
``lightning.pytorch.callbacks_factory``), and gets ours wherever there is somewhere to report to. To
give it a name or tokens per step, add it as any other; the one from the entry point then stands
back:

    Trainer(..., callbacks=[StepwatchCallback(name="llama-70b")])

A step is an optimizer step, numbered as ``trainer.global_step``. Its loss is what ``training_step``
returned, the mean over the batches that it accumulates; metrics come along that were logged with
``on_step=True``. They are copied behind the computation, never waited for.
"""

import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._adapter import Behind, Saving, Training, dtype_of, metric, of_evaluation, plain_path, quiet, step_in, tokens_in, wanted
from ._checkpoint import Nothing
from ._run import Run, _describe, _exit_code
from .torch import describe_model, in_flight

#: Metrics of one step that the script logs; more are left out, for each costs a copy from the
#: device.
MAX_LOGGED = 32


def _bases() -> Tuple[type, ...]:
    """``Callback`` of the Lightning that is in use: there are two packages, and often both are
    installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [sys.modules[name] for name in names if hasattr(sys.modules.get(name), "Callback")]
    if not loaded:
        for name in names:
            try:
                loaded.append(__import__(name, fromlist=["Callback"]))
                break
            except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
                pass
    return tuple(module.Callback for module in loaded) or (object,)


class _Hooks:
    """What Lightning calls; apart from its base class so that either package's will do."""

    #: Made by the entry point and not by the user.
    automatic = False

    def __init__(
        self,
        run: Optional[Run] = None,
        name: Optional[str] = None,
        tokens_per_step: Optional[float] = None,
        **about: Any
    ) -> None:
        """Reports to ``run``, or to a run of its own that ends with ``fit``. ``tokens_per_step`` is
        the whole job's; without it the tokens of batches with ``input_ids`` are counted, padding
        included."""
        super().__init__()
        if name is not None:
            about["name"] = name
        self._training = Training(run, about, in_flight())
        self._tokens_per_step = tokens_per_step
        self._taps: List[Saving] = []
        self._behind: Optional[Behind] = None
        self._active = False
        self._step = 0
        self._reset()

    def _reset(self) -> None:
        self._loss: Any = None
        self._losses = self._tokens = 0
        self._lrs: Dict[int, Any] = {}

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _taps=[], _behind=None, _loss=None)

    # -- begin and end -----------------------------------------------------------------------------

    @quiet
    def setup(self, trainer: Any, pl_module: Any, stage: Any) -> None:
        self._active = getattr(stage, "value", stage) == "fit" and self is _leading(trainer.callbacks)
        if not self._active:
            return
        self._training.begin(
            world=trainer.world_size,
            rank=trainer.global_rank,
            local_rank=trainer.local_rank,
            signals=False,
            framework="lightning",
            version=_version(trainer),
            strategy=type(trainer.strategy).__name__,
            precision=str(trainer.precision),
            accumulate_grad_batches=trainer.accumulate_grad_batches,
        )
        self._taps.append(Saving(trainer, "save_checkpoint", lambda filepath, *_, **__: self._save(trainer, filepath)))
        strategy = trainer.strategy
        if hasattr(strategy, "load_checkpoint"):
            self._taps.append(Saving(strategy, "load_checkpoint", self._load))
        writer = getattr(strategy, "checkpoint_io", None)
        named = any(kind.__name__ == "AsyncCheckpointIO" for kind in type(writer).__mro__)
        if named and hasattr(writer, "_error") and hasattr(writer, "_executor"):  # else somebody else's of that name
            self._taps.append(Saving(writer, "save_checkpoint", lambda *_, **__: _Submitted(writer, self._behind)))

    @quiet
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._active:
            self._training.pause("sanity_check")

    @quiet
    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.resume()

    @quiet
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self._active:
            return
        about = describe_model(pl_module)
        self._training.describe(model=about["model"], dtype=dtype_of(trainer.precision) or about["dtype"])
        self._step = trainer.global_step  # of the checkpoint that is gone on from
        self._reset()
        self._training.restart_clock()

    @quiet
    def teardown(self, trainer: Any, pl_module: Any, stage: Any) -> None:
        self._end(0, None)

    @quiet
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        kind = type(exception)
        if kind.__name__ == "SIGTERMException":  # a SystemExit without a code
            self._end(143, "SIGTERM")
        else:
            self._end(_exit_code(kind, exception), _describe(kind, exception))

    def _end(self, code: int, text: Any) -> None:
        while self._taps:
            self._taps.pop().remove()
        if self._active:
            self._active = False
            self._training.end(code, text)

    # -- steps -------------------------------------------------------------------------------------

    @quiet
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._active:
            self._training.resume()
            self._training.wait()

    @quiet
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        self._training.resume()
        self._training.got()
        self._training.poll()

    @quiet
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any, *_: Any) -> None:
        # The rate that the step is made with: the scheduler moves on before the batch ends.
        index = next((i for i, known in enumerate(trainer.optimizers) if known is optimizer), 0)
        self._lrs[index] = optimizer.param_groups[0].get("lr")

    @quiet
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        if not self._active:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
            self._losses += 1
        self._tokens += tokens_in(batch)
        step = trainer.global_step
        if step > self._step:  # else the batch was accumulated
            self._training.step(step, self._metrics(trainer))
            self._step = step
            self._reset()
        self._training.wait()

    def _metrics(self, trainer: Any) -> Dict[str, Any]:
        metrics = _logged(trainer, on_step=True)
        if self._loss is not None:
            scale = 1 if trainer.strategy.handles_gradient_accumulation else trainer.accumulate_grad_batches
            if not trainer.lightning_module.automatic_optimization:
                scale = 1
            metrics["loss"] = self._loss if scale == self._losses else self._loss * (scale / self._losses)
        for index, optimizer in enumerate(trainer.optimizers):
            lr = self._lrs.get(index)
            lr = optimizer.param_groups[0].get("lr") if lr is None else lr
            metrics.setdefault("lr/%d" % index if index else "lr", lr)
        if self._tokens_per_step is not None:
            metrics["tokens"] = self._tokens_per_step
        elif self._tokens:
            metrics.setdefault("tokens", self._tokens * _replicas(trainer))
        return metrics

    # -- evaluations and checkpoints ---------------------------------------------------------------

    @quiet
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._active and not trainer.sanity_checking:
            self._training.pause("eval")

    @quiet
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._active or trainer.sanity_checking:
            return
        self._training.resume()
        sets: Dict[str, Dict[str, Any]] = {}
        for name, value in _logged(trainer, on_step=False).items():
            which, own = of_evaluation(name) or ("val", name)
            sets.setdefault(which, {})[own] = value
        for which, metrics in sets.items():
            self._training.evaluation(which, trainer.global_step, metrics)
        self._training.wait()

    def _save(self, trainer: Any, path: Any) -> Any:
        run = self._training.run
        if run is not None and trainer.is_global_zero:
            # Whether there is more to come than the save, ``AsyncCheckpointIO`` decides.
            self._behind = Behind(run, trainer.global_step, path, leads=True, expected=False)
            return self._training.saving(trainer.global_step, path, behind=self._behind)
        return self._training.saving(trainer.global_step, path, writes=False)

    def _load(self, checkpoint_path: Any, *_: Any, **__: Any) -> Any:
        if self._training.run is None:
            return Nothing()
        return self._training.run.checkpoint(step_in(checkpoint_path), path=plain_path(checkpoint_path), stage="load")


class _Submitted:
    """A checkpoint is given to the thread that writes one after the other, and what we give to it
    next runs when that is done."""

    def __init__(self, writer: Any, behind: Optional[Behind]) -> None:
        self._writer, self._behind = writer, behind
        self._error: Any = None

    def __enter__(self) -> None:
        self._error = getattr(self._writer, "_error", None)

    @quiet
    def __exit__(self, *error: Any) -> None:
        behind = self._behind
        executor: Any = getattr(self._writer, "_executor", None)
        # With several threads ours could be done before the one that writes.
        if behind is not None and error[0] is None and getattr(executor, "_max_workers", None) == 1:
            executor.submit(quiet(self._written), behind)
            behind.expected = True

    def _written(self, behind: Behind) -> None:
        error = getattr(self._writer, "_error", None)
        if error is None or error is self._error:
            behind.done()
        else:
            behind.failed(error)


class StepwatchCallback(_Hooks, *_bases()):  # type: ignore[misc]
    """The callback for ``Trainer(callbacks=[...])``."""


def factory() -> List[Any]:
    """The entry point: a callback for every Trainer, where there is somewhere to report to."""
    try:
        if wanted(os.environ):
            callback = StepwatchCallback()
            callback.automatic = True
            return [callback]
    except Exception:
        pass
    return []


def _leading(callbacks: List[Any]) -> Any:
    """One reports for all: the user's before that of an entry point."""
    ours = [callback for callback in callbacks if isinstance(callback, _Hooks)]
    return min(ours, key=lambda callback: callback.automatic, default=None)


def _logged(trainer: Any, on_step: bool) -> Dict[str, Any]:
    """What ``self.log`` got in this loop. Lightning's own dictionaries would turn what is shown in
    the progress bar into numbers once more, each by waiting for the device."""
    found: Dict[str, Any] = {}
    for _, item in trainer._results.valid_items():
        value = getattr(item, "_forward_cache" if on_step else "_computed", None)
        if value is None or not (item.meta.on_step if on_step else item.meta.on_epoch):
            continue
        name = item.meta.name if on_step else trainer._results._forked_name(item, False)[0]
        found[metric(name)] = value.detach() if hasattr(value, "detach") else value
        if len(found) >= MAX_LOGGED:
            break
    return found


def _replicas(trainer: Any) -> int:
    """Ranks that read different data: all but those of one tensor or pipeline parallel group."""
    return int((trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1))


def _version(trainer: Any) -> Optional[str]:
    package = type(trainer).__module__.split(".")[0]
    return getattr(sys.modules.get(package), "__version__", None)
