"""Continuous diffusion over word embeddings (Diffusion-LM, Li et al., 2022): forward process, denoiser, sampling.

x_0 is a sentence as vectors, x_t the same under noise of level t in [0, T]. The names are the literature's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from procap.models.caption_decoder import Past, waves
from procap.models.layers import Attention, FeedForward
from procap.models.mediator import DirectAttention, MediatorAttention
from procap.models.procedure_encoder import PAD
from procap.shapes import Bool, Float, Int, Tensor

SMALLEST_NOISE = 1e-4
"""Its root is the variance of x_0 around the embeddings of its words."""
SPREAD = SMALLEST_NOISE**0.25
"""sigma_0."""


@dataclass(frozen=True)
class TextDiffusionConfig:
    """Sizes of a text diffusion, and how it is trained and sampled."""

    vocabulary: int
    """v."""
    words: int
    """Of an encoded sentence; all but [BOS] are diffused, so that l is one less."""
    memory_width: int
    embedding: int
    """e. The fewer numbers a word has, the longer noise hides it."""
    width: int
    layers: int
    heads: int
    mediators: int
    """Between text and pictures; 0: words look at the pictures directly."""
    noise: float = 2.0
    """F, of the sqrt schedule's noise (Gao et al., 2022): so much that words are decided at middle levels."""
    lead: float = 8.0
    """How far the first place is ahead of the last one on the way out of the noise, in T; 0: all have one level."""
    shuffled: float = 0.0
    """Share of the rows of an update whose places leave the noise in a random order."""
    levels: int = 1000
    """T."""
    self_conditioning: float = 0.5
    """Share of the updates that feed back an earlier estimate; 0: sampling does not either."""
    clamping: float = 0.5
    """Share of the levels, the lowest, at which estimates are rounded before they are noised again."""

    @property
    def places(self) -> int:
        """l, vectors that are diffused."""
        return self.words - 1


@dataclass(frozen=True)
class Estimate:
    """What the denoiser makes of x_t."""

    x_0: Float[Tensor, "rows l e"]
    """Mean of the embeddings under the words' probabilities."""
    logits: Float[Tensor, "rows l v"]


class DenoiserBlock(nn.Module):
    """Self-attention over the text, attention to the visual-difference tokens, feed-forward."""

    def __init__(self, config: TextDiffusionConfig) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.norm_self = nn.LayerNorm(width)
        self.self_attention = Attention(width, heads)
        self.norm_cross = nn.LayerNorm(width)
        self.cross_attention: MediatorAttention | DirectAttention = (
            MediatorAttention(width, heads, config.memory_width, config.mediators)
            if config.mediators
            else DirectAttention(width, heads, config.memory_width)
        )
        self.cross_attention.start_looking(0)
        with torch.no_grad():
            self.cross_attention.key_value.weight[width:, 0] = 0
        self.norm_feed = nn.LayerNorm(width)
        self.feed = FeedForward(width)

    def among(self, x: Float[Tensor, "rows l d"]) -> Float[Tensor, "rows l d"]:
        """After the words have looked at one another."""
        y = self.norm_self(x)
        return x + self.self_attention.attend(y, *self.self_attention.keys_values(y))

    def forward(self, x: Float[Tensor, "rows l d"], memory: tuple[Tensor, Tensor]) -> Float[Tensor, "rows l d"]:
        x = self.among(x)
        x = x + self.cross_attention.attend(self.norm_cross(x), *memory)
        return x + self.feed(self.norm_feed(x))


