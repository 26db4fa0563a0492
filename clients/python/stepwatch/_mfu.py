"""``stepwatch mfu``: FLOPs per token and model FLOP/s utilisation by each published convention, from the dimensions of a model.

The formulas are those by which the exporter computes ``train_mfu_ratio``; both are held to the same cases. ``N`` parameters that work on
a token, ``L`` layers, ``HQ`` width of the attention heads, ``T`` sequence length, forward and backward together, no recomputation:

* ``6n``: ``6N``
* ``full``: ``6N + 12 L HQ T`` (PaLM appendix B, nanoGPT, torchtitan)
* ``causal``: ``6N + 6 L HQ T`` (verl, llm.c)
* ``exact``: every matrix product of the layers and the logits, and the causal half of attention (Megatron)

A frozen weight costs 4 instead of 6, an expert that is not chosen nothing, and packed documents shorten ``T``. What is not told is not
guessed: a convention that lacks a dimension has no figure, and a device that is not in the table has no peak.
"""

import csv
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ._peaks import TABLE

CONVENTIONS = ("full", "causal", "6n", "exact")
DTYPES = ("bf16", "fp16", "fp8", "tf32")

# The names under which frameworks give the same dimension.
_NAMES: Dict[str, List[str]] = {
    "params": ["n_params", "params", "num_params", "num_parameters", "parameters"],
    "active": ["n_active", "active_params", "n_active_params", "num_active_params"],
    "trainable": ["trainable_params", "n_trainable", "lora_params"],
    "layers": ["layers", "n_layers", "n_layer", "num_layers", "num_hidden_layers"],
    "hidden": ["hidden", "hidden_size", "d_model", "n_embd", "dim"],
    "heads": ["heads", "n_heads", "n_head", "num_heads", "num_attention_heads"],
    "kv_heads": ["kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads", "num_query_groups"],
    "head_dim": ["head_dim", "d_head", "kv_channels"],
    "ffn": ["ffn", "ffn_dim", "ffn_hidden_size", "intermediate_size", "d_ff", "n_inner"],
    "vocab": ["vocab", "vocab_size", "padded_vocab_size", "n_vocab"],
    "seq_len": ["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len"],
    "packed_seq_len": ["packed_seq_len"],
    "experts": ["experts", "num_experts", "n_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"],
    "top_k": ["top_k", "num_experts_per_tok", "num_experts_per_token", "moe_router_topk", "moe_top_k"],
    "expert_ffn": ["expert_ffn", "moe_intermediate_size", "moe_ffn_hidden_size"],
    "shared_experts": ["n_shared_experts", "num_shared_experts"],
    "shared_ffn": ["shared_ffn", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"],
    "dense_layers": ["dense_layers", "first_k_dense_replace"],
    "expert_every": ["moe_layer_freq", "decoder_sparse_step"],
    "q_rank": ["q_lora_rank"],
    "kv_rank": ["kv_lora_rank"],
    "nope_dim": ["qk_nope_head_dim", "qk_head_dim"],
    "rope_dim": ["qk_rope_head_dim", "qk_pos_emb_head_dim"],
    "v_dim": ["v_head_dim"],
    "mtp_layers": ["mtp_layers", "mtp_num_layers", "num_nextn_predict_layers"],
}
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation", "activation_func")


class _Untold(Exception):
    """A dimension that the formula needs and nobody told."""


class Model:
    """The dimensions of a transformer, under whichever names a framework gives them (a ``config.json`` of Hugging Face is fine)."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._values = {ours: _first(fields, names) for ours, names in _NAMES.items()}
        # GPT-2 and its kin say by null that it is the usual width.
        if self._values["ffn"] is None and "n_inner" in fields and fields["n_inner"] is None:
            hidden = self._values["hidden"]
            self._values["ffn"] = None if hidden is None else 4 * hidden
        self.gated = _gated(fields)

    def _need(self, name: str) -> float:
        value = self._values[name]
        if value is None:
            raise _Untold(name)
        return value

    def _or(self, name: str, otherwise: float) -> float:
        value = self._values[name]
        return otherwise if value is None else value

    def flops_per_token(self) -> Dict[str, float]:
        """FLOPs per token by each convention that can be computed."""
        formulas: Dict[str, Callable[[], float]] = {
            "full": lambda: self._cost(self._weights()) + 12 * self._attention(),
            "causal": lambda: self._cost(self._weights()) + 6 * self._attention(),
            "6n": lambda: self._cost(self._weights()),
            "exact": lambda: self._cost(self._matrices()) + 6 * self._attention() * self._deeper(),
        }
        all = {}
        for convention, formula in formulas.items():
            try:
                all[convention] = formula()
            except (_Untold, ArithmeticError):
                pass
        return {convention: flops for convention, flops in all.items() if 0 < flops < float("inf")}

    def untold(self) -> List[str]:
        """What would have to be told for every convention, in the words of ``--help``."""
        lacking = [n for n in ("layers", "hidden", "heads", "ffn", "vocab", "seq_len") if self._values[n] is None]
        return lacking + ([] if self.gated is not None else ["gated"])

    def _cost(self, weights: float) -> float:
        return 4 * weights + 2 * min(self._or("trainable", weights), weights)

    def _weights(self) -> float:
        if self._values["active"] is not None:
            return self._need("active")
        try:
            return self._need("params") - self._idle_experts()
        except _Untold:
            return self._matrices()

    def _has_experts(self) -> bool:
        return self._values["experts"] is not None and self._values["top_k"] is not None

    def _chosen(self) -> float:
        return min(self._need("top_k"), self._need("experts"))

    def _expert_ffn(self) -> float:
        return self._or("expert_ffn", 0) or self._need("ffn")

    def _idle_experts(self) -> float:
        if not self._has_experts():
            return 0
        idle = self._need("experts") - self._chosen()
        return self._expert_layers() * idle * self._feed_forward(self._expert_ffn())

    def _expert_layers(self) -> float:
        layers = max(self._need("layers") - self._or("dense_layers", 0), 0)
        return layers // max(self._or("expert_every", 1), 1)

    def _latent(self) -> bool:
        return all(self._values[n] is not None for n in ("kv_rank", "nope_dim", "rope_dim", "v_dim"))

    def _attention(self) -> float:
        heads, dim = self._values["heads"], self._values["head_dim"]
        if self._latent() and heads is not None:
            width = heads * (self._need("nope_dim") + self._need("rope_dim") + self._need("v_dim")) / 2
        elif heads is not None and dim is not None:
            width = heads * dim
        else:
            width = self._need("hidden")
        length = self._values["packed_seq_len"] or self._need("seq_len")
        return self._need("layers") * width * length

    def _deeper(self) -> float:
        return 1 + self._or("mtp_layers", 0) / self._need("layers")

    def _matrices(self) -> float:
        layers, hidden = self._need("layers"), self._need("hidden")
        attention, logits = self._attention_weights(), hidden * self._need("vocab")
        sparse = sparse_ffn = 0.0
        if self._has_experts():
            shared = self._shared_ffn()
            sparse_ffn = self._chosen() * self._feed_forward(self._expert_ffn())
            sparse_ffn += (self._feed_forward(shared) if shared else 0) + hidden * self._need("experts")
            sparse = self._expert_layers()
        dense = layers - sparse
        dense_ffn = dense * self._feed_forward(self._need("ffn")) if dense > 0 else 0
        last_ffn = sparse_ffn if sparse > 0 else self._feed_forward(self._need("ffn"))
        further = self._or("mtp_layers", 0) * (attention + last_ffn + 2 * hidden * hidden + logits)
        return layers * attention + sparse * sparse_ffn + dense_ffn + logits + further

    def _shared_ffn(self) -> float:
        shared = self._or("shared_ffn", 0)
        return shared or self._or("shared_experts", 0) * self._or("expert_ffn", 0)

    def _attention_weights(self) -> float:
        hidden, heads = self._need("hidden"), self._need("heads")
        if not self._latent():
            dim = self._or("head_dim", hidden / heads)
            return 2 * hidden * dim * (heads + self._or("kv_heads", heads))
        q = heads * (self._need("nope_dim") + self._need("rope_dim"))
        rank = self._values["q_rank"]
        queries = hidden * q if rank is None else rank * (hidden + q)
        kv, v = self._need("kv_rank"), self._need("v_dim")
        keys_and_values = hidden * (kv + self._need("rope_dim")) + kv * heads * (self._need("nope_dim") + v)
        return queries + keys_and_values + heads * v * hidden

    def _feed_forward(self, width: float) -> float:
        if self.gated is None:
            raise _Untold("gated")
        return (3 if self.gated else 2) * self._need("hidden") * width


class Peak(NamedTuple):
    flops: float
    source: str


def peak(device: str, dtype: str = "bf16") -> Optional[Peak]:
    """Dense peak of the device called ``device``, as drivers and frameworks spell it, and where the figure comes from."""
    words = set(w for w in re.split(r"[^A-Z0-9]+", device.upper()) if w)
    if "MIG" in words or dtype not in DTYPES:
        return None
    rows = csv.DictReader((line for line in TABLE.splitlines() if not line.startswith("#")), quoting=csv.QUOTE_NONE)
    for row in rows:
        if words.issuperset(row["match"].split()) and words.isdisjoint(row["not"].split()):
            return Peak(float(row[dtype]) * 1e12, row["source"]) if row[dtype] else None
    return None


def _first(fields: Mapping[str, Any], names: List[str]) -> Optional[float]:
    for name in names:
        try:
            value = float(fields[name])
        except (KeyError, TypeError, ValueError):
            continue
        if 0 < value < float("inf") and not isinstance(fields[name], bool):
            return value
    return None


def _gated(fields: Mapping[str, Any]) -> Optional[bool]:
    for name in ("gated", "swiglu", "gated_linear_unit"):
        if isinstance(fields.get(name), bool):
            return bool(fields[name])
    for name in _ACTIVATIONS:
        if isinstance(fields.get(name), str):
            gemma = str(fields.get("model_type", "")).lower().startswith("gemma")
            return gemma or any(a in fields[name].lower() for a in ("silu", "swish", "glu"))
    return None
