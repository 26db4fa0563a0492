"""For a PyTorch loop of one's own: reports without ever waiting for the device.

Reading a loss with ``.item()`` makes the host wait until the device has caught up, which costs far
more than any report. The reporter copies each value to pinned host memory behind the work that
computes it, and passes a step on once its copies have landed: usually while the next step runs. The
times it reports are those of the call.

    reporter = stepwatch.torch.StepReporter(run, model, optimizer)
    for step, batch in enumerate(loader):
        loss = ...
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        reporter.step(step, loss=loss, grad_norm=norm, tokens=tokens)

``CheckpointReporter(run)`` reports what ``torch.distributed.checkpoint`` saves and loads.
"""

import functools
import sys
import time
from types import TracebackType
from typing import Any, Dict, Iterable, List, Optional, Type

from ._dcp import CheckpointReporter as CheckpointReporter
from ._device import DeviceValue
from ._flight import MAX_IN_FLIGHT as MAX_IN_FLIGHT
from ._flight import InFlight
from ._layers import LayerStats as LayerStats
from ._mfu import dimensions_of
from ._run import Run


class StepReporter:
    """Fills in what the model and the optimizer have: learning rate, parameter count and dtype, and
    the gradient norm on request."""

    def __init__(
        self, run: Run, model: Any = None, optimizer: Any = None, tokens: Optional[float] = None, norm: bool = False
    ) -> None:
        """``tokens`` is the whole job's count in a step where it never changes. With ``norm`` the
        total gradient norm is computed from ``model`` when a step gives none: call ``step`` before
        ``zero_grad`` then."""
        self._run, self._model, self._optimizer = run, model, optimizer
        self._tokens, self._norm = tokens, norm
        self._last: Optional[float] = None
        self._in_flight = in_flight()
        if model is not None:
            try:
                run.describe(**describe_model(model))
            except Exception:
                pass

    def step(self, step: int, **metrics: Any) -> None:
        """As ``Run.step``; the values may be tensors on any device."""
        try:
            now = time.monotonic()
            before, self._last = self._last, now
            self._run.mark(step)
            self._complete(metrics)
            phases = self._run.take_phases()
            self._in_flight.put(metrics, functools.partial(self._report, now, before, step, phases))
        except Exception:
            pass

    def flush(self) -> None:
        """Reports what is left, waiting for the device: for the end of training."""
        try:
            self._in_flight.poll(wait=True)
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
            self._in_flight.poll(wait=kind is None, give_up=kind is not None)
        except Exception:
            pass

    def _complete(self, metrics: Dict[str, Any]) -> None:
        if "lr" not in metrics and self._optimizer is not None:
            metrics["lr"] = self._optimizer.param_groups[0].get("lr")
        if self._tokens is not None:
            metrics.setdefault("tokens", self._tokens)
        if self._norm and "grad_norm" not in metrics and self._model is not None:
            metrics["grad_norm"] = total_grad_norm(self._model.parameters())

    def _report(self, at: float, before: Optional[float], step: Any, phases: Any, metrics: Dict[str, Any]) -> None:
        self._run.report(at, before, step, metrics, phases)


def in_flight() -> InFlight:
    """For adapters: reports whose values may be tensors on any device."""
    return InFlight(DeviceValue.of)


def total_grad_norm(parameters: Iterable[Any]) -> Any:
    """The L2 norm of all gradients, as ``clip_grad_norm_`` computes it, left on the device; None
    when there is none to be had.

    Gradients that are spread over ranks (FSDP2, tensor parallelism) would need a collective, which
    an observer must not start: there, pass what ``clip_grad_norm_`` returned.
    """
    grads: List[Any] = [p.grad.detach() for p in parameters if getattr(p, "grad", None) is not None]
    if not grads or any(hasattr(g, "placements") for g in grads):
        return None
    torch: Any = sys.modules["torch"]  # whoever has gradients has imported it
    first = grads[0].device
    if hasattr(torch, "_foreach_norm") and all(g.device == first and not g.is_sparse for g in grads):
        norms = list(torch._foreach_norm(grads, 2))
    else:
        norms = [torch.linalg.vector_norm(g.coalesce().values() if g.is_sparse else g, 2) for g in grads]
    return torch.linalg.vector_norm(torch.stack([n.to(first, torch.float32) for n in norms]), 2)


def describe_model(model: Any) -> Dict[str, Any]:
    """Parameter count and dtype, and the dimensions from a Hugging Face style ``config`` where
    there is one.

    The counts are left out where this rank sees only its shard: a wrong one would make every MFU
    wrong.
    """
    parameters = list(model.parameters())
    holder = next((m for m in [model, *model.children()] if hasattr(m, "config")), None)
    config = getattr(holder, "config", None)
    about: Dict[str, Any] = dimensions_of(config) if config is not None else {}
    if not any("FullyShardedDataParallel" in type(module).__name__ for module in model.modules()):
        about["n_params"] = sum(_count(p) for p in parameters)
        trainable = sum(_count(p) for p in parameters if p.requires_grad)
        if 0 < trainable < about["n_params"]:
            about["trainable_params"] = trainable
        looked_up = _looked_up(holder)
        if looked_up:
            about["n_embedding"] = looked_up
    for key, names in (
        ("layers", ("num_hidden_layers", "n_layer")),
        ("heads", ("num_attention_heads", "n_head")),
        ("head_dim", ("head_dim",)),
        ("hidden", ("hidden_size", "n_embd")),
        ("vocab", ("vocab_size",)),
    ):
        for name in names:
            value = getattr(config, name, None)
            if type(value) is int:
                about.setdefault(key, value)
    if "head_dim" not in about and about.get("hidden") and about.get("heads"):
        about["head_dim"] = about["hidden"] // about["heads"]
    dtype = str(parameters[0].dtype).replace("torch.", "") if parameters else None
    return {"model": about, "dtype": dtype, "framework": "torch"}


def _count(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())


def _looked_up(model: Any) -> int:
    """Parameters of an embedding that only looks up: not of one whose weights are those of the
    logits too."""
    try:
        weight = model.get_input_embeddings().weight
        out = model.get_output_embeddings()
        return 0 if getattr(out, "weight", None) is weight else _count(weight)
    except Exception:
        return 0  # no language model