class Denoiser(nn.Module):
    """What x_t tells of its words, its levels and the condition in; logits of the words out."""

    def __init__(self, config: TextDiffusionConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.enter = nn.Linear(2 * config.embedding, width)
        self.positions = nn.Parameter(torch.randn(config.places, width) * 0.5)
        self.level = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(DenoiserBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, config.vocabulary)

    def read(self, memory: Float[Tensor, "b m d"]) -> Past:
        """Keys and values of the visual-difference tokens, per block: computed once per pair."""
        return [block.cross_attention.keys_values(memory) for block in self.blocks]

    def start(
        self, seen: Float[Tensor, "rows l e"], t: Float[Tensor, "rows l"], previous: Float[Tensor, "rows l e"]
    ) -> Float[Tensor, "rows l d"]:
        """What the first block reads."""
        levels = waves(t * (1000 / self.config.levels), self.config.width)
        return self.enter(torch.cat([seen, previous], dim=-1)) + self.positions + self.level(levels)

    def forward(
        self,
        seen: Float[Tensor, "rows l e"],
        t: Float[Tensor, "rows l"],
        condition: Past,
        previous: Float[Tensor, "rows l e"],
    ) -> Float[Tensor, "rows l v"]:
        """Rows of one pair stand next to one another.

        ``seen`` is what each place's own x_t makes of x_0, ``previous`` an earlier estimate of x_0, or zeros.
        """
        x = self.start(seen, t, previous)
        for block, memory in zip(self.blocks, condition, strict=True):
            x = block(x, memory)
        return self.leave(self.norm(x))

    def looks(
        self,
        seen: Float[Tensor, "b l e"],
        t: Float[Tensor, "b l"],
        condition: Past,
        previous: Float[Tensor, "b l e"],
    ) -> Float[Tensor, "b l m"]:
        """How much each place takes from each visual-difference token, mean of blocks and heads; sums to 1."""
        x, looks = self.start(seen, t, previous), []
        blocks: Any = self.blocks
        for block, memory in zip(blocks, condition, strict=True):
            looks.append(block.cross_attention.weights(block.norm_cross(block.among(x)), memory[0]).mean(1))
            x = block(x, memory)
        return torch.stack(looks).mean(0)


class TextDiffusion(nn.Module):
    """Words as vectors, how noise covers them, and the network that takes it away."""

    def __init__(self, config: TextDiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocabulary, config.embedding))
        self.denoiser = Denoiser(config)

    @property
    def table(self) -> Float[Tensor, "v e"]:
        """Embeddings of all words; each has norm sqrt(e)."""
        return F.normalize(self.embedding, dim=-1) * self.config.embedding**0.5

    def embed(self, words: Int[Tensor, "rows l"]) -> Float[Tensor, "rows l e"]:
        """E(w)."""
        return F.embedding(words, self.table)

    def kept(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """a_t, the share of x_0's variance in x_t: from the sqrt schedule under noise times ``noise``, and 0 at T."""
        plain = (1 - (t / self.config.levels + SMALLEST_NOISE).sqrt()).clamp(min=0)
        return plain / (plain + self.config.noise**2 * (1 - plain))

    def signal(self, t: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """a_t / (1 - a_t), the ratio of signal to noise."""
        kept = self.kept(t)
        return kept / (1 - kept)

    def q_sample(
        self, x_0: Float[Tensor, "rows l e"], t: Float[Tensor, "rows l"], noise: Float[Tensor, "rows l e"]
    ) -> Float[Tensor, "rows l e"]:
        """x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) noise."""
        kept = self.kept(t)[..., None]
        return kept.sqrt() * x_0 + (1 - kept).sqrt() * noise

    def evidence(self, x_t: Float[Tensor, "rows l e"], t: Float[Tensor, "rows l"]) -> Float[Tensor, "rows l v"]:
        """log p(x_t | w) at each place for every word, but for a constant."""
        kept = self.kept(t)[..., None]
        return (kept.sqrt() / (1 - kept) * x_t @ self.table.T).float()

    def predict_x0(
        self,
        x_t: Float[Tensor, "rows l e"],
        t: Float[Tensor, "rows l"],
        condition: Past,
        previous: Float[Tensor, "rows l e"] | None = None,
        barred: Bool[Tensor, "l v"] | None = None,
    ) -> Estimate:
        """f(x_t, t, condition): the embeddings' mean under the words' probabilities, none where ``barred``."""
        evidence = self.evidence(x_t, t)
        seen = evidence.softmax(-1) @ self.table
        context = self.denoiser(seen, t, condition, torch.zeros_like(x_t) if previous is None else previous)
        logits = context.float() + evidence
        if barred is not None:
            logits = logits.masked_fill(barred, -torch.inf)
        return Estimate(logits.softmax(-1) @ self.table, logits)

    def self_conditioned(
        self,
        x_t: Float[Tensor, "rows l e"],
        t: Float[Tensor, "rows l"],
        condition: Past,
        generator: torch.Generator,
    ) -> Estimate:
        """``predict_x0`` for training: at times it is told what it would have said (Chen et al., 2022)."""
        previous = None
        if torch.rand((), generator=generator) < self.config.self_conditioning:
            with torch.no_grad():
                previous = self.predict_x0(x_t, t, condition).x_0
        return self.predict_x0(x_t, t, condition, previous)

    def p_sample(
        self,
        x_t: Float[Tensor, "rows l e"],
        x_0: Float[Tensor, "rows l e"],
        t: Float[Tensor, "*any"],
        s: Float[Tensor, "*any"],
    ) -> Float[Tensor, "rows l e"]:
        """x_s from x_t and an estimate of x_0, without new noise (DDIM, Song et al., 2021)."""
        kept = self.kept(t.expand(x_t.shape[:-1]))[..., None]
        noise = (x_t - kept.sqrt() * x_0) / (1 - kept).sqrt()
        return self.q_sample(x_0, s.expand(x_t.shape[:-1]), noise)

    @torch.no_grad()
    def sample(
        self, condition: Past, noise: Float[Tensor, "rows l e"], steps: int, barred: Bool[Tensor, "l v"]
    ) -> Iterator[Estimate]:
        """Estimates from pure noise to the sentence, on a grid of ``steps`` equal strides; the last one counts.

        At low levels (``clamping``) estimates are rounded to words before they are noised again.
        """
        grid = place_levels(self.config, torch.linspace(self.config.levels, 0, steps + 1, device=noise.device))
        x_t, previous = noise, None
        for t, s in pairwise(grid):
            estimate = self.predict_x0(x_t, t.expand(x_t.shape[:-1]), condition, previous, barred)
            yield estimate
            if self.config.self_conditioning:
                previous = estimate.x_0
            clamped = (t <= self.config.clamping * self.config.levels)[:, None]
            x_0 = torch.where(clamped, self.embed(estimate.logits.argmax(-1)), estimate.x_0)
            x_t = self.p_sample(x_t, x_0, t, s)


def draw_noise(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard normal numbers from the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device).to(device)


def place_levels(config: TextDiffusionConfig, t: Float[Tensor, " rows"]) -> Float[Tensor, "rows l"]:
    """The level of every place of a sentence at level t: the first places leave the noise first (Wu et al., 2023).

    Then a word is decided by the words before it; where all are decided at once, each may follow another paraphrase.
    """
    return (t[:, None] * (1 + config.lead) - _ahead(config, t.device)).clamp(0, config.levels)


def _ahead(config: TextDiffusionConfig, device: torch.device) -> Float[Tensor, " l"]:
    """How far each place is ahead of the last one."""
    return torch.linspace(config.lead, 0, config.places, device=device) * config.levels


def draw_levels(
    config: TextDiffusionConfig, words: Int[Tensor, "rows l"], generator: torch.Generator
) -> Float[Tensor, "rows l"]:
    """Of sentences at one of the levels 0, 1 ... T - 1 each, evenly spread over the rows.

    Levels at which nothing but padding is under noise are left out. Of some rows (``shuffled``) the places leave the
    noise in an order that is drawn, so that words are found by neighbours on both sides.
    """
    rows, ahead = len(words), _ahead(config, words.device)
    last = (words != PAD).sum(1).clamp(min=1) - 1
    least = ahead[last] / (1 + config.lead)
    if config.shuffled:
        shuffled = torch.rand(rows, generator=generator, device=generator.device).to(words.device) < config.shuffled
        least = least.masked_fill(shuffled, 0)
    shift = torch.rand((), generator=generator, device=generator.device)
    order = torch.randperm(rows, generator=generator, device=generator.device)
    t = least + (config.levels - least) * ((order + shift) / rows).to(words.device)
    levels = place_levels(config, t.floor().clamp(max=config.levels - 1))
    if config.shuffled:
        drawn = torch.rand(words.shape, generator=generator, device=generator.device).argsort(1).to(words.device)
        levels = torch.where(shuffled[:, None], levels.gather(1, drawn), levels)
    return levels


@dataclass(frozen=True)
class Noised:
    """A sentence on its way into noise."""

    words: Int[Tensor, "rows l"]
    x_0: Float[Tensor, "rows l e"]
    t: Float[Tensor, "rows l"]
    x_t: Float[Tensor, "rows l e"]
    target: Float[Tensor, "rows l e"]
    """What the denoiser is to find: x_0, and at level 0 the embeddings themselves."""


def noised(
    diffusion: TextDiffusion, words: Int[Tensor, "rows l"], t: Float[Tensor, "rows l"], generator: torch.Generator
) -> Noised:
    """Draw x_0 = E(w) + sigma_0 noise, and x_t from it."""
    means = diffusion.embed(words)
    x_0 = means + SPREAD * draw_noise(means.shape, generator, means.device)
    x_t = diffusion.q_sample(x_0, t, draw_noise(means.shape, generator, means.device))
    return Noised(words, x_0, t, x_t, torch.where((t == 0)[..., None], means, x_0))


def squared_error(estimate: Estimate, target: Float[Tensor, "rows l e"]) -> Float[Tensor, "rows l"]:
    """|f - target|^2 / e at each place."""
    return (estimate.x_0 - target).square().mean(-1)


def rounding_error(logits: Float[Tensor, "rows l v"], words: Int[Tensor, "rows l"]) -> Float[Tensor, "rows l"]:
    """-log p(w) at each place."""
    return F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none").reshape(words.shape)


def denoising_loss(diffusion: TextDiffusion, one: Noised, estimate: Estimate) -> Float[Tensor, "rows l"]:
    """What is minimised at each place: |f - x_0|^2 / e, and the words' cross-entropy given f and given x_0.

    Given x_0 it is Diffusion-LM's rounding term, which keeps embeddings apart; given f it anchors the estimate to words
    (Gao et al., 2022). The prior term is 0, since a_T is.
    """
    rounding = rounding_error(one.x_0 @ diffusion.table.T, one.words)
    return squared_error(estimate, one.target) + rounding_error(estimate.logits, one.words) + rounding


def hide(one: Noised, levels: int, generator: torch.Generator) -> tuple[Noised, Bool[Tensor, "rows l"]]:
    """(the sentence with some places under pure noise, which ones): from one place to all, equally often."""
    rows, places = one.words.shape
    draw = torch.rand(rows, places, generator=generator, device=generator.device)
    shift = torch.rand((), generator=generator, device=generator.device)
    order = torch.randperm(rows, generator=generator, device=generator.device)
    count = 1 + ((order + shift) / rows * places).floor().clamp(max=places - 1)
    away = (draw.argsort(1).argsort(1) < count[:, None]).to(one.t.device)
    noise = draw_noise(one.x_t.shape, generator, one.x_t.device)
    x_t = torch.where(away[..., None], noise, one.x_t)
    return replace(one, t=one.t.masked_fill(away, levels), x_t=x_t, target=one.x_0), away


def mean_of(values: Float[Tensor, "rows l"], here: Bool[Tensor, "rows l"]) -> Float[Tensor, " rows"]:
    """Of each row, over the places that count."""
    return (values * here).sum(1) / here.sum(1)


def context_loss(
    diffusion: TextDiffusion, one: Noised, condition: Past, generator: torch.Generator
) -> Float[Tensor, " rows"]:
    """Some words are under noise of level T, the others stay at their own: how far off is what is made of those?

    The network has to find a word by its neighbours, even where its own vector tells nothing.
    """
    hidden, away = hide(one, diffusion.config.levels, generator)
    estimate = diffusion.predict_x0(hidden.x_t, hidden.t, condition)
    return mean_of(squared_error(estimate, hidden.target) + rounding_error(estimate.logits, hidden.words), away)


@torch.no_grad()
def word_bound(
    diffusion: TextDiffusion, words: Int[Tensor, "rows l"], condition: Past, draws: int, generator: torch.Generator
) -> Float[Tensor, " rows"]:
    """Upper bound of -log p(w | condition) in nats by the diffusion, estimated with ``draws`` levels each."""
    config = diffusion.config
    rows, wide = words.repeat_interleave(draws, 0), _wide(condition, draws)
    shift = torch.rand(len(words), 1, generator=generator, device=generator.device)
    u = (torch.arange(draws, device=generator.device) + shift) / draws
    level = 1 + (u * config.levels).floor().clamp(max=config.levels - 1).to(words.device).flatten()
    t, earlier = place_levels(config, level), place_levels(config, level - 1)
    one = noised(diffusion, rows, t, generator)
    estimate = diffusion.predict_x0(one.x_t, t, wide)
    first = (level == 1)[:, None]
    target = torch.where(first[..., None], diffusion.embed(rows), one.x_0)
    gained = diffusion.signal(earlier) - diffusion.signal(t)
    weight = 0.5 * config.levels * torch.where(first, SPREAD**-2, gained)
    distance = (estimate.x_0 - target).square().sum(-1)
    rounding = rounding_error(one.x_0 @ diffusion.table.T, rows)
    return (weight * distance + rounding).sum(1).reshape(len(words), draws).mean(1)


@torch.no_grad()
def context_bound(
    diffusion: TextDiffusion, words: Int[Tensor, "rows l"], condition: Past, draws: int, generator: torch.Generator
) -> Float[Tensor, " rows"]:
    """Upper bound of -log p(w | condition) in nats by finding words from their neighbours, in any order."""
    rows, wide = words.repeat_interleave(draws, 0), _wide(condition, draws)
    clean = noised(diffusion, rows, torch.zeros(rows.shape, device=rows.device), generator)
    hidden, away = hide(clean, diffusion.config.levels, generator)
    estimate = diffusion.predict_x0(hidden.x_t, hidden.t, wide)
    found = mean_of(rounding_error(estimate.logits, rows), away)
    return diffusion.config.places * found.reshape(len(words), draws).mean(1)


def _wide(condition: Past, rows: int) -> Past:
    """What several rows of each pair read."""
    return [(keys.repeat_interleave(rows, 0), values.repeat_interleave(rows, 0)) for keys, values in condition]
