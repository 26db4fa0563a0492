"""For Megatron-LM and Megatron-Bridge: every iteration, where their own log has the means of a
hundred.

Megatron-LM, without touching its scripts:

    torchrun ... -m stepwatch.megatron pretrain_gpt.py --tensor-model-parallel-size 8 ...

or, in a script of your own, ``stepwatch.megatron.install()`` before ``pretrain(...)``.
Megatron-Bridge:

    pretrain(config, forward_step, callbacks=[stepwatch.megatron.StepwatchCallback()])

Every rank reports its steps; those that know the loss (the last stage of the pipeline) report that,
with gradient norm, learning rate, loss scale, skipped iterations and the tokens of the whole job.
Evaluations and checkpoints are announced while they last. The model's FLOPs are Megatron's own
count. Losses stay on their device until they have been copied behind the computation; nothing waits
for them.
"""

import importlib
import inspect
import os
import runpy
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

from ._adapter import Behind, Guard, Training, dtype_of, quiet
from ._checkpoint import Nothing
from ._run import Phase, Run, _describe, _exit_code
from .torch import in_flight

try:
    from megatron.bridge.training.callbacks import Callback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    Callback = object

_TRAINING = "megatron.training.training"
_CHECKPOINTING = "megatron.training.checkpointing"
_BRIDGE_TRAIN = "megatron.bridge.training.train"
_BRIDGE_CHECKPOINTING = "megatron.bridge.training.checkpointing"
_BRIDGE_FLOPS = "megatron.bridge.training.utils.flop_utils"
_CALCULATOR = "megatron.core.num_microbatches_calculator"
#: The argument of a save that each node writes for itself.
_LOCAL = "non_persistent_ckpt"
#: What a folder has that checkpoints are in.
_TRACKER = "latest_checkpointed_iteration.txt"
#: The loss that models are trained for, by the names that Megatron's models give it; else it is the
#: first.
_LOSSES = ("lm loss", "loss", "reduced_train_loss", "mlm loss", "lm-loss")
#: Dimensions as Megatron names them, and as the wire does.
_DIMENSIONS = (
    ("layers", "num_layers"), ("hidden", "hidden_size"), ("heads", "num_attention_heads"), ("kv_heads", "num_query_groups"),
    ("head_dim", "kv_channels"), ("ffn", "ffn_hidden_size"), ("vocab", "padded_vocab_size"), ("vocab", "vocab_size"),
    ("seq_len", "seq_length"), ("experts", "num_moe_experts"), ("experts", "num_experts"), ("top_k", "moe_router_topk"),
)  # fmt: skip
_PARALLEL = (("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size"), ("cp", "context_parallel_size"),
             ("ep", "expert_model_parallel_size"))  # fmt: skip


