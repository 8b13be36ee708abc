"""Why a captioner says what it says of a pair: where it looks for each word, and what speaks for the sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange

from procap.captioners.scoring import Ids, log_chances, padded
from procap.models.encoder_decoder import EncoderDecoder
from procap.models.looking import looks
from procap.shapes import Float, Tensor, UInt8

PATH = 8
"""Points of the way from an unchanged pair to the pair, at which ``evidence`` takes a gradient."""
AT_ONCE = 2**26
"""Numbers between an encoder's layers that ``evidence`` holds at once, to go back through them."""


@dataclass(frozen=True)
class Draft:
    """A sentence at one step of its sampling."""

    text: str
    probability: float
    """Product of its words' probabilities at this step, in [0, 1]."""


@dataclass(frozen=True)
class Explanation:
    """What can be shown of a caption; None where its captioner has no such thing.

    Maps have the proportions of the pictures (``Caption.explanation``)."""

    attention_before: Float[np.ndarray, "words h w"] | None
    """Where the decoder looks in the picture before for each word: cross-attention, mean of layers and heads.

    The greatest value of a word in both pictures together is 1."""
    attention_after: Float[np.ndarray, "words h w"] | None
    attention_frames: Float[np.ndarray, "words t"] | None
    """How much of a word's attention each frame has, imagined ones too; sums to 1. index 0 is before, -1 is after."""
    change_map: Float[np.ndarray, "h w"] | None
    """In [0, 1]: which places speak for the sentence (``evidence``), the greatest being the probability of a change; or
    what the captioner has for such a map (``Reason.change_map``)."""
    frames: UInt8[np.ndarray, "t side side 3"]
    """Before, what the captioner imagines between, after; square, in the size that it works with.

    Without imagination (``static``) before and after alone."""
    drafts: tuple[Draft, ...] = ()
    """The sentence as it was at each step of its sampling, the last one as it is; of captioners that sample."""


@torch.no_grad()
def attention(
    network: EncoderDecoder, features: Float[Tensor, "b f n c"], sentences: Sequence[Ids]
) -> Float[Tensor, "b l t n"]:
    """For each word of each pair's sentence, then [EOS], how much it takes from each place; sums to 1."""
    imagined = network.imagine(features)
    memory = network.decoder.read(network.projection(rearrange(imagined, "b t n d -> b (t n) d")))
    seen, _ = looks(network.decoder, padded(sentences, features.device)[:, :-1], memory)
    return rearrange(seen.mean((0, 2)), "b l (t n) -> b l t n", t=imagined.shape[1])


def evidence(
    network: EncoderDecoder, features: Float[Tensor, "b f n c"], sentences: Sequence[Ids]
) -> Float[Tensor, "b n"]:
    """How much each place adds to the log-probability of the pair's sentence by not being as it was before.

    Integrated gradients (Sundararajan et al., 2017) from a pair whose frames are all like before to the pair itself;
    over the places they sum to the difference of the two log-probabilities.
    """
    words = padded(sentences, features.device).repeat_interleave(PATH, 0)
    start = features[:, :1].expand_as(features)
    shares = (torch.arange(PATH, device=features.device) + 0.5) / PATH
    way = torch.lerp(start[:, None], features[:, None], shares[:, None, None, None]).flatten(0, 1)
    sizes = network.config.encoder
    at_once = max(1, AT_ONCE // (sizes.frames * sizes.grid**2 * sizes.width * sizes.layers))
    gradients = []
    for some, said in zip(way.split(at_once), words.split(at_once), strict=True):
        with torch.enable_grad():
            point = some.detach().requires_grad_()
            chances = log_chances(network, said, network.read(point))
            gradients += torch.autograd.grad(chances.sum(), point)
    gradient = rearrange(torch.cat(gradients), "(b p) f n c -> b p f n c", p=PATH).mean(1)
    return ((features - start) * gradient).sum((1, 3))
