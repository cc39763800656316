"""The encoder-decoder Transformer (Vaswani et al. 2017) that translation and weather share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EncoderDecoder(nn.Module):
    """Embedded inputs and queries in, decoded queries out. Normalises first: steadier to train."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        shape = (width, heads, 2 * width, dropout)
        encode = nn.TransformerEncoderLayer(*shape, batch_first=True, norm_first=True)
        decode = nn.TransformerDecoderLayer(*shape, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(encode, layers, norm, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decode, layers, nn.LayerNorm(width))

    def forward(
        self, inputs: Tensor, queries: Tensor, *, padding: Tensor | None = None, causal: bool
    ) -> Tensor:
        """``padding`` marks inputs to ignore; ``causal`` hides later queries from earlier ones."""
        future = None
        if causal:
            length = queries.shape[1]
            future = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
        memory = self.encoder(inputs, src_key_padding_mask=padding)
        decoded: Tensor = self.decoder(
            queries, memory, tgt_mask=future, memory_key_padding_mask=padding
        )
        return decoded
