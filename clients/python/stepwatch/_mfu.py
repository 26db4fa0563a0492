"""``stepwatch mfu``: FLOPs per token and model FLOP/s utilisation by each published convention,
from the dimensions of a model.

The formulas are those by which the exporter computes ``train_mfu_ratio``; both are held to the same
cases. ``N`` parameters that work on a token, ``L`` layers, ``HQ`` width of the attention heads,
``T`` sequence length, forward and backward together, no recomputation:

* ``6n``: ``6N``
* ``full``: ``6N + 12 L HQ T`` (PaLM appendix B, nanoGPT, torchtitan)
* ``causal``: ``6N + 6 L HQ T`` (verl, llm.c)
* ``exact``: every matrix product of the layers and the logits, and the causal half of attention
  (Megatron)

A layer with a sliding window of ``w`` attends to ``min(w, T)`` tokens (``full``), of which the
causal mask leaves ``w - w w / 2T`` on average. Linear attention and Mamba 2 cost their weights, and
per token what they do to their state, as Megatron counts it. A frozen weight costs 4 instead of 6,
an expert that is not chosen nothing, and packed documents shorten ``T``. What is not given is not
guessed: a convention that lacks a dimension has no figure, a model whose layers are not known is
refused, and a device that is not in the table has no peak.
"""

import csv
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ._mix import EXPERTS, KEYS, SIGNS, Mix, Refused, counts_experts, even, language, mix
from ._peaks import TABLE

CONVENTIONS = ("full", "causal", "6n", "exact")
DTYPES = ("bf16", "fp16", "fp8", "tf32")

