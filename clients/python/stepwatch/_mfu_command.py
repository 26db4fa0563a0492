"""The command ``stepwatch mfu``: its arguments, and the table that it prints."""

import argparse
import json
import re
import sys
from typing import Any, Dict, List, Optional

from ._mfu import CONVENTIONS, DTYPES, Model, Peak, peak

HELP = "FLOPs per token and MFU of a model by each published convention"
#: Above this the model, the device or the number format is not what was given.
IMPLAUSIBLE = 0.75

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_DIMENSIONS = (
    ("params", "parameters (8e9, 8B)"),
    ("active-params", "parameters that work on a token, of a mixture of experts"),
    ("trainable-params", "parameters with a gradient, of adapters such as LoRA"),
    ("layers", "transformer layers"),
    ("hidden", "width of the residual stream"),
    ("heads", "attention heads"),
    ("kv-heads", "key and value heads, when fewer (GQA)"),
    ("head-dim", "width of a head, when not hidden / heads"),
    ("ffn", "width of the feed-forward part"),
    ("vocab", "size of the vocabulary"),
    ("seq-len", "sequence length in training"),
    ("packed-seq-len", "sum of squared document lengths over their sum, when documents are packed and masked"),
    ("experts", "experts of a layer"),
    ("top-k", "experts that a token passes"),
    ("expert-ffn", "width of an expert, when not that of --ffn"),
    ("shared-ffn", "width of the experts that every token passes"),
    ("mtp-layers", "extra layers that predict further tokens"),
)


def number(text: str) -> float:
    """A positive number, with a suffix if need be: ``8e9``, ``8B``, ``128k``."""
    found = re.fullmatch(r"([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kKmMbBgGtT]?)", text.strip())
    value = float(found.group(1).replace("_", "").replace(",", "")) * _SCALES[found.group(2).lower()] if found else 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a positive number such as 8e9, 8B or 4096, got %r" % text)
    return value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints FLOPs per token and, given a speed and a device, MFU by each convention. Dimensions come from --config (a Hugging Face "
        "config.json or any JSON object with a framework's names), options beat it. What is not given is not guessed."
    )
    parser.add_argument("--config", metavar="FILE", help="JSON with the model's dimensions; - reads it from standard input")
    model = parser.add_argument_group("model")
    for name, text in _DIMENSIONS:
        model.add_argument("--" + name, type=number, metavar="N", help=text)
    gate = model.add_mutually_exclusive_group()
    gate.add_argument("--gated", dest="gated", action="store_true", default=None, help="the feed-forward part has a gate (SwiGLU, GeGLU)")
    gate.add_argument("--not-gated", dest="gated", action="store_false", help="it has none (GELU, ReLU)")
    speed = parser.add_argument_group("speed, in one of three ways")
    speed.add_argument("--tokens-per-second-per-gpu", type=number, metavar="N")
    speed.add_argument("--tokens-per-second", type=number, metavar="N", help="of the whole job; with --world")
    speed.add_argument("--tokens-per-step", type=number, metavar="N", help="of the whole job; with --step-time and --world")
    speed.add_argument("--step-time", type=number, metavar="SECONDS")
    speed.add_argument("--world", type=number, metavar="GPUS")
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME", help='as drivers spell it: "H100", "NVIDIA H200", "MI300X", "TPU v5p"')
    device.add_argument("--dtype", choices=DTYPES, default="bf16", help="format of the matrix products (default %(default)s)")
    device.add_argument("--peak-tflops", type=number, metavar="N", help="dense peak of a device that is not in the table")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    fields = _fields(args)
    model = Model(fields)
    flops = model.flops_per_token()
    if model.refused is not None:
        return _refuse("no formula for this model: " + model.refused)
    if not flops:
        return _refuse("give at least --params, or the dimensions: missing are " + ", ".join(_option(n) for n in model.missing()))
    top = None
    if args.peak_tflops is not None:
        top = Peak(args.peak_tflops * 1e12, "--peak-tflops")
    elif args.device:
        top = peak(args.device, args.dtype)
        if top is None:
            return _refuse("no %s peak is known of %r; give --peak-tflops" % (args.dtype, args.device))
    speed = _speed(args)
    if args.format == "json":
        _print_json(flops, top, speed)
    else:
        _print_table(model, flops, top, speed)
    return 0


