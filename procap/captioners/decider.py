"""DECIDER: difference-aware contrastive diffusion with adversarial perturbations.

The paper's abstract names the parts; its text gives no formula, so that all of them are our formulation
(docs/diffusion.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.captioners import Batch
from procap.captioners.contrast import alike, info_nce, pooled, several, temperature
from procap.captioners.diffusion import DiffusionCaptioner, DiffusionNetwork
from procap.models.difference_encoder import DifferenceConfig
from procap.models.text_diffusion import (
    TextDiffusion,
    TextDiffusionConfig,
    denoising_loss,
    draw_levels,
    draw_noise,
    noised,
)
from procap.shapes import Bool, Float, Int, Scalar, Tensor


@dataclass(frozen=True)
class DeciderConfig:
    """Sizes, and the weights of what the paper adds to the diffusion loss; 0 leaves a part out."""

    encoder: DifferenceConfig
    """Its ``out`` is twice the width of the code: mean and log-variance."""
    text: TextDiffusionConfig
    draws: int
    """Captions of a pair that an update denoises, each at a level of its own."""
    average: float
    """Share of the averaged weights that an update leaves."""
    bottleneck: float
    """beta, of the code's divergence from N(0, I) per token; 0: the code is its mean."""
    warmup: int
    """Updates in which beta rises from 0."""
    cross_modal: float
    """Of the contrast between codes and captions."""
    contrast: float
    """Of the contrastive diffusion loss."""
    contrasted: int
    """Pairs of a batch that it takes at most."""
    negatives: int
    """Captions of other pairs that it takes for each pair."""
    temperature: float
    """Of denoising losses as scores."""
    positive: float
    """Length of the step that makes a code a hard positive; 0: none."""
    negative: float
    """Length of the step that makes another caption a hard negative; 0: none."""