def losses(found: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Megatron's dictionary of losses under the names of the wire. A value may be a tensor on any
    device, or a sum and its count."""
    metrics: Dict[str, Any] = {}
    first = next((name for name in _LOSSES if found and name in found), next(iter(found or ()), None))
    for name, value in (found or {}).items():
        if isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1 and len(value) == 2:
            value = value[0] / value[1]
        metrics["loss" if name == first else name.replace(" ", "_")] = value
    return metrics


class _Megatron:
    """What is known of either loop while it runs."""

    def __init__(self, run: Optional[Run], about: Dict[str, Any]) -> None:
        self.training = Training(run, about, in_flight())
        self._described = False
        #: The checkpoint of the last save, and those that are written behind the training.
        self._behind: Optional[Behind] = None
        self._written: List[Behind] = []

    def __getstate__(self) -> Dict[str, Any]:
        """What is being saved stays where it is, as the run does."""
        return dict(self.__dict__, _described=False, _behind=None, _written=[])

    def begin(self, framework: str, module: str) -> None:
        if self.training.run is None:
            version = getattr(sys.modules.get(module), "__version__", None)
            self.training.begin(framework=framework, version=version)

    def describe(self, settings: List[Any], flops: Optional[Callable[[], float]]) -> None:
        """Once, when everything is built. ``settings`` are the objects that have Megatron's
        arguments as attributes."""
        if self._described:
            return
        self._described = True

        def of(name: str) -> Any:
            return next((getattr(s, name) for s in settings if getattr(s, name, None) is not None), None)

        model: Dict[str, Any] = {}
        for ours, theirs in _DIMENSIONS:
            value = of(theirs)
            if theirs == "num_query_groups" and of("group_query_attention") is False:
                continue  # it is 1 then, and means nothing
            if isinstance(value, int) and not isinstance(value, bool):
                model.setdefault(ours, value)
        about: Dict[str, Any] = {ours: of(theirs) for ours, theirs in _PARALLEL}
        about["dtype"] = "bfloat16" if of("bf16") else "float16" if of("fp16") else None
        about["dtype"] = dtype_of("fp8") if of("fp8") else about["dtype"]
        try:
            per_token = flops() / (of("seq_length") or model["seq_len"]) if flops is not None else None
            if per_token:
                about.update(flops_per_token=per_token, convention="megatron")
        except Exception:
            pass  # a model that Megatron has no formula for
        self.training.describe(model=model or None, **about)

    def saving(self, step: Any, folder: Any, local: bool = False) -> Any:
        """A context for a save, which may become one that is written behind the training. A
        ``local`` one is written elsewhere, by each node for itself, and is lost with it."""
        run = self.training.run
        path = None if local or not folder or not isinstance(step, int) else os.path.join(str(folder), "iter_%07d" % step)
        if run is not None:
            self._behind = Behind(run, step, path, leads=run.rank == 0, expected=False, lasting=not local)
        return self.training.saving(step, path, behind=self._behind)

    def scheduled(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around ``schedule_async_save``. What is called last when the request is finalized, behind
        what writes the number of the iteration, is ours."""
        behind, self._behind = self._behind, None
        if behind is not None:
            quiet(self._follow)(behind, [*args, *kwargs.values()])
        return inner(*args, **kwargs)

    def _follow(self, behind: Behind, given: List[Any]) -> None:
        next(request for request in given if hasattr(request, "add_finalize_fn")).add_finalize_fn(quiet(behind.done))
        behind.expected = True
        self._written = [one for one in self._written if not one.over] + [behind]

    def finalized(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around ``maybe_finalize_async_save``: it raises for the oldest that is not finalized."""
        try:
            return inner(*args, **kwargs)
        except Exception as error:
            quiet(self._failed)(error)
            raise

    def _failed(self, error: Exception) -> None:
        first = next((one for one in self._written if not one.over), None)
        if first is not None:
            first.failed(error)

    def batch(self, sequence: Any) -> Dict[str, Any]:
        """Samples and tokens that the whole job takes in one step."""
        calculator: Any = sys.modules.get(_CALCULATOR)
        try:
            samples = int(calculator.get_current_global_batch_size())
        except Exception:
            return {}
        return {"samples": samples, "tokens": samples * sequence} if sequence else {"samples": samples}


# -- Megatron-LM -----------------------------------------------------------------------------------


class _Installed(_Megatron):
    """Takes the place of functions of ``megatron.training.training``, which calls them by name."""

    def __init__(self, run: Optional[Run], about: Dict[str, Any]) -> None:
        super().__init__(run, about)
        self._steps: Optional[inspect.Signature] = None
        self.module: Any = None
        self.checkpointing: Any = None

    def put(self, module: Any, checkpointing: Any) -> None:
        self.module, self.checkpointing = module, checkpointing
        self._steps = inspect.signature(module.training_log)
        for name, around in (
            ("train", self._train),
            ("training_log", self._log),
            ("evaluate", self._evaluate),
            ("evaluate_and_print_results", self._evaluation),
            ("save_checkpoint_and_time", self._save),
            ("maybe_finalize_async_save", self.finalized),
            ("load_checkpoint", self._load),
        ):
            _replace(module, name, around)
        _replace(checkpointing, "schedule_async_save", self.scheduled)

    def _train(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        quiet(self._begin)()
        try:
            return inner(*args, **kwargs)
        except BaseException as error:
            quiet(self._ended)(error)
            raise

    def _ended(self, error: BaseException) -> None:
        self.training.end(_exit_code(type(error), error), _describe(type(error), error))

    def _begin(self) -> None:
        self.begin("megatron", "megatron.core")
        args, of = self.module.get_args(), getattr(self.module, "num_floating_point_operations", None)
        self.describe([args], None if of is None else lambda: float(of(args, 1)))
        self.training.restart_clock()

    def _log(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # First: it adds the losses up in place, and empties them.
        quiet(self._report)(*args, **kwargs)
        return inner(*args, **kwargs)

    def _report(self, *args: Any, **kwargs: Any) -> None:
        if self.training.run is None:
            self._begin()
        assert self._steps is not None
        given = self._steps.bind(*args, **kwargs).arguments
        metrics = losses(given.get("loss_dict"))
        metrics["lr"] = given.get("learning_rate")
        for name, theirs in (
            ("grad_norm", "grad_norm"), ("loss_scale", "loss_scale"), ("params_norm", "params_norm"), ("num_zeros", "num_zeros_in_grad"),
        ):  # fmt: skip
            if given.get(theirs) is not None:
                metrics[name] = given[theirs]
        if given.get("skipped_iter"):
            metrics["skipped"] = 1
        metrics.update(self.batch(getattr(self.module.get_args(), "seq_length", None)))
        self.training.step(given["iteration"], metrics)
        self.training.poll()

    def _evaluation(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        quiet(self._evaluates)(*args)
        try:
            return inner(*args, **kwargs)
        finally:
            quiet(self.training.resume)()

    def _evaluates(self, prefix: Any = "", *_: Any) -> None:
        self._evaluating = ("test" if "test" in str(prefix) else "validation", getattr(self.module.get_args(), "curr_iteration", None))
        self.training.pause("eval")

    _evaluating: Any = ("validation", None)

    def _evaluate(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        quiet(self._evaluated)(result)
        return result

    def _evaluated(self, result: Any) -> None:
        name, step = self._evaluating
        self.training.evaluation(name, step, losses(result[0] if isinstance(result, tuple) else result))

    def _save(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def saving() -> Any:
            step = args[0] if args else kwargs.get("iteration")
            return self.saving(step, getattr(self.module.get_args(), "save", None), _local(inner, args, kwargs))

        with Guard(saving):
            return inner(*args, **kwargs)

    def _load(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Before ``train``: the run begins with it.
        quiet(self._begin)()
        with Guard(self._loading) as loading:
            result = inner(*args, **kwargs)
            if isinstance(loading, _Loading):
                quiet(loading.returned)(result)
            return result

    def _loading(self) -> Any:
        run = self.training.run
        return Nothing() if run is None else _Loading(run, getattr(self.module.get_args(), "load", None))


class _Loading:
    """A load, of the iteration that it gives back. A run that starts afresh goes through here, too,
    and loads nothing. So the start is reported only where the folder has a checkpoint to be seen.
    Elsewhere it may be a node's own, and iteration 0 means that there was none."""

    def __init__(self, run: Run, folder: Any) -> None:
        self._run = run
        self._load = run.checkpoint(path=folder, stage="load").unreported()
        self._seen = bool(folder) and os.path.exists(os.path.join(str(folder), _TRACKER))
        self._phase: Optional[Phase] = None

    def __enter__(self) -> "_Loading":
        if self._seen:
            self._load.start()
        else:
            self._phase = self._run.phase("load", announce=False).__enter__()
        return self

    def returned(self, result: Any) -> None:
        if isinstance(result, tuple) and isinstance(result[0], int) and result[0] > 0:
            self._load.step = result[0]

    def __exit__(self, *error: Any) -> None:
        if self._phase is not None:
            self._load.seconds = self._run.leave(self._phase, timed=False)
        if error[0] is not None:
            self._load.fail(error[1])
        elif self._seen or self._load.step is not None:
            self._load.end()


def _local(inner: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a save is one that each node writes for itself. Forks have more arguments before the
    one that says so, and wrappers name none."""
    try:
        return bool(inspect.signature(inner).bind(*args, **kwargs).arguments.get(_LOCAL, kwargs.get(_LOCAL)))
    except (TypeError, ValueError):
        return bool(kwargs.get(_LOCAL))


def _replace(module: Any, name: str, around: Callable[..., Any]) -> None:
    inner = getattr(module, name, None)
    if inner is not None and not hasattr(inner, "stepwatch"):
        setattr(module, name, _replaced(inner, around))


def _replaced(inner: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "__signature__"):
        if hasattr(inner, attribute):
            setattr(call, attribute, getattr(inner, attribute))
    call.stepwatch = inner  # type: ignore[attr-defined]
    return call


_installed: List[_Installed] = []


def install(run: Optional[Run] = None, name: Optional[str] = None, **about: Any) -> bool:
    """Reports what Megatron-LM's training loop does from now on. Returns whether it is there."""
    if name is not None:
        about["name"] = name
    try:
        module = importlib.import_module(_TRAINING)
        if not hasattr(module.training_log, "stepwatch"):
            installed = _Installed(run, about)
            try:
                checkpointing: Any = importlib.import_module(_CHECKPOINTING)
            except Exception:  # one without it saves while the step waits
                checkpointing = None
            installed.put(module, checkpointing)
            _installed.append(installed)
        return True
    except Exception as e:
        print("stepwatch: Megatron-LM is not reported: %s: %s" % (type(e).__name__, e), file=sys.stderr)
        return False


def uninstall() -> None:
    """Leaves Megatron as it was, and ends runs of our own."""
    while _installed:
        installed = _installed.pop()
        for module in (installed.module, installed.checkpointing):
            for name, function in list(vars(module).items()) if module is not None else []:
                inner = getattr(function, "stepwatch", None)
                if inner is not None:
                    setattr(module, name, inner)
        quiet(installed.training.end)()


def main(argv: List[str]) -> int:
    """``python -m stepwatch.megatron SCRIPT ARGS``: as Python would run SCRIPT, with the adapter
    installed."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m stepwatch.megatron SCRIPT [ARGS]\n\nRuns a script of Megatron-LM and reports its training.", file=sys.stderr)
        return 2
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    install()
    runpy.run_path(argv[0], run_name="__main__")
    uninstall()
    return 0


# -- Megatron-Bridge -------------------------------------------------------------------------------


class StepwatchCallback(Callback):  # type: ignore[misc]
    """Reports to ``run``, or to a run of its own, which ends with the process: a last checkpoint
    may follow training."""

    def __init__(self, run: Optional[Run] = None, name: Optional[str] = None, **about: Any) -> None:
        super().__init__()
        if name is not None:
            about["name"] = name
        self._megatron = _Megatron(run, about)
        self._training = self._megatron.training
        self._lr: Any = None

    @quiet
    def on_train_start(self, context: Any) -> None:
        config = context.state.cfg
        self._megatron.begin("megatron-bridge", "megatron.bridge")
        settings = [config.model, getattr(config, "train", None), getattr(config, "dataset", None), getattr(config, "mixed_precision", None)]
        flops: Any = sys.modules.get(_BRIDGE_FLOPS)
        self._megatron.describe(settings, None if flops is None else lambda: float(flops.num_floating_point_operations(config, 1)))
        train: Any = sys.modules.get(_BRIDGE_TRAIN)
        if train is not None:
            _replace(train, "save_checkpoint_and_time", self._save)
            _replace(train, "maybe_finalize_async_save", self._megatron.finalized)
            _replace(sys.modules.get(_BRIDGE_CHECKPOINTING), "schedule_async_save", self._megatron.scheduled)
        self._training.restart_clock()

    @quiet
    def on_train_step_start(self, context: Any) -> None:
        self._training.resume()
        self._training.poll()
        # The rate that the step is made with: the scheduler moves on in it.
        groups = context.optimizer.param_groups
        self._lr = next((g["lr"] for g in groups if g and not g.get("is_decoupled_lr")), None)

    @quiet
    def on_train_step_end(self, context: Any) -> None:
        metrics = losses(context.loss_dict)
        metrics.update(lr=self._lr, grad_norm=context.grad_norm)
        if context.skipped_iter:
            metrics["skipped"] = 1
        metrics.update(self._megatron.batch(getattr(context.state.cfg.model, "seq_length", None)))
        self._training.step(context.state.train_state.step + 1, metrics)  # counted after the callbacks

    @quiet
    def on_train_end(self, context: Any) -> None:
        self._training.pause("train_end")

    @quiet
    def on_eval_start(self, context: Any) -> None:
        self._training.pause("eval")

    @quiet
    def on_eval_end(self, context: Any) -> None:
        self._evaluated("validation", context)

    @quiet
    def on_test_start(self, context: Any) -> None:
        self._training.pause("eval")

    @quiet
    def on_test_end(self, context: Any) -> None:
        self._evaluated("test", context)

    def _evaluated(self, name: str, context: Any) -> None:
        self._training.resume()
        self._training.evaluation(name, context.state.train_state.step, losses(context.total_loss_dict))

    def _save(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def saving() -> Any:
            state = args[0] if args else kwargs.get("state")
            step = getattr(getattr(state, "train_state", None), "step", None)
            folder = getattr(getattr(getattr(state, "cfg", None), "checkpoint", None), "save", None)
            return self._megatron.saving(step, folder, _local(inner, args, kwargs))

        with Guard(saving):
            return inner(*args, **kwargs)

    @quiet
    def close(self) -> None:
        """Ends a run of its own, for a program that goes on after training."""
        self._training.end()


if __name__ == "__main__":
    # As ``stepwatch.megatron``, so that there is one of us, whatever the script imports.
    sys.exit(importlib.import_module("stepwatch.megatron").main(sys.argv[1:]))
