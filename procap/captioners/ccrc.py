"""CCRC: one chain that describes a change, decides whether it can be outlined, and outlines it (our formulation)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from procap.captioners import Batch, Decoding, Prediction, Reason, Reasoning, Truth
from procap.captioners.answers import KINDS, OBJECT_WORDS, PLACES, REASONING, Grammar, segmentable, taught
from procap.captioners.decoding import search, silence
from procap.datasets.corpus import NO_CHANGE
from procap.datasets.vocabulary import BOS, EOS, PAD
from procap.models.caption_decoder import Past
from procap.models.change_fusion import ChangeFusion, Fused, FusionConfig, shares
from procap.models.language import LanguageConfig, LanguageModel
from procap.models.mask_decoder import MaskConfig, MaskDecoder, mask_losses
from procap.shapes import Bool, Float, Int, Scalar, Tensor

TERMS = ("caption", "bce", "dice")
MEMORY = 100
"""Updates over which a term's mean runs."""


@dataclass(frozen=True)
class CCRCConfig:
    """Sizes of the two chains and of the language model between them."""

    fusion: FusionConfig
    language: LanguageConfig
    mask: MaskConfig
    vocabulary: int
    """v, marks included."""
    words: int
    """l, marks included."""
    places: int
    """k: the language model reads so many, those that differ most."""
    mask_weight: float = 1.0
    """Of the masks' two terms, that of the answer being 1."""
    mask_every: int = 1
    """Masks are trained in one of so many updates."""
    learns: Literal["both", "captions", "masks"] = "both"
    """``captions``: never outlines; ``masks``: writes nothing, and outlines what it sees change (ablations)."""

    def __post_init__(self) -> None:
        if self.language.words != Grammar(self.vocabulary).size:
            raise ValueError(f"the language model has {self.language.words} words, {Grammar(self.vocabulary).size} due")


