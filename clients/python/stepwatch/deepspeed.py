"""For DeepSpeed without another trainer on top: one line, on every rank.

    engine, *_ = deepspeed.initialize(...)
    stepwatch.deepspeed.attach(engine)                       # import stepwatch.deepspeed

or ``stepwatch.deepspeed.install()`` before it, for every engine that is made from then on.
DeepSpeed's own monitors never learn the loss, and count samples where others count steps. Here a
step is an optimizer step, numbered as ``engine.global_steps``, with the loss that
``engine.backward`` got (else that ``forward`` returned, or that the pipeline computed), the mean
over the batches that it accumulates; the gradient norm, the learning rate, the loss scale, and
whether fp16 skipped it. Nothing waits for the device, and no monitor is switched on for it: that
would start collectives that the other ranks do not expect. What monitors of DeepSpeed are given, we
are given, too.

Where Transformers, Accelerate or Lightning drive DeepSpeed, use the adapter for those.
"""

import importlib
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ._adapter import Around, Saving, Tap, Training, metric, of_evaluation, quiet, tokens_in
from ._run import Run
from .torch import describe_model, in_flight

try:
    from deepspeed.monitor.monitor import Monitor
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    Monitor = object

_PREFIX = "Train/Samples/"
#: Values of the engine that we measure better.
_LEFT_OUT = ("lr", "loss_scale", "train_loss")
_TIMER = "elapsed_time_ms_"
_PARTS = {"forward": "forward", "backward": "backward", "step": "optim"}
#: Metrics between two steps; more are left out.
MAX_EVENTS = 128


class StepwatchMonitor(Monitor):  # type: ignore[misc]
    """A monitor in DeepSpeed's sense, which hands everything on to the one that was there:
    ``write_events([(tag, value, x), ...])``.

    ``attach`` puts it in the place of ``engine.monitor``. Without an engine ``x`` is taken for the
    step, so that it serves any loop that has events in this form.
    """

    def __init__(
        self, monitor_config: Any = None, inner: Any = None, engine: Any = None, training: Optional[Training] = None
    ) -> None:
        self.monitor_config = monitor_config
        self._inner, self._engine = inner, engine
        self._training = training if training is not None else Training(None, {}, in_flight())
        #: What belongs to the step that is being made, None between two.
        self.pending: Optional[Dict[str, Any]] = None
        self.parts: Dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        """``enabled``, ``tb_monitor`` and whatever else somebody looks for."""
        inner = self.__dict__.get("_inner")
        if inner is not None:
            return getattr(inner, name)
        if name == "enabled":
            return True
        raise AttributeError(name)

    def write_events(self, event_list: Sequence[Tuple[str, Any, Any]]) -> None:
        if self._inner is not None:
            self._inner.write_events(event_list)
        quiet(self._take)(event_list)

    def _take(self, events: Sequence[Tuple[str, Any, Any]]) -> None:
        if self._training.run is None and self._engine is None:
            self._training.begin()
        found: Dict[Any, Dict[str, Any]] = {}
        for tag, value, x in events[:MAX_EVENTS]:
            name = tag[len(_PREFIX) :] if tag.startswith(_PREFIX) else tag
            evaluated = of_evaluation(name)
            step = x if self._engine is None else self._engine.global_steps
            if evaluated is not None:
                self._training.evaluation(evaluated[0], step, {evaluated[1]: value})
            elif name.startswith(_TIMER):
                part = _PARTS.get(name[len(_TIMER) :])
                if part is not None and self.pending is not None:
                    self.parts[part] = float(value) / 1000.0
            elif self._engine is None or not tag.startswith(_PREFIX) or name not in _LEFT_OUT:
                found.setdefault(step, {})[metric(name)] = value
        for step, metrics in found.items():
            if self.pending is not None:
                self.pending.update(metrics)
            else:
                self._training.add(step, metrics)


