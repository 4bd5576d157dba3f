"""The shape of a dense decoder model, and its number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a Hugging Face config.json says of models that the formulas do not cover.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PARTS = ("vision_config", "audio_config", "encoder_layers", "text_config")
_UNGATED = frozenset(
    {
        "gpt2",
        "gpt_neox",
        "gptj",
        "mpt",
        "falcon",
        "phi",
        "opt",
        "bloom",
        "starcoder2",
        "gpt_bigcode",
    }
)
_TIED = frozenset({"gpt2", "gemma", "gemma2", "gemma3_text", "mpt", "falcon", "bloom"})
_GELU_NEW = frozenset({"gpt2", "gptj", "phi"})  # where config.json does not say
_POSITIONS = {"gpt2": "n_positions", "opt": "max_position_embeddings"}


class NotCoveredError(ValueError):
    """A model that the formulas do not cover: experts, images, encoders."""


@dataclass(frozen=True)
class Shape:
    """A dense decoder. Widths are in elements; `heads` and `kv_heads` count attention heads of
    `head_dim`, `gated` is an MLP of three matrices (SwiGLU, GeGLU) instead of two, `tied` an output
    layer that is the embedding, `positions` the length of learned positions (0: none), `gelu_new`
    an MLP with GPT-2's approximation of GELU, which Hugging Face's classes compute in pieces."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    positions: int = 0
    gelu_new: bool = False

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def linear_parameters(self) -> int:
        """Return the parameters of one layer's matrices: query, key, value, output, MLP."""
        attention = 2 * self.hidden * self.q_width + 2 * self.hidden * self.kv_width
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one layer with its two norms, without biases (below 0.1 %)."""
        return self.linear_parameters + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the token embedding and of learned positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Return the parameters of a separate output layer; 0 if it is tied to the embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        ends = self.embedding_parameters + self.head_parameters + self.hidden
        return self.layers * self.layer_parameters + ends


def of_config(config: Mapping[str, Any], name: str = "") -> Shape:
    """Return the shape that a Hugging Face config.json describes.

    Raises NotCoveredError for experts, images and encoders, and ValueError for a key that is
    missing or no integer; both say which.
    """
    for key in _EXPERTS:
        if _whole(config, key, default=0) > 1:
            raise NotCoveredError(f"{key} is {config[key]}: mixtures of experts are not covered")
    for key in _PARTS:
        if config.get(key):
            raise NotCoveredError(f"it has {key}: only text decoders are covered")
    kind = str(config.get("model_type", ""))
    hidden = _whole(config, "hidden_size", "n_embd", "d_model")
    heads = _whole(config, "num_attention_heads", "n_head", "n_heads")
    if hidden % heads and "head_dim" not in config:
        raise ValueError(f"hidden_size {hidden} is not a multiple of {heads} heads; add head_dim")
    kv_heads = _kv_heads(config, heads)
    positions = _POSITIONS.get(kind)
    return Shape(
        name=name or str(config.get("_name_or_path") or kind or "config"),
        layers=_whole(config, "num_hidden_layers", "n_layer", "n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_whole(config, "head_dim", default=hidden // heads),
        ffn=_whole(config, "intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden),
        vocab=_whole(config, "vocab_size"),
        gated=kind not in _UNGATED,
        tied=bool(config.get("tie_word_embeddings", kind in _TIED)),
        positions=_whole(config, positions) if positions else 0,
        gelu_new=_activation(config, kind) == "gelu_new",
    )


def _activation(config: Mapping[str, Any], kind: str) -> str:
    usual = "gelu_new" if kind in _GELU_NEW else ""
    return str(config.get("activation_function") or config.get("hidden_act") or usual)


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _whole(config, "num_key_value_heads", "num_kv_heads", default=heads)


def _whole(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """The first of `keys` that is there."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{key} must be a whole number above 0, not {value!r}")
        return value
    if default is None:
        raise ValueError(f"{keys[0]} is missing")
    return default
