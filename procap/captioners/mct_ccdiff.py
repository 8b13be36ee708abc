"""MCT-CCDiff: contrastive, context-aware diffusion whose text looks at the pictures through mediators.

The paper's abstract names the parts; its text gives no formula, so that all of them are our formulation
(docs/diffusion.md).
"""

from dataclasses import dataclass

import torch
from torch import nn

from procap.captioners import Batch
from procap.captioners.contrast import alike, another, info_nce, pooled, several, temperature
from procap.captioners.diffusion import DiffusionCaptioner, DiffusionNetwork
from procap.models.difference_encoder import DifferenceConfig
from procap.models.text_diffusion import TextDiffusionConfig, context_loss, denoising_loss, draw_levels, noised
from procap.shapes import Float, Scalar, Tensor


@dataclass(frozen=True)
class MCTCCDiffConfig:
    """Sizes, and the weights of what the paper adds to the diffusion loss; 0 leaves a part out."""

    encoder: DifferenceConfig
    text: TextDiffusionConfig
    draws: int
    """Captions of a pair that an update denoises, each at a level of its own."""
    average: float
    """Share of the averaged weights that an update leaves."""
    tecl: float
    """Of the text embedding contrastive loss."""
    context: float
    """Of the context-augmented denoising term."""


class MCTCCDiff(DiffusionCaptioner):
    """Text embedding contrastive loss, mediators (``text.mediators``), context-augmented denoising."""

    Config = MCTCCDiffConfig

    def __init__(self, config: MCTCCDiffConfig) -> None:
        super().__init__(DiffusionNetwork(config.encoder, config.text), config.average)
        self.config = config
        self.sharpness = nn.Parameter(torch.zeros(()), requires_grad=config.tecl > 0)

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """The diffusion loss, the context term, and the contrast of text embeddings."""
        config, text = self.config, self.network.text
        condition = text.denoiser.read(self.network.memory(batch.features))
        words = several(batch, config.draws, generator)
        t = draw_levels(config.text, words, generator)
        one = noised(text, words, t, generator)
        estimate = text.self_conditioned(one.x_t, t, condition, generator)
        terms = {"diffusion": denoising_loss(text, one, estimate).mean()}
        if config.context:
            clean = noised(text, words, torch.zeros_like(t), generator)
            terms["context"] = config.context * context_loss(text, clean, condition, generator).mean()
        if config.tecl:
            anchors = pooled(estimate.x_0, words)[:: config.draws]
            terms["tecl"] = config.tecl * self.text_contrast(batch, anchors, generator)
        return terms

    def text_contrast(self, batch: Batch, anchors: Float[Tensor, "b e"], generator: torch.Generator) -> Scalar:
        """InfoNCE of pooled estimates against pooled captions: the pair's own, and another one of the pair's.

        Negatives are captions of pairs that share none with it.
        """
        barred, embed = alike(batch), self.network.text.embed
        found = [
            info_nce(anchors, pooled(embed(words), words), barred, temperature(self.sharpness))
            for words in (batch.words[:, 1:], another(batch, generator)[:, 1:])
        ]
        return torch.stack(found).mean()