class Attached:
    """What ``attach`` returns: ``remove()`` takes everything back, ``run`` is what it reports
    to."""

    def __init__(self, engine: Any, run: Optional[Run], tokens: Optional[float], about: Dict[str, Any]) -> None:
        self._engine, self._tokens_per_step = engine, tokens
        self._training = Training(run, about, in_flight())
        self._taps: List[Tap] = []
        self._monitor: Optional[StepwatchMonitor] = None
        self._reset()

    @property
    def run(self) -> Optional[Run]:
        return self._training.run

    def _reset(self) -> None:
        self._backward: Any = None
        self._forward: Any = None
        self._losses = self._outputs = self._tokens = 0
        self._lr: Any = None

    @quiet
    def begin(self) -> None:
        engine, deepspeed = self._engine, sys.modules.get("deepspeed")
        about = describe_model(engine.module)
        half = "bfloat16" if _ask(engine, "bfloat16_enabled") else "float16" if _ask(engine, "fp16_enabled") else about["dtype"]
        about.update(framework="deepspeed", version=getattr(deepspeed, "__version__", None), dtype=half)
        about.update(rank=getattr(engine, "global_rank", None), world=getattr(engine, "world_size", None))
        about.update(zero_stage=_ask(engine, "zero_optimization_stage"), accumulate_grad_batches=_ask(engine, "gradient_accumulation_steps"))
        self._training.begin(**about)
        self._step, self._skipped = engine.global_steps, engine.skipped_steps
        self._tap()
        self._training.restart_clock()

    def _tap(self) -> None:
        engine = self._engine
        taps = self._taps
        taps.append(Around(engine, "forward", self._on_forward, self._on_output))
        taps.append(Tap(engine, "backward", self._on_backward))
        taps.append(Around(engine, "step", self._before_step, self._after_step))
        if hasattr(type(engine), "train_batch"):  # the engine passes on what its module has
            taps.append(Around(engine, "train_batch", self._before_step, self._after_step))
        taps.append(Saving(engine, "save_checkpoint", self._save))
        taps.append(Around(engine, "load_checkpoint", lambda *_, **__: self._training.pause("checkpoint_load"), self._loaded))
        if hasattr(type(engine), "destroy"):
            taps.append(Tap(engine, "destroy", self.end))
        if hasattr(engine, "monitor"):
            self._monitor = StepwatchMonitor(None, engine.monitor, engine, self._training)
            engine.monitor = self._monitor

    def _on_forward(self, *args: Any, **kwargs: Any) -> None:
        self._training.got()
        self._training.poll()
        if self._engine.module.training:
            self._tokens += tokens_in(kwargs) or tokens_in(args[0] if args and hasattr(args[0], "keys") else None)

    def _on_output(self, output: Any) -> None:
        loss: Any = getattr(output, "loss", output[0] if isinstance(output, tuple) and output else output)
        if self._engine.module.training and getattr(loss, "requires_grad", False) and loss.numel() == 1:
            loss = loss.detach()
            self._forward = loss if self._forward is None else self._forward + loss
            self._outputs += 1

    def _on_backward(self, loss: Any = None, *_: Any, **__: Any) -> None:
        if loss is not None and hasattr(loss, "detach") and loss.numel() == 1:
            loss = loss.detach()
            self._backward = loss if self._backward is None else self._backward + loss
            self._losses += 1

    def _before_step(self, *_: Any, **__: Any) -> None:
        if self._monitor is not None:
            self._monitor.pending, self._monitor.parts = {}, {}
        # The rate that the step is made with: the scheduler moves on in it.
        rates = _ask(self._engine, "get_lr")
        self._lr = rates[0] if rates else None

    def _after_step(self, _: Any) -> None:
        engine, monitor = self._engine, self._monitor
        pending = (monitor.pending if monitor is not None else None) or {}
        if monitor is not None:
            monitor.pending = None
        if engine.global_steps > self._step:  # else the batch was accumulated
            self._report(pending)
            self._reset()
        self._step = engine.global_steps
        self._training.wait()

    def _report(self, metrics: Dict[str, Any]) -> None:
        engine, run = self._engine, self._training.run
        skipped = engine.skipped_steps - self._skipped
        self._skipped = engine.skipped_steps
        metrics.update(lr=self._lr, grad_norm=_ask(engine, "get_global_grad_norm"), samples=_ask(engine, "train_batch_size"))
        if self._losses:
            metrics["loss"] = self._backward / self._losses
        elif self._outputs:
            metrics["loss"] = self._forward / self._outputs
        elif getattr(engine, "agg_train_loss", None) is not None:
            metrics["loss"] = engine.agg_train_loss
        if skipped > 0:
            metrics["skipped"] = skipped
        if _ask(engine, "fp16_enabled"):
            metrics["loss_scale"] = getattr(engine.optimizer, "cur_scale", None)
        if self._tokens_per_step is not None:
            metrics["tokens"] = self._tokens_per_step
        elif self._tokens:
            metrics.setdefault("tokens", self._tokens * int(getattr(engine, "dp_world_size", 1)))
        if run is not None and self._monitor is not None:
            for part, seconds in self._monitor.parts.items():
                run._phases[part] = seconds
        self._training.step(engine.global_steps, metrics)

    def _save(self, save_dir: Any, tag: Any = None, *_: Any, **__: Any) -> Any:
        step = self._engine.global_steps
        run = self._training.run
        path = os.path.join(str(save_dir), "global_step%d" % step if tag is None else str(tag))
        return self._training.saving(step, path, writes=run is not None and run.rank == 0)

    def _loaded(self, _: Any) -> None:
        self._step, self._skipped = self._engine.global_steps, self._engine.skipped_steps
        self._training.resume()
        self._training.restart_clock()

    @quiet
    def end(self) -> None:
        self._training.end()

    @quiet
    def remove(self) -> None:
        """Leaves the engine as it was, and ends a run of its own."""
        while self._taps:
            self._taps.pop().remove()
        if self._monitor is not None and self._engine.monitor is self._monitor:
            self._engine.monitor = self._monitor._inner
        self._training.end()


def attach(
    engine: Any,
    run: Optional[Run] = None,
    name: Optional[str] = None,
    tokens_per_step: Optional[float] = None,
    **about: Any
) -> Attached:
    """Reports what ``engine`` does to ``run``, or to a run of its own that ends with
    ``engine.destroy()`` or the process.

    ``tokens_per_step`` is the whole job's; without it the tokens of batches with ``input_ids`` are
    counted, padding included.
    """
    if name is not None:
        about["name"] = name
    attached = Attached(engine, run, tokens_per_step, about)
    attached.begin()
    return attached


def install(**options: Any) -> bool:
    """Attaches to every engine that ``deepspeed.initialize`` makes from now on. Returns whether it
    could."""
    try:
        deepspeed: Any = importlib.import_module("deepspeed")
        if not hasattr(deepspeed.initialize, "stepwatch"):
            deepspeed.initialize = _attaching(deepspeed.initialize, options)
        return True
    except Exception:
        return False


def _attaching(inner: Callable[..., Any], options: Dict[str, Any]) -> Callable[..., Any]:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        quiet(lambda: attach(made[0], **options))()
        return made

    initialize.stepwatch = inner  # type: ignore[attr-defined]
    return initialize


def _ask(engine: Any, question: str) -> Any:
    """What the engine answers; None where this kind of engine has none."""
    try:
        return getattr(engine, question)()
    except Exception:
        return None
