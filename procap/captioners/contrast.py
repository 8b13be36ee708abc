"""Contrastive terms of the diffusion captioners: which captions say the same, and InfoNCE."""

import torch
import torch.nn.functional as F

from procap.captioners import Batch
from procap.datasets.vocabulary import BOS, EOS, PAD
from procap.shapes import Bool, Float, Int, Scalar, Tensor, Words


def pooled(x: Float[Tensor, "rows l e"], words: Int[Tensor, "rows l"]) -> Float[Tensor, "rows e"]:
    """Mean over the places of words, the end left out; of length 1."""
    counted = ((words != PAD) & (words != EOS))[..., None].to(x.dtype)
    return F.normalize((x * counted).sum(1) / counted.sum(1).clamp(min=1), dim=-1)


def alike(batch: Batch) -> Bool[Tensor, "b b"]:
    """True where two pairs share a caption, word for word: neither is a negative of the other."""
    captions = batch.words[:, None] if batch.captions is None else batch.captions
    b, o, _ = captions.shape
    _, numbers = torch.unique(captions.flatten(0, 1), dim=0, return_inverse=True)
    there = (captions[:, :, 0] == BOS).flatten()
    numbers = torch.where(there, numbers, -1 - torch.arange(b * o, device=numbers.device)).reshape(b, o)
    return (numbers[:, None, :, None] == numbers[None, :, None, :]).any((2, 3)) | torch.eye(
        b, dtype=torch.bool, device=numbers.device
    )


def another(batch: Batch, generator: torch.Generator) -> Words:
    """A caption of each pair that is not the one of the batch, drawn; that one where the pair has no other."""
    if batch.captions is None:
        return batch.words
    there = (batch.captions[:, :, 0] == BOS) & (batch.captions != batch.words[:, None]).any(-1)
    draw = torch.rand(there.shape, generator=generator, device=generator.device).to(there.device)
    best, place = draw.masked_fill(~there, -1).max(1)
    found = batch.captions[torch.arange(len(place), device=place.device), place]
    return torch.where((best < 0)[:, None], batch.words, found)


def several(batch: Batch, draws: int, generator: torch.Generator) -> Int[Tensor, "rows l"]:
    """Rows to denoise, without [BOS]: of each pair the caption of the batch, then others of its captions, drawn."""
    captions = [batch.words, *(another(batch, generator) for _ in range(draws - 1))]
    return torch.stack(captions, 1).flatten(0, 1)[:, 1:]


def temperature(sharpness: Tensor) -> Tensor:
    """A learned temperature between 0.05 and 1; 0.22 at 0."""
    return 0.05 ** torch.sigmoid(sharpness)


def info_nce(
    anchors: Float[Tensor, "b e"], positives: Float[Tensor, "b e"], barred: Bool[Tensor, "b b"], heat: Tensor
) -> Scalar:
    """-log of a pair's own share among the other pairs' (van den Oord et al., 2018); all vectors have length 1.

    ``barred`` pairs are no negatives of one another.
    """
    scores = anchors @ positives.T / heat
    own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    scores = scores.masked_fill(barred & ~own, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(anchors), device=anchors.device))