@dataclass(frozen=True)
class Code:
    """What is known of the difference, as a normal distribution per token."""

    mean: Float[Tensor, "b n d"]
    log_variance: Float[Tensor, "b n d"]

    def divergence(self) -> Float[Tensor, "b n"]:
        """Of each token from N(0, I), in nats: how much it tells of the pair."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1 - self.log_variance).sum(-1)

    def draw(self, generator: torch.Generator) -> Float[Tensor, "b n d"]:
        """mean + deviation noise."""
        return self.mean + (0.5 * self.log_variance).exp() * draw_noise(self.mean.shape, generator, self.mean.device)


class CodedNetwork(DiffusionNetwork):
    """A diffusion whose condition is a code; without a draw it is the code's mean."""

    LEAST, MOST, FIRST = -8.0, 2.0, -3.0
    """Of log-variances, and what they begin with."""

    def __init__(self, encoder: DifferenceConfig, text: TextDiffusionConfig) -> None:
        super().__init__(encoder, text)
        self.meeting = nn.Linear(text.memory_width, text.embedding)
        with torch.no_grad():
            self.encoder.out.weight[text.memory_width :] *= 0.1
            self.encoder.out.bias[text.memory_width :] = self.FIRST

    def code(self, features: Float[Tensor, "b t n c"]) -> Code:
        """Mean and log-variance of every token."""
        mean, log_variance = self.encoder(features).chunk(2, dim=-1)
        return Code(mean, log_variance.clamp(self.LEAST, self.MOST))

    def memory(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b n d"]:
        return self.code(features).mean

    def change_maps(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b n"]:
        """How much more the code tells of each place than of the pair's median place: 1 - exp(-nats per number)."""
        told = self.code(features).divergence() / self.text.config.memory_width
        return 1 - torch.exp(-(told - told.median(1, keepdim=True).values).clamp(min=0))

    def pooled_code(self, z: Float[Tensor, "b n d"]) -> Float[Tensor, "b e"]:
        """A code where captions are; of length 1."""
        return F.normalize(self.meeting(z.mean(1)), dim=-1)


class Decider(DiffusionCaptioner):
    """Information-bottleneck condition, adversarial hard samples, contrastive diffusion loss."""

    Config = DeciderConfig
    network: CodedNetwork

    def __init__(self, config: DeciderConfig) -> None:
        super().__init__(CodedNetwork(config.encoder, config.text), config.average)
        self.config = config
        self.sharpness = nn.Parameter(torch.zeros(()), requires_grad=config.cross_modal > 0)
        self.network.meeting.requires_grad_(config.cross_modal > 0)

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """The diffusion loss under a drawn code, what the code costs, and both contrasts."""
        config, text = self.config, self.network.text
        code, words = self.network.code(batch.features), batch.words[:, 1:]
        z = code.draw(generator) if config.bottleneck else code.mean
        condition = text.denoiser.read(z)
        rows = several(batch, config.draws, generator)
        one = noised(text, rows, draw_levels(config.text, rows, generator), generator)
        estimate = text.self_conditioned(one.x_t, one.t, condition, generator)
        terms = {"diffusion": denoising_loss(text, one, estimate).mean()}
        barred = alike(batch)
        if config.bottleneck:
            beta = config.bottleneck * min(1.0, (self.updates + 1) / config.warmup)
            terms["bottleneck"] = beta * code.divergence().mean()
        if config.cross_modal:
            captions = pooled(text.embed(words), words)
            contrast = info_nce(self.network.pooled_code(z), captions, barred, temperature(self.sharpness))
            terms["cross_modal"] = config.cross_modal * contrast
        if config.contrast:
            some = slice(config.contrasted)
            scores, allowed = self.candidates(z[some], words[some], barred[some, some], generator)
            terms["contrast"] = config.contrast * contrastive_loss(scores, allowed, self.positives)
        return terms

    @property
    def positives(self) -> int:
        """Candidates that are right: the pair's caption under its code, and under its hard positive."""
        return 2 if self.config.positive else 1

    def candidates(
        self,
        z: Float[Tensor, "b n d"],
        words: Int[Tensor, "b l"],
        barred: Bool[Tensor, "b b"],
        generator: torch.Generator,
    ) -> tuple[Float[Tensor, "b options"], Bool[Tensor, "b options"]]:
        """(scores -L / temperature, which count): first ``positives``, then captions of other pairs, last a hard one.

        All are under the same noise of the same level.
        """
        config, text = self.config, self.network.text
        b = len(z)
        t = draw_levels(config.text, words, generator)
        noise = draw_noise(torch.Size((*words.shape, config.text.embedding)), generator, z.device)
        others = [(torch.arange(b, device=z.device) + 1 + k) % b for k in range(min(config.negatives, b - 1))]
        x_0 = text.embed(words)
        columns, allowed = [x_0], [torch.ones(b, dtype=torch.bool, device=z.device)] * self.positives
        for other in others:
            columns.append(x_0[other])
            allowed.append(~barred[torch.arange(b, device=z.device), other])
        if config.negative and others:
            columns.append(hard_negative(text, x_0[others[0]], t, noise, z, config.negative))
            allowed.append(allowed[self.positives])
        errors = caption_errors(text, torch.stack(columns, 1), t, noise, z)
        if config.positive:
            far = hard_positive(text, x_0, t, noise, z, config.positive)
            errors = torch.cat([caption_errors(text, x_0[:, None], t, noise, far), errors], dim=1)
        return -errors / config.temperature, torch.stack(allowed, 1)


def caption_errors(
    text: TextDiffusion,
    x_0: Float[Tensor, "b r l e"],
    t: Float[Tensor, "b l"],
    noise: Float[Tensor, "b l e"],
    z: Float[Tensor, "b n d"],
) -> Float[Tensor, "b r"]:
    """L(x, z) = |f(x_t, t, z) - x|^2 / (l e) of r captions under each pair's code."""
    r = x_0.shape[1]
    target, levels = rearrange(x_0, "b r l e -> (b r) l e"), t.repeat_interleave(r, 0)
    x_t = text.q_sample(target, levels, noise.repeat_interleave(r, 0))
    found = text.predict_x0(x_t, levels, text.denoiser.read(z)).x_0
    return rearrange((found - target).square().mean((1, 2)), "(b r) -> b r", r=r)


def hard_positive(
    text: TextDiffusion,
    x_0: Float[Tensor, "b l e"],
    t: Float[Tensor, "b l"],
    noise: Float[Tensor, "b l e"],
    z: Float[Tensor, "b n d"],
    length: float,
) -> Float[Tensor, "b n d"]:
    """The code after a step of this length in the direction that raises the denoising loss of its own caption."""
    return z + length * uphill(lambda code: caption_errors(text, x_0.detach()[:, None], t, noise, code), z)


def hard_negative(
    text: TextDiffusion,
    x_0: Float[Tensor, "b l e"],
    t: Float[Tensor, "b l"],
    noise: Float[Tensor, "b l e"],
    z: Float[Tensor, "b n d"],
    length: float,
) -> Float[Tensor, "b l e"]:
    """A foreign caption after a step of this length in the direction that lowers its denoising loss under the code."""
    return x_0 - length * uphill(lambda caption: caption_errors(text, caption[:, None], t, noise, z.detach()), x_0)


def uphill(errors: Callable[[Tensor], Tensor], at: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
    """Where each pair's error grows fastest, of length 1; gradients stop here."""
    with torch.enable_grad():
        start = at.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(errors(start).sum(), start)
    return gradient / gradient.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def contrastive_loss(
    scores: Float[Tensor, "b options"], allowed: Bool[Tensor, "b options"], positives: int
) -> Scalar:
    """-log of a right candidate's share among all that count, mean over the right ones (the first ``positives``).

    log(options) less this is a lower bound of the mutual information between caption and code.
    """
    shares = scores.masked_fill(~allowed, -torch.inf).log_softmax(1)
    return -shares[:, :positives].mean()
