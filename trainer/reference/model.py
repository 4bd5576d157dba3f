"""A small byte-level GPT with reproducible results.

Pre-norm blocks, learned positional embeddings, and an output head tied to the token embedding. The
vocabulary is the 256 byte values, so any file is training data and no tokenizer is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. `block` is the context length in bytes.

    Raises ValueError unless `width` is a multiple of `heads`.
    """

    layers: int = 4
    heads: int = 4
    width: int = 128
    block: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}: change one"
            )


class Attention(nn.Module):
    """Causal self-attention on (batch, time, width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.mix_in = nn.Linear(shape.width, 3 * shape.width)
        self.mix_out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = (batch, time, self.heads, width // self.heads)
        query, key, value = (
            part.view(split).transpose(1, 2) for part in self.mix_in(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        out: Tensor = self.mix_out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """Attention and a two-layer MLP, each with pre-norm and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        out: Tensor = x + self.dropout(self.narrow(functional.gelu(self.widen(self.norm_2(x)))))
        return out


class Gpt(nn.Module):
    """The language model: predicts the next byte."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.bytes = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.block, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                nn.init.constant_(parameter, 1.0 if "norm" in name and "weight" in name else 0.0)
            elif name.endswith(("mix_out.weight", "narrow.weight")):
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5)
            else:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy (nats per byte) of `targets` after `tokens`, both (batch, time)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.bytes(tokens) + self.places(positions))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.bytes.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_model(shape: Shape, seed: int) -> Gpt:
    """Make the model with weights that depend only on `seed`."""
    torch.manual_seed(seed)
    return Gpt(shape)
