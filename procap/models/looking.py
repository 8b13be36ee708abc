"""Where a caption decoder looks: its cross-attention, made in a pass of its own so that writing pays nothing for it."""

from typing import Any

import torch

from procap.models.caption_decoder import CaptionDecoder, Past
from procap.models.layers import Attention
from procap.shapes import Float, Tensor, Words


def weights(attention: Attention, x: Float[Tensor, "b s d"], keys: Tensor) -> Float[Tensor, "b heads s m"]:
    """How much each of ``x`` takes from each place that is read; sums to 1 over the places."""
    queries = attention.split(attention.query(x))
    return (queries @ keys.mT * (attention.scale or queries.shape[-1] ** -0.5)).softmax(-1)


@torch.no_grad()
def looks(
    decoder: CaptionDecoder, words: Words, memory: Past
) -> tuple[Float[Tensor, "layers b heads l m"], Float[Tensor, "b l v"]]:
    """(cross-attention, logits) of sentences that are given; index i says where the word after word i comes from."""
    x, seen = decoder.embed(words), []
    blocks: Any = decoder.blocks
    for block, (keys, values) in zip(blocks, memory, strict=True):
        y = block.enter(block.norm_self, x)
        own = block.self_attention.attend(y, *block.self_attention.keys_values(y), causal=True)
        x = block.leave(block.norm_self, x, own, None)
        y = block.enter(block.norm_cross, x)
        seen.append(weights(block.cross_attention, y, keys))
        x = block.leave(block.norm_cross, x, block.cross_attention.attend(y, keys, values), None)
        x = block.leave(block.norm_feed, x, block.feed(block.enter(block.norm_feed, x)), None)
    return torch.stack(seen), decoder.logits(x)
