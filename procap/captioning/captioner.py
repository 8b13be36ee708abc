"""A trained captioner that takes pictures as people have them, and says how sure it is and why."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from os import PathLike
from typing import overload

import numpy as np
import torch

from procap.captioners import GREEDY, Decoding, Prediction, Reason
from procap.captioners.explanation import Draft, Explanation, attention, evidence
from procap.captioners.scoring import log_chance_of_any, log_chances, padded
from procap.captioning.addresses import find_bundle
from procap.captioning.pairs import Picture, read_pair
from procap.datasets.images import resize
from procap.datasets.vocabulary import SPECIALS, UNK
from procap.models.encoder_decoder import EncoderDecoder
from procap.shapes import Bool, Float, Tensor, UInt8, Words
from procap.training.bundle import Bundle

LONGEST_SIDE = 512
"""Of maps, in pixels; those of larger pictures are reduced in proportion."""


@dataclass(frozen=True)
class About:
    """Which captioner this is."""

    address: str
    version: str | None
    """In its registry."""
    digest: str
    """sha256 of the bundle's manifest."""
    captioner: str
    """A name in ``procap.captioners.CAPTIONERS``."""
    image_size: int
    """Side, in pixels, to which pictures are resized, as in training."""
    card: str | None
    """The model card of a registered version, as Markdown."""


@dataclass(frozen=True)
class ReasoningLine:
    """What a captioner says of the change before it describes it."""

    change: str
    """A change type, none or unknown."""
    object: str
    """What changed; empty where nothing did, [UNK] where that is not known."""
    where: str
    """A cell of a 3 x 3 grid, such as "top left"; nowhere, or unknown."""


@dataclass(frozen=True)
class Caption:
    """What a captioner says of one pair. All probabilities are in [0, 1]."""

    text: str
    words: tuple[str, ...]
    word_probabilities: tuple[float, ...]
    """Of each word after those before it. Empty for captioners that do not write word by word."""
    end_probability: float | None
    """That the sentence ends where it does ([EOS])."""
    probability: float
    """Of the whole sentence: the product of its words' probabilities and of its end's."""
    change_probability: float | None
    """1 - the probability of saying, in any of the training captions' ways, that nothing changed; of captioners that
    reason first, of reasoning so.

    None where the training captions never say so, or the bundle does not tell."""
    change_mask: Bool[np.ndarray, "h w"] | None = None
    """In the pictures' size; only of captioners that segment, None where they see nothing that can be outlined."""
    explanation: Explanation | None = None
    reasoning: ReasoningLine | None = None
    """Only of captioners that reason first."""


def load_captioner(address: str | PathLike[str], device: str = "auto") -> "PictureCaptioner":
    """Open a bundle's folder, ``models:/<name>@<alias>``, ``models:/<name>/<version>`` or ``runs:/<run>/<model>``.

    ``device`` is auto (a GPU where there is one), cpu or cuda. Raises BadInput for what is no bundle.
    """
    from procap.checkpoints.midpoints import load_midpoint
    from procap.training.bundle import bundle_digest, load_bundle
    from procap.training.runtime import choose_device

    fetched = find_bundle(str(address))
    bundle = load_bundle(fetched.folder, choose_device(device, 0), load_midpoint)
    size = bundle.vqgan.config.image_size
    digest = bundle_digest(fetched.folder)
    return PictureCaptioner(
        About(str(address), fetched.version, digest, bundle.name, size, fetched.card), bundle
    )