class CCRC(nn.Module):
    """Change captioning and reasoning chain: fusion and language model (CCC), then token refiner and mask (CCS).

    CCC writes a reasoning line, a caption and one of <seg> and <noseg>; CCS runs only where it wrote <seg>, on CCC's
    gated attention map and the hidden state of <seg>. Training divides each term by its own running mean.
    """

    Config = CCRCConfig
    pretrained = False
    taught = True
    """Trains on what is known of the changes, too (``Batch.truth``)."""
    segments = True

    def __init__(self, config: CCRCConfig) -> None:
        super().__init__()
        self.config, self.grammar = config, Grammar(config.vocabulary)
        self.fusion = ChangeFusion(config.fusion)
        width, spoken = config.fusion.width, config.language.width
        if config.learns != "masks":
            self.projection = nn.Sequential(nn.Linear(width, spoken), nn.LayerNorm(spoken))
            sizes = config.fusion.feature_width, spoken
            self.ends = nn.ModuleList(nn.Sequential(nn.Linear(*sizes), nn.LayerNorm(spoken)) for _ in range(2))
            self.language = LanguageModel(config.language)
        if config.learns != "captions":
            hidden = spoken if config.learns == "both" else None
            self.outline = MaskDecoder(config.mask, config.fusion.grid, config.fusion.feature_width, width, hidden)
        self.means: Tensor
        self.updates: Tensor
        self.register_buffer("means", torch.ones(len(TERMS)))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @property
    def weights(self) -> tuple[float, ...]:
        """Of TERMS."""
        return 1.0, self.config.mask_weight, self.config.mask_weight

    @property
    def selected_by(self) -> str:
        """The number of validation that picks the weights."""
        return "gIoU" if self.config.learns == "masks" else "CIDEr"

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """Cross-entropy of the answer, and BCE and Dice of the masks of what trains <seg>: weight over running mean.

        Masks take most of an update's time, so that they have their turn only every ``mask_every`` updates.
        """
        truth, fused = taught(batch), self.fusion(batch.features)
        found = dict.fromkeys(TERMS, fused.tokens.sum() * 0)
        hidden = None
        if self.config.learns != "masks":
            answers = self._answers(batch)
            opening, _ = self._opening(fused)
            read, _ = self.language(torch.cat([opening, self.language.rows(answers)], dim=1))
            logits = self.language.logits(read[:, opening.shape[1] - 1 : -1])
            targets = answers.where(answers != BOS, PAD)
            found["caption"] = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
            ends = (answers == self.grammar.seg).int().argmax(1) + opening.shape[1]
            hidden = read[torch.arange(len(read), device=read.device), ends]
        if self.config.learns != "captions" and not self._captions_alone:
            rows = self._outlined(truth)
            if rows.any():
                logits = self.outline(*_of(rows, batch.features, fused, hidden))
                found |= {name: each.mean() for name, each in mask_losses(logits, truth.masks[rows].float()).items()}
        scales = zip(found.items(), self.weights, self.means, strict=True)
        return {name: weight * value / mean for (name, value), weight, mean in scales}

    def parts(self, batch: Batch, share: slice) -> dict[str, float]:
        """What each term's mean over a share has of the mean over the whole batch."""
        said, rows = (self._answers(batch) > BOS).sum(1), self._outlined(taught(batch))
        outlined = int(rows[share].sum()) / max(1, int(rows.sum()))
        return {"caption": int(said[share].sum()) / int(said.sum()), "bce": outlined, "dice": outlined}

    def readings(self, found: Mapping[str, Scalar]) -> dict[str, float]:
        """What ``loss`` found before it was balanced; of the masks, where it is their turn."""
        scales = list(zip(TERMS, self.weights, self.means, strict=True))[: 1 if self._captions_alone else None]
        return {name: (found[name] * mean / weight).item() for name, weight, mean in scales}

    @torch.no_grad()
    def remember(self, readings: Mapping[str, float]) -> None:
        """Move the running means towards an update's readings; a term that nothing trained stays as it is."""
        self.updates += 1
        rate = max(1 / int(self.updates), 1 / MEMORY)
        for place, name in enumerate(TERMS):
            if readings.get(name, 0) > 0:
                read = torch.as_tensor(readings[name], device=self.means.device)
                self.means[place].lerp_(read, rate).clamp_(min=1e-6)

    @torch.no_grad()
    def caption(
        self, features: Float[Tensor, "b 2 n c"], *, decoding: Decoding, generator: torch.Generator
    ) -> list[Prediction]:
        """One prediction per pair, in order; nothing is drawn.

        The reasoning line is written greedily, then the caption as ``search`` finds it, its [EOS] standing for either
        decision; all probabilities but that of a change are given the line.
        """
        fused = self.fusion(features)
        if self.config.learns == "masks":
            masks = self.outline(features, fused, None) > 0
            return [Prediction((), 1.0, mask if mask.any() else None) for mask in masks]
        lines, past, changed = self._reason(fused)
        found = search(self._step, past, self.config.words, decoding)
        seg, hidden, chances = self._decide(past, [prediction.ids for prediction in found])
        masks = iter(self.outline(*_of(seg, features, fused, hidden)) > 0 if seg.any() else ())
        return [
            replace(
                prediction, change_mask=next(masks) if decision else None, reasoning=line, change_probability=change,
                word_probabilities=row,
            )
            for prediction, decision, line, change, row in zip(
                found, seg.tolist(), lines, changed, chances, strict=True
            )
        ]  # fmt: skip

    @torch.no_grad()
    def why(
        self,
        features: Float[Tensor, "b 2 n c"],
        predictions: Sequence[Prediction],
        *,
        decoding: Decoding,
        generator: torch.Generator,
    ) -> list[Reason]:
        """The gated attention map, as far as something changed, and where the language model looks for each word.

        A look at the average of a picture is one at all places, by their ``shares`` of it.
        """
        fused = self.fusion(features)
        if self.config.learns == "masks":
            return [Reason(change_map=prior) for prior in fused.prior]
        opening, places = self._opening(fused)
        longest = max((len(said.ids) for said in predictions), default=0)
        rows = [self._written(said) + [PAD] * (longest - len(said.ids)) for said in predictions]
        words = self.language.rows(torch.tensor(rows, device=features.device))
        looks = self.language.looks(torch.cat([opening, words], dim=1))
        shown = places.shape[1]
        seen = looks[..., shown : shown + len(self.ends)].sum(2, keepdim=True) * shares(fused.distance)[:, None]
        seen.scatter_add_(2, places[:, None].expand(-1, looks.shape[1], -1), looks[..., :shown])
        first = opening.shape[1] + REASONING
        return [
            Reason(looks[first : first + len(said.ids)], prior * (said.change_probability or 0))
            for said, prior, looks in zip(predictions, fused.prior, seen, strict=True)
        ]

    def _written(self, said: Prediction) -> list[int]:
        """A prediction as the numbers of its answer, up to the decision."""
        if said.reasoning is None:
            raise ValueError("ccrc explains what it said itself: there is no reasoning line")
        line = said.reasoning
        rest = [self.grammar.nothing] * (OBJECT_WORDS - len(line.object_ids))
        kind, place = self.grammar.kind + KINDS.index(line.kind), self.grammar.place + PLACES.index(line.place)
        return [kind, *line.object_ids, *rest, place, BOS, *said.ids]

    @property
    def _captions_alone(self) -> bool:
        """Whether the masks' turn is another update's."""
        return int(self.updates) % self.config.mask_every != 0

    def _answers(self, batch: Batch) -> Int[Tensor, "b s"]:
        answers = self.grammar.answers(batch)
        if self.config.learns == "captions":
            answers = answers.where(answers != self.grammar.seg, self.grammar.noseg)
        return answers

    def _outlined(self, truth: Truth) -> Bool[Tensor, " b"]:
        """Pairs whose masks are trained; alone, the segmenting chain has to learn from unchanged ones, too."""
        if self.config.learns == "masks":
            return truth.masked & (segmentable(truth) | (truth.kinds == KINDS.index(NO_CHANGE)))
        return segmentable(truth)

    def _opening(self, fused: Fused) -> tuple[Float[Tensor, "b m d"], Int[Tensor, "b k"]]:
        """(what an answer begins after, the places that it shows first).

        After them stand before and after as a whole: averages of what differs, which are read sooner than places.
        """
        tokens, places = fused.most_different(self.config.places)
        ends = [end(fused.averages[:, number, None]) for number, end in enumerate(self.ends)]
        return self.language.opening(torch.cat([self.projection(tokens), *ends], dim=1)), places

    def _reason(self, fused: Fused) -> tuple[list[Reasoning], Past, list[float]]:
        """(reasoning lines, what follows reads, probabilities that anything changed)."""
        hidden, past = self.language(self._opening(fused)[0])
        last = torch.full((len(hidden),), BOS, device=hidden.device)
        line: list[Tensor] = []
        changed: list[float] = []
        for place in range(REASONING):
            logits = self.language.logits(hidden[:, -1])
            logits = logits.masked_fill(~self.grammar.allowed(place, last, logits.device), -torch.inf)
            if place == 0:
                changed = (1 - logits.softmax(1)[:, self.grammar.kind + KINDS.index(NO_CHANGE)]).tolist()
            last = logits.argmax(1)
            line.append(last)
            hidden, past = self.language(self.language.rows(last[:, None]), past)
        return [self.grammar.read(row) for row in torch.stack(line, dim=1).tolist()], past, changed

    def _step(
        self, word: Int[Tensor, " rows"], place: int, memory: Past, past: Past | None
    ) -> tuple[Float[Tensor, "rows v"], Past]:
        """The next word's logits; ``memory`` is what was read before the caption."""
        if past is None:
            beams = len(word) // len(memory[0][0])
            past = [(k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)) for k, v in memory]
        hidden, past = self.language(self.language.rows(word[:, None]), past)
        return self.grammar.caption_logits(self.language.logits(hidden[:, 0])), past

    def _decide(
        self, past: Past, captions: list[tuple[int, ...]]
    ) -> tuple[Bool[Tensor, " b"], Float[Tensor, "b d"], list[tuple[float, ...]]]:
        """After these captions: whether <seg> is likelier than <noseg>, the hidden state of <seg>, words' chances."""
        device = past[0][0].device
        longest = max(map(len, captions)) + 2
        rows = [[BOS, *ids, self.grammar.seg, *[PAD] * (longest - len(ids) - 2)] for ids in captions]
        hidden, _ = self.language(self.language.rows(torch.tensor(rows, device=device)), past)
        logits = self.language.logits(hidden[:, :-1])
        chances = silence(self.grammar.caption_logits(logits.flatten(0, 1))).exp().unflatten(0, logits.shape[:2])
        following = torch.tensor([[*row[1:]] for row in rows], device=device)
        following = following.where(following != self.grammar.seg, EOS)
        told = chances.gather(2, following[..., None])[..., 0].tolist()
        ends = torch.tensor([len(ids) for ids in captions], device=device)
        every = torch.arange(len(captions), device=device)
        decision = logits[every, ends]
        seg = decision[:, self.grammar.seg] > decision[:, self.grammar.noseg]
        if self.config.learns == "captions":
            seg = torch.zeros_like(seg)
        spoken = [tuple(row[: len(ids) + 1]) for row, ids in zip(told, captions, strict=True)]
        return seg, hidden[every, ends + 1], spoken


def _of(
    rows: Bool[Tensor, " b"], features: Tensor, fused: Fused, hidden: Tensor | None
) -> tuple[Tensor, Fused, Tensor | None]:
    """What the segmenting chain takes of these pairs."""
    return features[rows], fused.of(rows), None if hidden is None else hidden[rows]
