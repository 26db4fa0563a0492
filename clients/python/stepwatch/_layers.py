"""Which layer it was: gradient norms and activation statistics of a PyTorch model's layers, on
request and every so many steps.

Between samples it costs a comparison a step. In a sampled step hooks on the forward pass and one
look at the gradients queue a few small reductions on the device; their results are stacked into one
tensor, copied behind the work and reported when they have landed, usually a step later. The device
is never waited for.
"""

import fnmatch
import functools
import logging
import math
import sys
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Pattern, Sequence, Set, Tuple, Union

from ._device import DeviceVector
from ._flight import Here, InFlight
from ._run import Run
from ._wire import on_host

log = logging.getLogger("stepwatch")

#: Bytes of the metrics in one event; more are split over events of the same step.
MAX_BYTES = 6 * 1024
#: Whose elements are the blocks of a model.
_CONTAINERS = frozenset(("ModuleList", "ModuleDict"))
#: What wrappers put into the names of modules: DDP and FSDP, torch.compile, activation
#: checkpointing, Lightning and DeepSpeed.
_WRAPPERS = frozenset(("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "_forward_module"))

Layers = Union[str, Pattern[str], Sequence[Union[str, Pattern[str]]]]


class LayerStats:
    """``grad_norm/<layer>``, ``act_rms/<layer>`` and ``act_absmax/<layer>``, every ``every`` steps
    and at the first.

        stats = stepwatch.torch.LayerStats(run, model, every=100)
        for step, batch in enumerate(loader):
            loss = ...
            loss.backward()
            stats.step(step)        # behind backward (and ``scaler.unscale_``), before clipping and ``zero_grad``
            ...

    ``layers`` chooses by name: a glob (``"*.attn"``), a compiled regular expression, or a list of
    these. Without it they are the blocks of the model (what its ``ModuleList``\\ s hold) and the
    modules with parameters beside them. More than ``max_layers`` are thinned out evenly.

    Gradients that are spread over ranks (FSDP) are not gathered: what is reported is the norm of
    this rank's part, as ``grad_norm_shard/<layer>``. Hooks do not run inside of compiled code:
    compile the blocks, not the whole model, to see their activations; gradients are seen anyway.
    What was not seen is left out.
    """

    def __init__(
        self,
        run: Run,
        model: Any,
        every: int = 100,
        layers: Optional[Layers] = None,
        max_layers: int = 64,
        gradients: bool = True,
        activations: bool = True,
    ) -> None:
        self._run, self._every = run, max(1, int(every))
        self._gradients, self._activations = gradients, activations
        self._layers: List[_Layer] = []
        self._in_flight = InFlight(_start)
        self._handles: List[Any] = []
        self._seen: List[_Seen] = []
        self._last: Optional[int] = None
        self._sampling = False
        try:
            found = choose(model, layers)
            self._layers = thin_out(found, max(1, int(max_layers)))
            self._publish(len(found))
            self._begin()
        except Exception as e:
            log.warning("stepwatch: no statistics of layers: %r", e)

    def step(self, step: int) -> None:
        """The gradients of this step are there."""
        try:
            self._in_flight.poll()
            if self._sampling:
                self._sample(step)
            following = step + (step - self._last if self._last is not None and step > self._last else 1)
            self._last = step
            if following // self._every != step // self._every:
                self._begin()
        except Exception as e:
            self._end()
            log.debug("stepwatch: statistics of layers: %r", e)

    def close(self) -> None:
        """Takes the hooks off, and reports what is left, waiting for the device."""
        try:
            self._end()
            self._in_flight.poll(wait=True)
        except Exception:
            pass

    def _publish(self, found: int) -> None:
        kept, compiled = len(self._layers), sum(not layer.hooked for layer in self._layers)
        if found > kept:
            log.warning("stepwatch: statistics of %d of %d layers: choose with layers=, or raise max_layers", kept, found)
        if compiled and self._activations:
            log.warning("stepwatch: no activations of %d layers: they are inside of compiled code", compiled)
        self._run.event("layer_stats", level="info", layers=kept, left_out=found - kept, compiled=compiled, every=self._every)

    # -- a sample ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Looks at the step that comes."""
        self._sampling, self._seen = True, []
        if self._activations:
            for number, layer in enumerate(self._layers):
                if layer.hooked:
                    hook = functools.partial(self._look, number)
                    self._handles.append(layer.module.register_forward_hook(hook))

    def _end(self) -> None:
        self._sampling = False
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], []

    def _look(self, number: int, module: Any, inputs: Any, output: Any) -> None:
        try:
            tensor = _tensor_in(output)
            if tensor is None or not module.training:  # an evaluation is no part of the step
                return
            torch: Any = sys.modules["torch"]
            with torch.no_grad():
                local = _local(tensor.detach())
                norm = torch.linalg.vector_norm(local, 2, dtype=torch.float32)
                largest = torch.linalg.vector_norm(local, math.inf, dtype=torch.float32)
            self._seen.append(_Seen(number, local.numel(), norm, largest))
        except Exception:
            pass

    def _sample(self, step: int) -> None:
        seen, grads = self._seen, _gradients(self._layers) if self._gradients else []
        self._end()
        scalars: List[Any] = [norm for _, norm in grads]
        for look in seen:
            scalars += (look.norm, look.largest)
        about = [(look.number, look.numel) for look in seen]
        vectors, places = _stacked(scalars)
        report = functools.partial(self._report, step, places, [number for number, _ in grads], about)
        self._in_flight.put(vectors, report)

    def _report(self, step: int, places: Any, grads: List[int], seen: List[Tuple[int, int]], landed: Dict[str, Any]) -> None:
        values: Dict[int, float] = {}
        for device, vector in landed.items():
            values.update(zip(places[device], vector))
        metrics: Dict[str, float] = {}
        squares: Dict[int, float] = {}
        for place, number in enumerate(grads):
            if place in values:
                squares[number] = squares.get(number, 0.0) + values[place] * values[place]
        for number, total in squares.items():
            metrics[self._layers[number].gradient + self._layers[number].name] = math.sqrt(total)
        sums: Dict[int, Tuple[float, int, float]] = {}
        for place, (number, numel) in enumerate(seen):
            norm, largest = (values.get(len(grads) + 2 * place + i) for i in (0, 1))
            if norm is not None and largest is not None:
                total, count, top = sums.get(number, (0.0, 0, 0.0))
                top = largest if math.isnan(largest) or largest > top else top
                sums[number] = (total + norm * norm, count + numel, top)
        for number, (total, count, top) in sums.items():
            metrics["act_rms/" + self._layers[number].name] = math.sqrt(total / count)
            metrics["act_absmax/" + self._layers[number].name] = top
        for part in split(metrics):
            self._run.add(step, part)


class _Layer:
    """A module by the name that the user gave it."""

    __slots__ = ("name", "module", "hooked", "gradient")

    def __init__(self, name: str, module: Any, hooked: bool, sharded: bool) -> None:
        self.name, self.module, self.hooked = name, module, hooked
        self.gradient = "grad_norm_shard/" if sharded else "grad_norm/"


class _Seen(NamedTuple):
    """What one forward pass of one layer gave; a step with accumulated gradients has several."""

    number: int
    numel: int
    norm: Any
    largest: Any


def choose(model: Any, layers: Optional[Layers] = None) -> List[_Layer]:
    """The layers of ``model`` by their own names; of a module and its wrapper, the wrapper."""
    found: Dict[str, _Layer] = {}
    compiled: List[str] = []
    flat = any("FullyShardedDataParallel" in type(m).__name__ for m in model.modules())
    for path, module in model.named_modules():
        inside = any(path.startswith(outer) for outer in compiled)
        own = _is_compiled(module)
        if own:
            compiled.append(path + "." if path else "")
        name = own_name(path)
        if name and name not in found:
            found[name] = _Layer(name, module, not inside and not getattr(module, "_compiled_call_impl", None), flat)
    if layers is None:
        return _blocks(found)
    wanted: Iterable[Any] = layers if isinstance(layers, (list, tuple, set)) else [layers]
    return [layer for name, layer in found.items() if any(_matches(w, name) for w in wanted)]


def own_name(path: str) -> str:
    """``path`` without what wrappers put into it."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        del parts[0]
    return ".".join(parts)


def thin_out(layers: List[_Layer], limit: int) -> List[_Layer]:
    """At most ``limit`` of them, the first and the last and evenly between."""
    if len(layers) <= limit:
        return layers
    return [layers[i * (len(layers) - 1) // max(1, limit - 1)] for i in range(limit)]


def split(metrics: Dict[str, float]) -> Iterable[Dict[str, float]]:
    """Parts that fit into one event each."""
    part: Dict[str, float] = {}
    room = MAX_BYTES
    for name, value in metrics.items():
        size = 6 * len(name) if not name.isascii() else len(name) + 30
        if part and size > room:
            yield part
            part, room = {}, MAX_BYTES
        part[name] = value
        room -= size
    if part:
        yield part


def _blocks(found: Dict[str, _Layer]) -> List[_Layer]:
    """What the topmost lists of modules hold, and the modules with parameters of their own that are
    outside of them."""
    chosen: List[_Layer] = []
    inside: Set[str] = set()
    for name, layer in found.items():
        parent = name.rpartition(".")[0]
        if any(parent == outer or parent.startswith(outer + ".") for outer in inside):
            continue
        above = found.get(parent)
        if above is not None and type(above.module).__name__ in _CONTAINERS:
            inside.add(name)
            chosen.append(layer)
        elif any(True for _ in layer.module.parameters(recurse=False)):
            chosen.append(layer)
    return chosen


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _matches(wanted: Any, name: str) -> bool:
    if isinstance(wanted, str):
        return fnmatch.fnmatchcase(name, wanted)
    return wanted.search(name) is not None


def _tensor_in(output: Any, depth: int = 2) -> Any:
    """The first tensor of floating point in what a module returned."""
    if hasattr(output, "is_floating_point"):
        return output if output.is_floating_point() and output.numel() else None
    if depth == 0:
        return None
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (list, tuple)) else ()
    for value in values:
        tensor = _tensor_in(value, depth - 1)
        if tensor is not None:
            return tensor
    return None


def _local(tensor: Any) -> Any:
    """This rank's part of a tensor that is spread over ranks."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def _gradients(layers: List[_Layer]) -> List[Tuple[int, Any]]:
    """(layer, norm on its device) of every gradient."""
    torch: Any = sys.modules["torch"]
    owners: List[int] = []
    grads: List[Any] = []
    for number, layer in enumerate(layers):
        for parameter in layer.module.parameters():
            grad = parameter.grad
            if grad is None:
                continue
            if any(not p.is_replicate() for p in getattr(grad, "placements", ())):
                layer.gradient = "grad_norm_shard/"
            grad = _local(grad.detach())
            if grad.numel():
                owners.append(number)
                grads.append(grad.coalesce().values() if grad.is_sparse else grad)
    return list(zip(owners, _norms(torch, grads)))


def _norms(torch: Any, grads: List[Any]) -> List[Any]:
    """In single precision: the square of a half may be too large for one."""
    try:
        if len({(grad.device, grad.dtype) for grad in grads}) == 1:
            return list(torch._foreach_norm(grads, 2, dtype=torch.float32))  # a handful of kernels for all
    except Exception:
        pass
    return [torch.linalg.vector_norm(grad, 2, dtype=torch.float32) for grad in grads]


def _stacked(scalars: List[Any]) -> Tuple[Dict[str, Any], Dict[str, List[int]]]:
    """One vector a device (a model may be spread over several), and the places that its values had
    among all."""
    torch: Any = sys.modules["torch"]
    places: Dict[str, List[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(str(scalar.device), []).append(place)
    return {device: torch.stack([scalars[place] for place in own]) for device, own in places.items()}, places


def _start(vector: Any) -> Any:
    return Here(vector.tolist()) if on_host(vector.device) else DeviceVector.of(vector)