@dataclass(frozen=True)
class PictureCaptioner:
    """Captions pairs of pictures. Safe to use from several threads."""

    about: About
    bundle: Bundle

    @overload
    def caption(
        self, before: Sequence[Picture], after: Sequence[Picture], *, explain: bool = False, decoding: Decoding = GREEDY
    ) -> list[Caption]: ...

    @overload
    def caption(
        self, before: Picture, after: Picture, *, explain: bool = False, decoding: Decoding = GREEDY
    ) -> Caption: ...

    def caption(self, before, after, *, explain=False, decoding=GREEDY):
        """Caption a pair, or lists of as many pictures before as after: paths, bytes, PIL images or arrays.

        Pictures may have any size, the two of a pair the same one; they are resized as in training, aspect ignored.
        Raises BadInput for anything else, before anything is computed.
        """
        if isinstance(before, list | tuple) != isinstance(after, list | tuple):
            raise ValueError("before and after are one picture each, or a list each")
        if not isinstance(before, list | tuple):
            return self.caption([before], [after], explain=explain, decoding=decoding)[0]
        if len(before) != len(after):
            raise ValueError(f"{len(before)} pictures before, {len(after)} after")
        one = len(before) == 1
        pairs = [
            read_pair(*ends, "" if one else f"pair {number}")
            for number, ends in enumerate(zip(before, after, strict=True))
        ]
        return self._caption(pairs, explain, decoding) if pairs else []

    def stream(
        self,
        pairs: Iterable[tuple[Picture, Picture]],
        batch: int = 16,
        explain: bool = False,
        decoding: Decoding = GREEDY,
    ) -> Iterator[Caption]:
        """Caption any number of pairs in order, ``batch`` at a time; pictures are read when their turn comes."""
        numbers, rest = count(), iter(pairs)
        while some := list(islice(rest, batch)):
            read = [read_pair(*ends, f"pair {next(numbers)}") for ends in some]
            yield from self._caption(read, explain, decoding)

    @torch.no_grad()
    def _caption(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], explain: bool, decoding: Decoding
    ) -> list[Caption]:
        bundle, side = self.bundle, self.about.image_size
        ends = tuple(np.stack([resize(picture, side) for picture in column]) for column in zip(*pairs, strict=True))
        features = bundle.features(*ends)
        predictions = bundle.predict(features, decoding=decoding)
        sizes = [before.shape[:2] for before, _ in pairs]
        scores = self._scores(features, predictions)
        changes = [change for *_, change in scores]
        reasons: Sequence[Explanation | None] = [None] * len(pairs)
        if explain:
            reasons = self._reasons(features, ends, predictions, changes, sizes, decoding)
        captions = []
        for prediction, (words, end, change), reason, size in zip(predictions, scores, reasons, sizes, strict=True):
            mask = prediction.change_mask
            captions.append(
                Caption(
                    bundle.vocabulary.decode(prediction.ids),
                    tuple(bundle.vocabulary.decode([number]) for number in prediction.ids),
                    words,
                    end,
                    prediction.probability,
                    change,
                    None if mask is None else _enlarged_mask(mask.cpu().numpy(), size),
                    reason,
                    self._line(prediction),
                )
            )
        return captions

    def _line(self, prediction: Prediction) -> ReasoningLine | None:
        said = prediction.reasoning
        if said is None:
            return None
        return ReasoningLine(said.kind, self.bundle.vocabulary.decode(said.object_ids), said.place)

    @property
    def _network(self) -> EncoderDecoder | None:
        """What writes word by word, where the captioner has such a thing."""
        network = getattr(self.bundle.captioner, "network", None)
        return network if isinstance(network, EncoderDecoder) else None

    @cached_property
    def _unchanged(self) -> Words | None:
        """The sentences that say that nothing changed."""
        known = self.bundle.provenance.get("no_change")
        if not known:
            return None
        encoded = [self.bundle.vocabulary.encode(text, cut=True) for text in known]
        ids = {tuple(row[row >= len(SPECIALS)].tolist()) for row in encoded if UNK not in row}
        return padded(sorted(ids), self.bundle.device) if ids else None

    def _scores(
        self, features: Float[Tensor, "b t n c"], predictions: Sequence[Prediction]
    ) -> list[tuple[tuple[float, ...], float | None, float | None]]:
        """Per pair: the words' probabilities, the end's, and that of a change."""
        network = self._network
        if network is None:
            return [
                (said.word_probabilities[:-1], (said.word_probabilities or (None,))[-1], said.change_probability)
                for said in predictions
            ]
        sentences = [said.ids for said in predictions]
        memory = network.read(features)
        chances = log_chances(network, padded(sentences, features.device), memory).exp().tolist()
        changes: list[float | None] = [None] * len(sentences)
        if self._unchanged is not None:
            changes = (-log_chance_of_any(network, self._unchanged, memory).clamp(max=0).expm1()).tolist()
        return [
            (tuple(row[: len(ids)]), row[len(ids)], change)
            for row, ids, change in zip(chances, sentences, changes, strict=True)
        ]

    def _reasons(
        self,
        features: Float[Tensor, "b t n c"],
        ends: tuple[np.ndarray, ...],
        predictions: Sequence[Prediction],
        changes: Sequence[float | None],
        sizes: Sequence[tuple[int, int]],
        decoding: Decoding,
    ) -> Sequence[Explanation | None]:
        if self._network is not None:
            return self._network_reasons(features, ends, [said.ids for said in predictions], changes, sizes)
        reasons = self.bundle.reasons(features, predictions, decoding)
        if reasons is None:
            return [None] * len(predictions)
        return [
            self._told(reason, np.stack([before, after]), size)
            for reason, before, after, size in zip(reasons, *ends, sizes, strict=True)
        ]

    def _network_reasons(
        self,
        features: Float[Tensor, "b t n c"],
        ends: tuple[np.ndarray, ...],
        sentences: list[tuple[int, ...]],
        changes: Sequence[float | None],
        sizes: Sequence[tuple[int, int]],
    ) -> list[Explanation]:
        """Of a captioner that writes word by word."""
        network = self._network
        assert network is not None
        looks = attention(network, features, sentences)
        speaks = evidence(network, features, sentences).relu()
        imagined = self.bundle.imagined(features)
        reasons: list[Explanation] = []
        for row, (ids, change, size) in enumerate(zip(sentences, changes, sizes, strict=True)):
            seen = looks[row, : len(ids)]
            maps = enlarged(seen[:, [0, -1]].flatten(0, 1), size).reshape(len(ids), 2, *_reduced(size))
            maps /= maps.max(axis=(1, 2, 3), keepdims=True, initial=1e-12)
            heat = enlarged(speaks[row][None], size)[0]
            heat *= (1.0 if change is None else change) / max(heat.max(), 1e-12)
            between = [] if imagined is None else list(imagined[row])
            frames = np.stack([ends[0][row], *between, ends[1][row]])
            reasons.append(Explanation(maps[:, 0], maps[:, 1], seen.sum(-1).cpu().numpy(), heat, frames))
        return reasons

    def _told(
        self, reason: Reason, frames: UInt8[np.ndarray, "t side side 3"], size: tuple[int, int]
    ) -> Explanation:
        """What a captioner tells by itself, as it is shown."""
        looks = None
        if reason.attention is not None:
            looks = enlarged(reason.attention, size)
            looks /= looks.max(axis=(1, 2), keepdims=True, initial=1e-12)
        change = None if reason.change_map is None else enlarged(reason.change_map[None], size)[0].clip(0, 1)
        drafts = tuple(Draft(self.bundle.vocabulary.decode(said.ids), said.probability) for said in reason.drafts)
        return Explanation(looks, looks, None, change, frames, drafts)


def _reduced(size: tuple[int, int]) -> tuple[int, int]:
    """A picture's (height, width), or as much less as maps are."""
    shrink = min(1.0, LONGEST_SIDE / max(size))
    return max(1, round(size[0] * shrink)), max(1, round(size[1] * shrink))


def enlarged(maps: Float[Tensor, "m n"], size: tuple[int, int]) -> Float[np.ndarray, "m h w"]:
    """Values at the places of a square grid, bilinearly spread over a picture of (height, width)."""
    grid = round(maps.shape[1] ** 0.5)
    square = maps.reshape(-1, 1, grid, grid).float()
    wide = torch.nn.functional.interpolate(square, size=_reduced(size), mode="bilinear", align_corners=False)
    return wide[:, 0].cpu().numpy()


def _enlarged_mask(mask: Bool[np.ndarray, "h w"], size: tuple[int, int]) -> Bool[np.ndarray, "h2 w2"]:
    from PIL import Image

    return np.array(Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST), bool)


__all__ = ("About", "Caption", "Explanation", "PictureCaptioner", "ReasoningLine", "load_captioner")
