"""What both diffusion captioners share: sampling a sentence from noise, choosing among samples, saying why."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from procap.captioners import Decoding, Prediction, Reason
from procap.datasets.vocabulary import EOS, PAD, SPECIALS
from procap.models.difference_encoder import DifferenceConfig, DifferenceEncoder
from procap.models.text_diffusion import Estimate, TextDiffusion, TextDiffusionConfig, draw_noise
from procap.shapes import Bool, Float, Tensor


class DiffusionNetwork(nn.Module):
    """A visual-difference encoder, and a text diffusion under its condition."""

    def __init__(self, encoder: DifferenceConfig, text: TextDiffusionConfig) -> None:
        super().__init__()
        self.encoder = DifferenceEncoder(encoder)
        self.text = TextDiffusion(text)

    def memory(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b n d"]:
        """What the text looks at."""
        return self.encoder(features)

    def change_maps(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b n"] | None:
        """In [0, 1], where the network knows of a change by itself."""
        return None


class DiffusionCaptioner(nn.Module):
    """A captioner whose network has a ``text`` that is sampled, and a ``memory`` of a pair that it looks at.

    Sentences are sampled with a moving average of the weights.
    """

    pretrained = False
    paraphrases = True
    """Its batches have all captions of a pair."""

    network: Any

    def __init__(self, network: DiffusionNetwork, decay: float) -> None:
        super().__init__()
        self.network = network
        self.average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.average.requires_grad_(False)

    def updated(self) -> None:
        """After an update of the weights: the average follows."""
        self.average.update_parameters(self.network)

    @property
    def updates(self) -> int:
        """So many the average has followed."""
        return int(self.average.n_averaged)

    @torch.no_grad()
    def caption(
        self, features: Float[Tensor, "b t n c"], *, decoding: Decoding, generator: torch.Generator
    ) -> list[Prediction]:
        """One prediction per pair, in order; noise is drawn once and is the same for all pairs."""
        estimates = self._denoise(features, decoding, generator)
        said = _said(estimates[-1], decoding.candidates)
        return [options[chosen(options)] for options in said]

    @torch.no_grad()
    def why(
        self,
        features: Float[Tensor, "b t n c"],
        predictions: Sequence[Prediction],
        *,
        decoding: Decoding,
        generator: torch.Generator,
    ) -> list[Reason]:
        """The drafts of each sentence, where its words look when it is finished, and the network's change map."""
        steps = [_said(estimate, decoding.candidates) for estimate in self._denoise(features, decoding, generator)]
        network = self.average.module
        looks = self._looks(features, predictions)
        maps = network.change_maps(features)
        reasons = []
        for pair, (said, look) in enumerate(zip(predictions, looks, strict=True)):
            best = [option.ids for option in steps[-1][pair]].index(said.ids)
            drafts = tuple(step[pair][best] for step in steps)
            reasons.append(Reason(look[: len(said.ids)], None if maps is None else maps[pair], drafts))
        return reasons

    def _looks(self, features: Float[Tensor, "b t n c"], predictions: Sequence[Prediction]) -> Float[Tensor, "b l n"]:
        """Attention of each place of the finished sentences, at level 0."""
        network: Any = self.average.module
        text: TextDiffusion = network.text
        ends = [[*said.ids, EOS, *[PAD] * text.config.places][: text.config.places] for said in predictions]
        x_0 = text.embed(torch.tensor(ends, device=features.device))
        condition = text.denoiser.read(network.memory(features))
        return text.denoiser.looks(x_0, torch.zeros_like(x_0[..., 0]), condition, x_0)

    def _denoise(
        self, features: Float[Tensor, "b t n c"], decoding: Decoding, generator: torch.Generator
    ) -> list[Estimate]:
        """Estimates of every sampling step; the candidates of a pair stand next to one another."""
        network: Any = self.average.module
        text: TextDiffusion = network.text
        shape = torch.Size((decoding.candidates, text.config.places, text.config.embedding))
        noise = draw_noise(shape, generator, features.device)
        condition = text.denoiser.read(network.memory(features))
        barred = barred_words(text.config, features.device)
        return list(text.sample(condition, noise.repeat(len(features), 1, 1), decoding.steps, barred))


def barred_words(config: TextDiffusionConfig, device: torch.device) -> Bool[Tensor, "l v"]:
    """True for what cannot stand at a place: marks, but not [EOS] and [PAD]; at the last place anything but these."""
    barred = torch.zeros(config.places, config.vocabulary, dtype=torch.bool, device=device)
    barred[:, : len(SPECIALS)] = True
    barred[-1] = True
    barred[:, [PAD, EOS]] = False
    return barred


def _said(estimate: Estimate, candidates: int) -> list[list[Prediction]]:
    """The sentences that an estimate is rounded to, per pair.

    Their probability is the product of the words' in the estimate, [EOS] included (docs/captions.md).
    """
    chances, words = estimate.logits.log_softmax(-1).max(-1)
    ended = ((words == EOS).cumsum(1) - (words == EOS).long()) > 0
    said = ended.logical_not() & (words >= len(SPECIALS))
    total = chances.masked_fill(ended, 0).sum(1).exp().clamp(max=1).tolist()
    found = [
        Prediction(tuple(row[keep].tolist()), chance) for row, keep, chance in zip(words, said, total, strict=True)
    ]
    return [found[first : first + candidates] for first in range(0, len(found), candidates)]


def chosen(options: list[Prediction]) -> int:
    """Which candidate agrees most with the others: minimum Bayes risk, by sentence BLEU-4 (Kumar and Byrne, 2004)."""
    if len({option.ids for option in options}) == 1:
        return 0
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    texts = [" ".join(map(str, option.ids)) for option in options]
    agreement = []
    for number, text in enumerate(texts):
        scorer = BleuScorer(n=4)
        for other in (*texts[:number], *texts[number + 1 :]):
            scorer += (text, [other])
        _, sentences = scorer.compute_score(option="closest", verbose=0)
        agreement.append(sum(sentences[-1]))
    return max(range(len(texts)), key=agreement.__getitem__)