def _fields(args: argparse.Namespace) -> Dict[str, Any]:
    fields: Dict[str, Any] = {}
    if args.config:
        try:
            with (sys.stdin if args.config == "-" else open(args.config, encoding="utf-8")) as f:
                read = json.load(f)
        except (OSError, ValueError) as error:
            raise SystemExit(_refuse("--config %s: %s" % (args.config, error)))
        if not isinstance(read, dict):
            raise SystemExit(_refuse("--config %s: must be a JSON object" % args.config))
        fields = read
    for name, _ in _DIMENSIONS:
        value = getattr(args, name.replace("-", "_"))
        if value is not None:
            # The first name of each dimension wins over those in the file.
            fields[{"params": "n_params", "active-params": "n_active"}.get(name, name.replace("-", "_"))] = value
    if args.gated is not None:
        fields["gated"] = args.gated
    return fields


def _speed(args: argparse.Namespace) -> Optional[float]:
    if args.tokens_per_second_per_gpu is not None:
        return float(args.tokens_per_second_per_gpu)
    total = args.tokens_per_second
    if total is None and args.tokens_per_step is not None:
        if args.step_time is None:
            raise SystemExit(_refuse("--tokens-per-step needs --step-time"))
        total = args.tokens_per_step / args.step_time
    if total is None:
        return None
    if args.world is None:
        raise SystemExit(_refuse("the speed of the whole job needs --world"))
    return float(total / args.world)


def _print_json(flops: Dict[str, float], top: Optional[Peak], speed: Optional[float]) -> None:
    rows = {}
    for convention, per_token in flops.items():
        rows[convention] = {"flops_per_token": per_token}
        if speed is not None:
            rows[convention]["flops_per_second_per_gpu"] = per_token * speed
        if speed is not None and top is not None:
            rows[convention]["mfu"] = per_token * speed / top.flops
    whole: Dict[str, Any] = {"conventions": rows}
    if top is not None:
        whole["peak_flops"], whole["peak_source"] = top.flops, top.source
    print(json.dumps(whole, indent=2))


def _print_table(model: Model, flops: Dict[str, float], top: Optional[Peak], speed: Optional[float]) -> None:
    if top is not None:
        print("peak   %.1f TFLOP/s dense (%s)" % (top.flops / 1e12, top.source))
    if speed is not None:
        print("speed  %s tokens/s/GPU" % "{:,.0f}".format(speed))
    if top is not None or speed is not None:
        print()
    head = ["convention", "GFLOP/token"]
    head += ["TFLOP/s/GPU"] if speed is not None else []
    head += ["MFU"] if speed is not None and top is not None else []
    head += ["tokens/s/GPU at 40 %"] if speed is None and top is not None else []
    rows: List[List[str]] = []
    for convention in CONVENTIONS:
        if convention not in flops:
            continue
        per_token = flops[convention]
        row = [convention, "%.3f" % (per_token / 1e9)]
        row += ["%.1f" % (per_token * speed / 1e12)] if speed is not None else []
        row += ["%.1f %%" % (100 * per_token * speed / top.flops)] if speed is not None and top is not None else []
        row += ["{:,.0f}".format(0.4 * top.flops / per_token)] if speed is None and top is not None else []
        rows.append(row)
    if model.note is not None:
        print(model.note + "\n")
    widths = [max(len(r[i]) for r in [head] + rows) for i in range(len(head))]
    for row in [head] + rows:
        print("  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]))
    lacking = [c for c in CONVENTIONS if c not in flops]
    if lacking:
        print("\nno figure for %s: missing are %s" % (", ".join(lacking), ", ".join(_option(n) for n in model.missing())))
    if speed is not None and top is not None and max(flops.values()) * speed / top.flops > IMPLAUSIBLE:
        print("\nabove %.0f %%: nobody trains that fast; check the device, --dtype and the model" % (100 * IMPLAUSIBLE))


def _option(name: str) -> str:
    return "--gated or --not-gated" if name == "gated" else "--" + name.replace("_", "-")


def _refuse(text: str) -> int:
    print("stepwatch mfu: " + text, file=sys.stderr)
    return 64
