"""Networks for texts: a recurrent one and a transformer.

They read the numbers of characters, [B, T], and predict a class at each position, [B, classes, T],
as ``torch.nn.functional.cross_entropy`` takes them, or one after the last position, [B, classes].
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional

from fedpbc.errors import InputError
from fedpbc.tasks.model_registry import Shape, register_model

__all__ = ["LSTM", "Transformer", "lstm", "transformer"]

Size = Annotated[int, Ge(1), Le(65_536)]
Layers = Annotated[int, Ge(1), Le(1000)]


class LSTM(nn.Module):
    """An embedding, recurrent layers and a dense one."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        every_position: bool,
        embedding: int,
        hidden: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.every_position = every_position
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        states, _ = self.recurrent(self.embedding(tokens))
        if not self.every_position:
            logits: Tensor = self.output(states[:, -1])
            return logits
        logits = self.output(states)
        return logits.transpose(1, 2)


class Block(nn.Module):
    """Causal self-attention and a dense network, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        dense: Tensor = self.dense(self.dense_norm(x))
        return x + dense


class Transformer(nn.Module):
    """A decoder: embeddings of characters and positions, blocks, and a dense layer."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        every_position: bool,
        length: int,
        width: int,
        heads: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.every_position = every_position
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, classes)
        # PyTorch's deviation of 1 would drown what the blocks add.
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.embedding(tokens) + self.positions(positions)))
        if not self.every_position:
            logits: Tensor = self.output(x[:, -1])
            return logits
        logits = self.output(x)
        return logits.transpose(1, 2)


@register_model
def lstm(
    vocabulary: int,
    classes: int,
    every_position: bool,
    *,
    embedding: Size = 8,
    hidden: Size = 64,
    layers: Layers = 2,
) -> nn.Module:
    """Embedding and LSTM layers, for texts; LEAF's has hidden=256."""
    _check_text("lstm", vocabulary)
    return LSTM(vocabulary, classes, every_position, embedding, hidden, layers)


@register_model
def transformer(
    shape: Shape,
    vocabulary: int,
    classes: int,
    every_position: bool,
    *,
    width: Size = 64,
    heads: Size = 4,
    layers: Layers = 2,
) -> nn.Module:
    """A small causal transformer, for texts."""
    _check_text("transformer", vocabulary)
    if width % heads:
        raise InputError("model.heads", heads, f"a divisor of model.width, {width}")
    return Transformer(vocabulary, classes, every_position, shape[0], width, heads, layers)


def _check_text(name: str, vocabulary: int) -> None:
    if not vocabulary:
        raise InputError("model", name, "another, such as mlp: it is for texts")
