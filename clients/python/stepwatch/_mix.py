"""Which layers a model has, by its ``config.json`` or a trainer's arguments: attention over all or
some of what came before, linear attention, Mamba, dense and sparse feed-forward parts. What is not
known is refused with a reason, because a wrong mix is a wrong MFU.

The exporter reads the same in ``exporter/src/training/mfu/model/mix.rs``; both are held to the same
cases.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

#: More layers than any model has.
MAX_LAYERS = 4096

_TWO_LENGTHS = ("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper", "encoder-decoder", "t5gemma",
                "led", "nllb-moe", "switch_transformers", "speech_to_text", "seamless_m4t")  # fmt: skip
_BOTH_WAYS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "deberta", "deberta-v2", "modernbert", "albert", "mpnet", "esm",
              "nomic_bert", "eurobert", "vit", "clip", "siglip", "dinov2")  # fmt: skip
_NO_FORMULA = ("mamba", "falcon_mamba", "jamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "recurrent_gemma", "zamba", "zamba2", "falcon_h1", "minimax",
               "minimax_m1", "minimax_text_01", "kimi_linear", "lfm2", "lfm2_moe", "xlstm", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
               "deepseek_v32", "glm_moe_dsa", "retnet", "openelm", "deci", "nemotron-nas", "longformer", "big_bird", "mllama", "dbrx")  # fmt: skip
#: Parts of keys that describe layers which are not attention over everything.
SIGNS = ("mamba", "ssm", "rwkv", "lightning", "recurrent", "linear_attn", "linear_num", "linear_attention", "conv_l", "attn_type", "block_type",
          "layer_pattern", "hybrid", "index_topk", "lru_width", "retention", "moe_latent", "moe_layer_start", "compress_ratio",
         "sliding_window_size", "sliding_window_indices", "zero_expert", "parallel_attn_mlp", "use_cla", "layers_enum", "layer_group",
         "share_expert", "attention_groups")  # fmt: skip
#: Dimensions of which some models have one a layer.
_A_LAYER = ("num_attention_heads", "num_key_value_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size", "ffn_hidden_size",
            "moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_topk",
            "num_shared_expert")  # fmt: skip
#: How many of the first layers have no experts.
_FIRST_DENSE = ("dense_layers", "first_k_dense_replace", "n_dense_layers", "num_dense_layers", "moe_layer_num_skipped")
#: Keys that give how many experts there are.
EXPERTS = ("experts", "num_experts", "n_experts", "num_local_experts", "n_routed_experts", "num_moe_experts", "moe_num_experts", "n_expert")
#: What is read here.
KEYS = frozenset((
    "model_type", "is_encoder_decoder", "experimental_attention_variant", "hybrid_layer_pattern", "hybrid_override_pattern",
    "hybrid_attention_ratio", "hybrid_mlp_ratio", "layer_types", "layers_block_type", "attn_layer_indices", "linear_attention_freq",
    "full_attention_interval", "no_rope_layers", "no_rope_layer_interval", "window_size", "window_attn_skip_freq", "sliding_window_pattern",
    "_sliding_window_pattern", "sliding_window", "use_sliding_window", "max_window_layers", "attention_chunk_size", "moe_layer_freq",
    "mlp_layer_types", "moe_layers", "dense_layers", "first_k_dense_replace", "n_dense_layers", "num_dense_layers", "mlp_only_layers", "decoder_sparse_step",
    "interleave_moe_layer_step", "moe_layer_num_skipped", "num_shared_expert", "new_decoder_architecture", "attn_output_gate", "attention_output_gate", "state_size", "intermediate_size_mlp",
))  # fmt: skip
_NESTED = ("text_config", "llm_config", "language_config")
_OTHER_PARTS = ("vision_config", "audio_config", "vision_tower", "visual")
#: What the class of a model means where its ``config.json`` leaves a key out.
_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096,
                    "hidden_activation": "gelu_pytorch_tanh"},
}  # fmt: skip


class Refused(Exception):
    """There is no formula for this model, and this is why."""


class Mix(NamedTuple):
    """How many layers there are of each kind."""

    #: Kinds of attention: "full", "window" or "chunk", its length, and in how many layers.
    attention: List[Tuple[str, float, int]]
    delta: int
    mamba: int
    dense: int
    sparse: int


def language(fields: Mapping[str, Any]) -> Tuple[Dict[str, Any], Optional[str]]:
    """The dimensions of the language part, under usual names, and what is left out."""
    nested = next((fields[n] for n in _NESTED if isinstance(fields.get(n), Mapping)), None)
    found = dict(fields)
    if nested is not None:
        found.update(nested)
    note = None
    if any(isinstance(fields.get(part), Mapping) for part in _OTHER_PARTS):
        note = "only the language part is counted: what a picture or a sound costs depends on its size"
    for key, value in _DEFAULTS.get(_kind(found), {}).items():
        found.setdefault(key, value)
    if _kind(found).startswith("llama4") and _count(found.get("intermediate_size_mlp")):
        width = found.get("intermediate_size")
        found.setdefault("moe_intermediate_size", width)
        found.setdefault("shared_expert_intermediate_size", width)
        found["intermediate_size"] = found["intermediate_size_mlp"]
    width = even(found.get("intermediate_size"))
    if _kind(found).startswith("hunyuan") and _experts(found) > 1 and _positive(width) is not None:
        # Every token passes a feed-forward part beside the experts, which no key names.
        parts = _positive(even(found.get("num_shared_expert"))) or 1.0
        found.setdefault("shared_expert_intermediate_size", parts * float(width))
    return found, note


def mix(fields: Mapping[str, Any], layers: int, sparse: bool, latent: bool, delta: bool, mamba: bool) -> Mix:
    """The flags say whether the dimensions of experts, latent attention, linear attention and Mamba
    2 are known."""
    kind = _kind(fields)
    _refuse(fields, kind, delta, mamba)
    uneven = next((key for key in _A_LAYER if even(fields.get(key)) is _UNEVEN), None)
    if uneven is not None:
        raise Refused("%s differs from layer to layer" % uneven)
    if not sparse and _experts(fields) > 1:
        raise Refused("%g experts, and not how many of them a token passes" % _experts(fields))
    unread = next((key for key in sorted(fields) if not sparse and counts_experts(key, fields[key])), None)
    if unread is not None:
        raise Refused("%s names experts that are not known" % unread)
    if not latent and _positive(fields.get("kv_lora_rank")) is not None:
        raise Refused("latent attention whose dimensions (v_head_dim and so on) are not given")
    if layers > MAX_LAYERS:
        raise Refused("%d layers are more than any model has" % layers)
    pattern = next((fields[k] for k in ("hybrid_layer_pattern", "hybrid_override_pattern") if isinstance(fields.get(k), str)), None)
    if pattern:
        found = _of_pattern(pattern)
    else:
        kinds = _kinds(fields, kind, layers)
        found = Mix(_spans(fields, kinds), kinds.count("linear"), kinds.count("mamba"), 0, 0)
        if kind == "mamba2" or "none" in kinds or _is_shared_out(fields):
            found = found._replace(dense=kinds.count("none"))  # a layer is one block
        else:
            moe = _sparse(fields, layers) if sparse else 0
            found = found._replace(dense=layers - moe, sparse=moe)
    if found.delta and not delta:
        raise Refused("layers of linear attention whose dimensions (linear_num_value_heads and so on) are not given")
    if found.mamba and not mamba:
        raise Refused("layers of Mamba that are not Mamba 2, or whose dimensions are not given")
    if found.sparse and not sparse:
        raise Refused("layers with experts whose number is not given")
    return found


def _refuse(fields: Mapping[str, Any], kind: str, delta: bool, mamba: bool) -> None:
    if fields.get("is_encoder_decoder") is True or kind in _TWO_LENGTHS:
        raise Refused("an encoder and a decoder: their FLOPs depend on two lengths, and one is given")
    if kind in _BOTH_WAYS:
        raise Refused("%s is no decoder: the formulas are those of language models" % kind)
    if kind in _NO_FORMULA:
        raise Refused("%s has layers that there is no agreed way of counting for" % kind)
    variant = fields.get("experimental_attention_variant")
    if isinstance(variant, str) and variant != "gated_delta_net":
        raise Refused("attention of the variant %s is not known" % variant)
    for key in sorted(fields):
        sign = next((s for s in SIGNS if s in key.lower()), None)
        if sign is None or not _says_something(fields[key]) or key in _READ:
            continue
        if not (mamba and sign in ("mamba", "ssm") or delta and sign.startswith("linear")):
            raise Refused("%s names layers that are not known" % key)


def counts_experts(key: str, value: Any) -> bool:
    counts = key.startswith(("num_", "n_")) or "_num_" in key
    return counts and "experts" in key and (_positive(even(value)) or 0.0) > 1


#: Keys that are read here, of those that are signs.
_READ = frozenset((
    "layers_block_type", "hybrid_layer_pattern", "hybrid_override_pattern", "hybrid_attention_ratio", "hybrid_mlp_ratio",
    "linear_attention_freq",
))  # fmt: skip


def _says_something(value: Any) -> bool:
    return not (value is None or value is False or value == 0 or value == "" or value == [])


def _of_pattern(pattern: str) -> Mix:
    """``M-M*-``: a layer is one block, of Mamba, a feed-forward part, attention, experts or linear
    attention."""
    if "/" in pattern:
        raise Refused("a pattern of layers with further predictions (%s)" % pattern[:32])
    blocks = [c for c in pattern if c != "|"]
    odd = next((c for c in blocks if c not in "M-*EG"), None)
    if odd is not None:
        raise Refused("a layer of the kind %r in its pattern is not known" % odd)
    count = blocks.count
    return Mix([("full", 0, count("*"))], count("G"), count("M"), count("-"), count("E"))


def _kinds(fields: Mapping[str, Any], kind: str, layers: int) -> List[str]:
    types = next((fields[k] for k in ("layer_types", "layers_block_type") if isinstance(fields.get(k), (list, tuple))), None)
    if types is not None:
        names = {"full_attention": "full", "attention": "full", "sliding_attention": "window", "chunked_attention": "chunk",
                 "linear_attention": "linear", "mamba": "mamba", "mamba2": "mamba"}  # fmt: skip
        odd = next((str(t) for t in types if t not in names), None)
        if odd is not None:
            raise Refused("layers of the type %s are not known" % odd[:32])
        if len(types) != layers:
            raise Refused("%d layers, and types of %d" % (layers, len(types)))
        return [names[t] for t in types]
    if _is_shared_out(fields):
        return _of_ratios(fields, layers)
    if kind == "mamba2":
        return ["mamba"] * layers
    if isinstance(fields.get("attn_layer_indices"), (list, tuple)):
        return ["full" if i in fields["attn_layer_indices"] else "mamba" for i in range(layers)]
    if fields.get("experimental_attention_variant"):
        return _every(fields.get("linear_attention_freq"), layers, "linear", "linear_attention_freq")
    interval = fields.get("full_attention_interval") or (4 if kind.startswith(("qwen3_next", "qwen3_5")) else None)
    if interval:
        return _every(interval, layers, "linear", "full_attention_interval")
    if kind.startswith("llama4"):
        return _every(fields.get("no_rope_layers") or fields.get("no_rope_layer_interval") or 4, layers, "chunk", "no_rope_layers")
    return _windows(fields, kind, layers)


def _is_shared_out(fields: Mapping[str, Any]) -> bool:
    return _positive(fields.get("hybrid_attention_ratio")) is not None


def _of_ratios(fields: Mapping[str, Any], layers: int) -> List[str]:
    """Shares of the layers, as Megatron took them before it had patterns; the rest is Mamba."""
    attention = int(round(layers * float(fields["hybrid_attention_ratio"])))
    mlps = int(round(layers * (_positive(fields.get("hybrid_mlp_ratio")) or 0.0)))
    if attention + mlps > layers:
        raise Refused("shares of attention and feed-forward layers of more than the whole")
    return ["full"] * attention + ["none"] * mlps + ["mamba"] * (layers - attention - mlps)


def _windows(fields: Mapping[str, Any], kind: str, layers: int) -> List[str]:
    """Sliding windows where the layers are not listed."""
    window = fields.get("window_size")
    if window:
        skip = fields.get("window_attn_skip_freq")
        return ["window"] * layers if skip is None else _every(skip, layers, "window", "window_attn_skip_freq")
    usual = {"gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gemma2": 2, "gpt_oss": 2}
    pattern = fields.get("sliding_window_pattern") or fields.get("_sliding_window_pattern") or usual.get(kind)
    if kind in usual or (pattern and fields.get("sliding_window")):
        return _every(pattern, layers, "window", "sliding_window_pattern")
    if fields.get("attention_chunk_size"):
        raise Refused("attention in chunks, and not which layers have it")
    if not fields.get("sliding_window") or fields.get("use_sliding_window") is False:
        return ["full"] * layers
    if kind in ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral"):
        return ["window"] * layers
    if kind in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"):
        if fields.get("use_sliding_window") is not True:
            return ["full"] * layers
        first = _count(fields.get("max_window_layers"))
        return ["full" if i < first else "window" for i in range(layers)]
    raise Refused("a sliding window, and not which layers have it")


def _every(freq: Any, layers: int, other: str, key: str) -> List[str]:
    """By a number every so many layers is full attention and the others are not; a list has a 1 for
    each of the others."""
    if isinstance(freq, (list, tuple)):
        if len(freq) != layers:
            raise Refused("%s is of %d layers and there are %d" % (key, len(freq), layers))
        return [other if f else "full" for f in freq]
    n = _count(freq)
    if n < 1:
        raise Refused("%s is neither a number nor a list" % key)
    return ["full" if (i + 1) % n == 0 else other for i in range(layers)]


def _spans(fields: Mapping[str, Any], kinds: Sequence[str]) -> List[Tuple[str, float, int]]:
    spans: List[Tuple[str, float, int]] = []
    for kind in ("full", "window", "chunk"):
        count = kinds.count(kind)
        if not count:
            continue
        size = 0.0
        if kind == "window":
            size = _window(fields)
        elif kind == "chunk":
            size = _positive(fields.get("attention_chunk_size")) or 0.0
        if kind != "full" and size < 1:
            raise Refused("attention over a %s whose size is not given" % kind)
        spans.append((kind, size, count))
    return spans


def _window(fields: Mapping[str, Any]) -> float:
    pair = fields.get("window_size")
    if isinstance(pair, (list, tuple)) and pair:
        return (_positive(pair[0]) or 0.0) + 1  # so many before a token, and itself
    usual = {"gemma2": 4096.0, "gpt_oss": 128.0, "cohere2": 4096.0}
    return _positive(fields.get("sliding_window")) or usual.get(_kind(fields), 0.0)


def _sparse(fields: Mapping[str, Any], layers: int) -> int:
    """Layers with experts."""
    listed = fields.get("moe_layer_freq")
    if isinstance(listed, (list, tuple)):
        if len(listed) != layers:
            raise Refused("moe_layer_freq is of %d layers and there are %d" % (len(listed), layers))
        return sum(1 for f in listed if f)
    if isinstance(fields.get("mlp_layer_types"), (list, tuple)):
        return sum(1 for t in fields["mlp_layer_types"] if t == "sparse")
    if isinstance(fields.get("moe_layers"), (list, tuple)) and fields["moe_layers"]:
        return len(fields["moe_layers"])
    first = max(_count(fields.get(k)) for k in _FIRST_DENSE)
    dense = fields.get("mlp_only_layers")
    dense = dense if isinstance(dense, (list, tuple)) else ()
    every = _count(fields.get("moe_layer_freq")) or 1
    step = _count(fields.get("decoder_sparse_step")) or _count(fields.get("interleave_moe_layer_step")) or 1
    return sum(1 for i in range(layers) if i >= first and i not in dense and i % every == 0 and (i + 1) % step == 0)


_UNEVEN = object()


def even(value: Any) -> Any:
    """A list of one number for all layers is that number."""
    if not isinstance(value, (list, tuple)) or not value:
        return value
    return value[0] if all(v == value[0] for v in value) else _UNEVEN


def _experts(fields: Mapping[str, Any]) -> float:
    return next((n for n in (_positive(even(fields.get(key))) for key in EXPERTS) if n is not None), 0.0)


def _kind(fields: Mapping[str, Any]) -> str:
    return str(fields.get("model_type") or "").lower()


def _positive(value: Any) -> Optional[float]:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number < float("inf") and not isinstance(value, bool) else None


def _count(value: Any) -> int:
    return int(_positive(value) or 0)
