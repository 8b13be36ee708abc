"""A small two-tower model of pairs and their captions, trained on the training split. Ours: it is neither CLIP nor
CLIP4IDC, and knows no more words and pictures than the corpus has.

One tower reads two pictures, as frozen features, the other a caption; what belongs together gets a large cosine.
"""

from dataclasses import dataclass

import torch
from torch import nn

from procap.shapes import Bool, Float, Scalar, Tensor, Words

SHARPNESS = 10.0
"""Factor of the cosines in the loss at the start of the training, which changes it."""


@dataclass(frozen=True)
class TwoTowerConfig:
    features: int
    """Width of a picture's frozen features."""
    vocabulary: int
    padding: int
    """Number of the word that is none."""
    width: int
    """d of the space where the towers meet."""


class TwoTower(nn.Module):
    """``centre`` and ``scale`` are what the training pairs' features and differences are standardised by."""

    centre: Tensor
    scale: Tensor

    def __init__(self, config: TwoTowerConfig, centre: Float[Tensor, " c"], scale: Float[Tensor, "2 c"]) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)
        self.pair_tower = nn.Sequential(
            nn.Linear(2 * config.features, config.width), nn.GELU(), nn.Linear(config.width, config.width)
        )
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.caption_tower = nn.Sequential(nn.GELU(), nn.Linear(config.width, config.width))
        self.log_sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())

    def embed_pairs(self, before: Float[Tensor, "*b c"], after: Float[Tensor, "*b c"]) -> Float[Tensor, "*b d"]:
        """Unit vectors."""
        standard = torch.cat([(before - self.centre) / self.scale[0], (after - before) / self.scale[1]], dim=-1)
        return nn.functional.normalize(self.pair_tower(standard), dim=-1)

    def embed_captions(self, words: Words) -> Float[Tensor, "b d"]:
        """Unit vectors; the order of the words does not count."""
        there = (words != self.config.padding).unsqueeze(-1)
        mean = (self.words(words) * there).sum(dim=1) / there.sum(dim=1)
        return nn.functional.normalize(self.caption_tower(mean), dim=-1)

    def loss(
        self, before: Float[Tensor, "b c"], after: Float[Tensor, "b c"], words: Words, alike: Bool[Tensor, "b b"]
    ) -> Scalar:
        """Symmetric contrastive loss; where ``alike``, the caption of one pair also fits the other."""
        cosines = self.embed_pairs(before, after) @ self.embed_captions(words).T
        logits, target = cosines * self.log_sharpness.exp(), alike / alike.sum(dim=1, keepdim=True)
        both = (nn.functional.cross_entropy(each, target) for each in (logits, logits.T))
        return torch.stack(list(both)).mean()
