"""The visual-difference encoder of the diffusion captioners: before, after and what lies between, place by place."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from procap.models.layers import EncoderBlock, start_silent, without_biases
from procap.shapes import Float, Tensor


@dataclass(frozen=True)
class DifferenceConfig:
    """Sizes of a visual-difference encoder."""

    grid: int
    """Places per side; n is its square."""
    feature_width: int
    """c."""
    width: int
    layers: int
    heads: int
    out: int
    """d of the visual-difference tokens."""


class DifferenceEncoder(nn.Module):
    """A visual-difference token per place (our formulation).

    A place enters as before, after and after - before, each through a projection of its own, which is its role, with a
    position; a small transformer lets places tell one another what they hold. How much a place differs goes past it: a
    decoder starts with that number as its score (``start_looking``), as decision 7 has it for ProCap.
    """

    SIZE_GAIN = 8.0
    """On log(1 + size of the difference) in the first weights; distractors have sizes of about 0.1, changes of 1."""

    def __init__(self, config: DifferenceConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.feature_norm = nn.LayerNorm(config.feature_width)
        self.before = nn.Linear(config.feature_width, width)
        self.after = nn.Linear(config.feature_width, width)
        self.difference = nn.Linear(config.feature_width, width)
        self.positions = nn.Parameter(0.5 * torch.randn(config.grid**2, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width + 1, config.out)
        self._start_comparing()

    @torch.no_grad()
    def _start_comparing(self) -> None:
        """First weights: a token's first number is how much its place differs, and blocks begin as nothing."""
        without_biases(self)
        blocks: Any = self.blocks
        for block in blocks:
            start_silent(block.attention.out)
            start_silent(block.feed[2])
        self.out.weight[:, -1] = 0
        self.out.weight[0] = 0
        self.out.weight[0, -1] = self.SIZE_GAIN

    def forward(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b n d"]:
        """Visual-difference tokens of the first and the last frame."""
        before, after = features[:, 0], features[:, -1]
        size = (after - before).norm(dim=-1, keepdim=True).log1p()
        before, after = self.feature_norm(before), self.feature_norm(after)
        x = self.before(before) + self.after(after) + self.difference(after - before) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.out(torch.cat([self.norm(x), size], dim=-1))