# The names under which frameworks give the same dimension.
_NAMES: Dict[str, List[str]] = {
    "params": ["n_params", "params", "num_params", "num_parameters", "parameters"],
    "embedding": ["n_embedding", "embedding_params"],
    "active": ["n_active", "active_params", "n_active_params", "num_active_params"],
    "trainable": ["trainable_params", "n_trainable", "lora_params"],
    "layers": ["layers", "n_layers", "n_layer", "num_layers", "num_hidden_layers"],
    "hidden": ["hidden", "hidden_size", "d_model", "n_embd", "dim"],
    "heads": ["heads", "n_heads", "n_head", "num_heads", "num_attention_heads"],
    "kv_heads": ["kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads", "num_query_groups", "n_query_groups"],
    "head_dim": ["head_dim", "d_head", "kv_channels", "attention_head_dim", "head_size"],
    "ffn": ["ffn", "ffn_dim", "ffn_hidden_size", "intermediate_size", "d_ff", "n_inner", "inter_dim", "hidden_dim"],
    "vocab": ["vocab", "padded_vocab_size", "vocab_size", "n_vocab"],
    "embedding_width": ["word_embed_proj_dim"],
    "seq_len": ["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len"],
    "packed_seq_len": ["packed_seq_len"],
    "experts": list(EXPERTS),
    "top_k": ["top_k", "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_router_topk", "moe_top_k", "moe_topk", "moe_k", "n_expert_per_token"],
    "expert_ffn": ["expert_ffn", "moe_intermediate_size", "moe_ffn_hidden_size", "moe_inter_dim"],
    "shared_experts": ["n_shared_experts", "num_shared_experts"],
    "shared_ffn": ["shared_ffn", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"],
    "q_rank": ["q_lora_rank"],
    "kv_rank": ["kv_lora_rank"],
    "nope_dim": ["qk_nope_head_dim", "qk_head_dim"],
    "rope_dim": ["qk_rope_head_dim", "qk_pos_emb_head_dim"],
    "v_dim": ["v_head_dim"],
    # num_nextn_predict_layers of a config.json counts layers that transformers neither builds nor
    # trains.
    "mtp_layers": ["mtp_layers", "mtp_num_layers"],
    "delta_key_heads": ["linear_num_key_heads"],
    "delta_value_heads": ["linear_num_value_heads"],
    "delta_key_dim": ["linear_key_head_dim"],
    "delta_value_dim": ["linear_value_head_dim"],
    "delta_conv": ["linear_conv_kernel_dim"],
    "mamba_heads": ["mamba_num_heads", "mamba_n_heads"],
    "mamba_head_dim": ["mamba_head_dim", "mamba_d_head"],
    "mamba_state": ["mamba_state_dim", "ssm_state_size", "mamba_d_state"],
    "mamba_groups": ["mamba_num_groups", "mamba_n_groups", "n_groups"],
    "mamba_conv": ["mamba_d_conv", "conv_kernel"],
}
_ACTIVATIONS = (
    "mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function", "activation", "activation_func"
)  # fmt: skip

# The square of a ReLU, which some models have behind a gate and most, every Nemotron among them,
# have not.
_SQUARES = ("relu2", "relu_squared", "squared_relu")
_SQUARES_WITH_GATES = ("bitnet",)
_SQUARES_ALONE = ("nanochat", "persimmon", "fuyu", "arcee", "jais2", "cosmos3_edge_text")


class _Missing(Exception):
    """A dimension that the formula needs and that is not given."""


class Model:
    """The dimensions of a transformer, under whichever names a framework gives them (a
    ``config.json`` of Hugging Face is fine)."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        fields, self.note = language(fields)
        self._values = {ours: _first(fields, names) for ours, names in _NAMES.items()}
        values = self._values
        # GPT-2 and its kin mean the usual width by null.
        if values["ffn"] is None and "n_inner" in fields and fields["n_inner"] is None:
            values["ffn"] = None if values["hidden"] is None else 4 * values["hidden"]
        if values["ffn"] is None or "multiple_of" in fields:
            values["ffn"] = _llama_width(values["hidden"], fields) or values["ffn"]
        if fields.get("model_type") == "mamba2":
            values.update(mamba_heads=values["heads"], mamba_head_dim=values["head_dim"], mamba_state=_first(fields, ["state_size"]))
        # Falcon keeps a number of key heads beside it, which only its later architecture has.
        if fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True:
            values["kv_heads"] = 1.0
        self.gated = _gated(fields)
        kind = str(fields.get("model_type", ""))
        gates = (fields.get("attn_output_gate"), fields.get("attention_output_gate"))
        self._output_gate = True in gates or kind.startswith(("qwen3_next", "qwen3_5"))
        #: Why there is no formula for this model.
        self.refused: Optional[str] = None
        self._mix: Optional[Mix] = None
        try:
            layers = int(values["layers"] or 0)
            self._mix = mix(fields, layers, self._has_experts(), self._latent(), self._has("delta"), self._has("mamba"))
        except Refused as why:
            self.refused = str(why)
        if self.refused is None and self._lacks_gates():
            self.refused = _why_gates_are_unknown(fields)

    def _lacks_gates(self) -> bool:
        """Nothing can be counted, for want of nothing but whether there are gates."""
        if self.gated is not None or self._counts():
            return False
        self.gated = True
        try:
            return self._counts()
        finally:
            self.gated = None

    def _counts(self) -> bool:
        try:
            self._weights()
        except (_Missing, ArithmeticError):
            return False
        return True

    def _need(self, name: str) -> float:
        value = self._values[name]
        if value is None:
            raise _Missing(name)
        return value

    def _or(self, name: str, otherwise: float) -> float:
        value = self._values[name]
        return otherwise if value is None else value

    def _has(self, part: str) -> bool:
        need = {"delta": ("key_heads", "value_heads", "key_dim", "value_dim"), "mamba": ("heads", "head_dim", "state")}[part]
        return all(self._values["%s_%s" % (part, n)] is not None for n in need)

    def flops_per_token(self) -> Dict[str, float]:
        """FLOPs per token by each convention that can be computed."""
        formulas: Dict[str, Callable[[], float]] = {
            "full": lambda: self._cost(self._weights()) + 12 * self._attention(causal=False) + self._states(),
            "causal": lambda: self._cost(self._weights()) + 12 * self._attention(causal=True) + self._states(),
            "6n": lambda: self._cost(self._weights()),
            "exact": lambda: self._cost(self._matrices()) + 12 * self._attention(causal=True) + self._states(),
        }
        all = {}
        for convention, formula in formulas.items() if self.refused is None else ():
            try:
                all[convention] = formula()
            except (_Missing, ArithmeticError):
                pass
        return {convention: flops for convention, flops in all.items() if 0 < flops < float("inf")}

    def missing(self) -> List[str]:
        """What would have to be given for every convention, by the options of ``--help``."""
        lacking = [n for n in ("layers", "hidden", "heads", "ffn", "vocab", "seq_len") if self._values[n] is None]
        return lacking + ([] if self.gated is not None else ["gated"])

    def _layers(self) -> Mix:
        self._need("layers")
        if self._mix is None:
            raise _Missing("layers")
        return self._mix

    def _cost(self, weights: float) -> float:
        return 4 * weights + 2 * min(self._or("trainable", weights), weights)

    def _weights(self) -> float:
        if self._values["active"] is not None:
            return self._need("active") - self._or("embedding", 0)
        try:
            return self._need("params") - self._or("embedding", 0) - self._idle_experts()
        except _Missing:
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
        return self._layers().sparse * idle * self._feed_forward(self._expert_ffn())

    def _latent(self) -> bool:
        return all(self._values[n] is not None for n in ("kv_rank", "nope_dim", "rope_dim", "v_dim"))

    def _attention(self, causal: bool) -> float:
        """Tokens that a token attends to, times the width of the heads, over all layers."""
        spans = [*self._layers().attention, ("full", 0, int(self._or("mtp_layers", 0)))]
        spans = [span for span in spans if span[2]]
        if not spans:
            return 0
        heads, dim = self._values["heads"], self._values["head_dim"]
        if self._latent() and heads is not None:
            width = heads * (self._need("nope_dim") + self._need("rope_dim") + self._need("v_dim")) / 2
        elif heads is not None and dim is not None:
            width = heads * dim
        else:
            width = self._need("hidden")
        length = self._values["packed_seq_len"] or self._need("seq_len")
        return width * sum(count * _seen(kind, size, length, causal) for kind, size, count in spans)

    def _states(self) -> float:
        """FLOPs of linear attention and of Mamba 2 on their state, forward and backward, as
        Megatron counts them."""
        layers, states = self._layers(), 0.0
        if layers.delta:
            states += layers.delta * 24 * self._need("delta_value_heads") * self._need("delta_key_dim") * self._need("delta_value_dim")
        if layers.mamba:
            states += layers.mamba * 21 * self._need("mamba_heads") * self._need("mamba_head_dim") * self._need("mamba_state")
        return states

    def _matrices(self) -> float:
        layers, hidden = self._layers(), self._need("hidden")
        attending = sum(count for _, _, count in layers.attention)
        further = self._or("mtp_layers", 0)
        attention = self._attention_weights() if attending or further else 0
        width = self._or("embedding_width", hidden)
        projections = 2 * hidden * width if width != hidden else 0
        logits = width * self._need("vocab")
        sparse_ffn = 0.0
        if layers.sparse:
            shared = self._shared_ffn()
            sparse_ffn = self._chosen() * self._feed_forward(self._expert_ffn())
            sparse_ffn += (self._feed_forward(shared) if shared else 0) + hidden * self._need("experts")
        dense_ffn = self._feed_forward(self._need("ffn")) if layers.dense else 0
        weights = attending * attention + layers.sparse * sparse_ffn + layers.dense * dense_ffn + projections + logits
        weights += layers.delta * self._delta_weights() if layers.delta else 0
        weights += layers.mamba * self._mamba_weights() if layers.mamba else 0
        last_ffn = sparse_ffn if layers.sparse else dense_ffn
        return weights + further * (attention + last_ffn + 2 * hidden * hidden + logits)

    def _shared_ffn(self) -> float:
        shared = self._or("shared_ffn", 0)
        return shared or self._or("shared_experts", 0) * self._or("expert_ffn", 0)

    def _attention_weights(self) -> float:
        hidden, heads = self._need("hidden"), self._need("heads")
        if not self._latent():
            dim = self._or("head_dim", hidden / heads)
            gate = heads if self._output_gate else 0
            return hidden * dim * (2 * (heads + self._or("kv_heads", heads)) + gate)
        q = heads * (self._need("nope_dim") + self._need("rope_dim"))
        rank = self._values["q_rank"]
        queries = hidden * q if rank is None else rank * (hidden + q)
        kv, v = self._need("kv_rank"), self._need("v_dim")
        keys_and_values = hidden * (kv + self._need("rope_dim")) + kv * heads * (self._need("nope_dim") + v)
        return queries + keys_and_values + heads * v * hidden

    def _delta_weights(self) -> float:
        """Queries, keys, values, their gate, two numbers a head, a short convolution, and the way
        out."""
        hidden, heads = self._need("hidden"), self._need("delta_value_heads")
        keys = self._need("delta_key_heads") * self._need("delta_key_dim")
        values = heads * self._need("delta_value_dim")
        into = hidden * (2 * keys + 2 * values + 2 * heads)
        return into + self._or("delta_conv", 4) * (2 * keys + values) + values * hidden

    def _mamba_weights(self) -> float:
        """Input and its gate, two vectors a group, a number a head, a short convolution, and the
        way out."""
        hidden, heads = self._need("hidden"), self._need("mamba_heads")
        inner, vectors = heads * self._need("mamba_head_dim"), 2 * self._or("mamba_groups", 1) * self._need("mamba_state")
        return hidden * (2 * inner + vectors + heads) + self._or("mamba_conv", 4) * (inner + vectors) + inner * hidden

    def _feed_forward(self, width: float) -> float:
        if self.gated is None:
            raise _Missing("gated")
        return (3 if self.gated else 2) * self._need("hidden") * width


def _seen(kind: str, size: float, length: float, causal: bool) -> float:
    """How many tokens of a sequence a token attends to: all of its span, or the mean of what the
    causal mask leaves."""
    span = length if kind == "full" else min(size, length)
    if not causal:
        return span
    return span - span * span / (2 * length) if kind == "window" else span / 2


def _llama_width(hidden: Optional[float], fields: Mapping[str, Any]) -> Optional[float]:
    """The width of the feed-forward part where it is given as in Llama's own code: two thirds of
    four times, rounded up."""
    multiple, factor = _first(fields, ["multiple_of"]), _first(fields, ["ffn_dim_multiplier"])
    if hidden is None or multiple is None:
        return None
    width = int(int(8 * hidden / 3) * (factor or 1.0))
    return multiple * ((width + multiple - 1) // multiple)


def dimensions_of(config: Any) -> Dict[str, Any]:
    """What FLOPs depend on, of a configuration object such as that of a model of Hugging Face."""
    try:
        fields = dict(config) if isinstance(config, Mapping) else config.to_dict() if hasattr(config, "to_dict") else dict(vars(config))
    except Exception:
        return {}
    fields, note = language(fields)
    known = KEYS.union(_ACTIVATIONS, ("gated", "swiglu", "n_inner", "multi_query", "multiple_of", "ffn_dim_multiplier"), *_NAMES.values())
    found: Dict[str, Any] = {
        key: value
        for key, value in fields.items()
        if (key in known or counts_experts(key, value) or any(sign in key.lower() for sign in SIGNS))
        and isinstance(value, (int, float, str, list, tuple, type(None)))
    }
    if note is not None:
        found["vision_config"] = {}
    return found


class Peak(NamedTuple):
    flops: float
    source: str


def peak(device: str, dtype: str = "bf16") -> Optional[Peak]:
    """Dense peak of the device called ``device``, as drivers and frameworks spell it, and where the
    figure comes from."""
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
            value = float(even(fields[name]))
        except (KeyError, TypeError, ValueError):
            continue
        if 0 < value < float("inf") and not isinstance(fields[name], bool):
            return value
    return None


def _gated(fields: Mapping[str, Any]) -> Optional[bool]:
    for name in ("gated", "swiglu", "gated_linear_unit"):
        if isinstance(fields.get(name), bool):
            return bool(fields[name])
    activation, kind = _activation(fields), str(fields.get("model_type", ""))
    if activation is None:
        return None
    if activation.lower() in _SQUARES:
        alone = kind in _SQUARES_ALONE or kind.startswith("nemotron")
        return True if kind in _SQUARES_WITH_GATES else False if alone else None
    return kind.lower().startswith("gemma") or any(a in activation.lower() for a in ("silu", "swish", "glu"))


def _activation(fields: Mapping[str, Any]) -> Optional[str]:
    return next((fields[name] for name in _ACTIVATIONS if isinstance(fields.get(name), str)), None)


def _why_gates_are_unknown(fields: Mapping[str, Any]) -> Optional[str]:
    """Why it is unknown whether there are gates although an activation is given."""
    activation, kind = _activation(fields), str(fields.get("model_type", ""))[:32]
    if activation is None:
        return None
    unknown = "of the model type %s it is not known" % kind if kind else "no model type is given"
    return "%s does not determine whether there are gates, and %s" % (activation, unknown)
