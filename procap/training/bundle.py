"""A trained captioner as one folder that needs nothing else: weights, sizes, words, where it came from.

No pickle: safetensors and JSON, and ``manifest.json`` with the sha256 of every file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from procap.captioners import GREEDY, Decoding, Prediction, Reason, captioner_class
from procap.datasets.images import resize
from procap.datasets.pictures import to_bytes, to_numbers
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.files import atomic_folder, file_digest, write_json
from procap.models.build import frozen
from procap.models.vqgan import VQGAN, frame_features
from procap.procedure.interpolation import Midpoint, interpolate
from procap.shapes import Bool, Float, UInt8
from procap.training.checkpoint import load_tensors, save_tensors
from procap.training.restore import from_json, read_vqgan

FORMAT = 2
FILES = ("captioner.safetensors", "config.json", "provenance.json", "vocabulary.json", "vqgan.safetensors")
"""Of a bundle, besides its manifest."""


@dataclass(frozen=True)
class Sentence:
    """One sentence about one pair."""

    text: str
    probability: float
    """Of the whole sentence given the pair, in [0, 1]."""
    change_mask: Bool[torch.Tensor, "h w"] | None = field(default=None, compare=False)
    """True where something changed; None where the captioner outlines nothing."""


@dataclass(frozen=True)
class Shown:
    """Interpolated frames that a captioner sees between the two pictures (``caption.between: frames``)."""

    method: str
    frames: int
    """l, as many as are made."""
    numbers: tuple[int, ...]
    """Those of 1 to l that it sees."""


LoadMidpoint = Callable[[str, torch.device], Midpoint]
"""``procap.checkpoints.midpoints.load_midpoint``."""

Between = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
"""Pictures before and after (uint8, b h w 3) in, frames between them out, in time order."""


def nothing_between(before: np.ndarray, after: np.ndarray) -> list[np.ndarray]:
    """The two pictures are all that the captioner sees."""
    return []


def frames_between(shown: Shown, load_midpoint: LoadMidpoint, device: torch.device) -> Between:
    """A function that makes the frames that are shown, as the step ``interpolate`` does."""
    midpoint = load_midpoint(shown.method, device)

    def between(before: UInt8[np.ndarray, "b h w 3"], after: UInt8[np.ndarray, "b h w 3"]) -> list[np.ndarray]:
        first, last = (to_numbers(pictures).to(device) for pictures in (before, after))
        made = to_bytes(interpolate(first, last, midpoint, shown.frames))
        return [made[:, number - 1] for number in shown.numbers]

    return between


def encode_pairs(
    vqgan: VQGAN,
    before: UInt8[np.ndarray, "b h w 3"],
    after: UInt8[np.ndarray, "b h w 3"],
    between: Between,
    device: torch.device,
) -> Float[torch.Tensor, "b t n c"]:
    """Frozen features of before, what is ``between``, and after; pictures have the VQGAN's size."""
    pictures = [before, *between(before, after), after]
    features = frame_features(vqgan, np.concatenate(pictures), device)
    return torch.stack(features.float().chunk(len(pictures)), dim=1)


@dataclass(frozen=True)
class Bundle:
    """A captioner that takes pictures: resizes them as in training, encodes them once, writes sentences."""

    name: str
    captioner: nn.Module
    vqgan: VQGAN
    vocabulary: Vocabulary
    provenance: Mapping[str, Any]
    between: Between = nothing_between

    @property
    def device(self) -> torch.device:
        return next(self.captioner.parameters()).device

    def features(
        self, before: UInt8[np.ndarray, "b h w 3"], after: UInt8[np.ndarray, "b h w 3"]
    ) -> Float[torch.Tensor, "b t n c"]:
        """What the captioner sees of pictures of any one size."""
        side = self.vqgan.config.image_size
        first, last = (np.stack([resize(picture, side) for picture in pictures]) for pictures in (before, after))
        return encode_pairs(self.vqgan, first, last, self.between, self.device)

    def caption(
        self,
        before: UInt8[np.ndarray, "b h w 3"],
        after: UInt8[np.ndarray, "b h w 3"],
        *,
        decoding: Decoding = GREEDY,
        generator: torch.Generator | None = None,
    ) -> list[Sentence]:
        """One sentence per pair, in order."""
        said = self.predict(self.features(before, after), decoding=decoding, generator=generator)
        return [Sentence(self.vocabulary.decode(p.ids), p.probability, p.change_mask) for p in said]

    def predict(
        self,
        features: Float[torch.Tensor, "b t n c"],
        *,
        decoding: Decoding = GREEDY,
        generator: torch.Generator | None = None,
    ) -> list[Prediction]:
        """What the captioner says of pairs that were encoded, as word numbers.

        Without a generator always the same of a pair, whatever pairs are with it.
        """
        generator = generator or said_generator()
        return self.captioner.caption(features, decoding=decoding, generator=generator)  # type: ignore[operator]

    def reasons(
        self, features: Float[torch.Tensor, "b t n c"], predictions: Sequence[Prediction], decoding: Decoding = GREEDY
    ) -> list[Reason] | None:
        """How it came to what ``predict`` gave without a generator; None where it does not tell by itself."""
        if not hasattr(self.captioner, "why"):
            return None
        return self.captioner.why(features, predictions, decoding=decoding, generator=said_generator())  # type: ignore[operator]

    def imagine(
        self, before: UInt8[np.ndarray, "b h w 3"], after: UInt8[np.ndarray, "b h w 3"]
    ) -> UInt8[np.ndarray, "b k h2 w2 3"] | None:
        """The frames that the captioner imagines, in the size that it works with; None where it imagines none."""
        return self.imagined(self.features(before, after))

    @torch.no_grad()
    def imagined(self, features: Float[torch.Tensor, "b t n c"]) -> UInt8[np.ndarray, "b k h2 w2 3"] | None:
        """``imagine`` for pairs that were encoded."""
        if not hasattr(self.captioner, "imagine_tokens"):
            return None
        tokens = self.captioner.imagine_tokens(features).argmax(-1)
        b, k, _ = tokens.shape
        if k == 0:
            return None
        pictures = self.vqgan.decode(tokens.flatten(0, 1))
        out = (pictures * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return out.reshape(b, k, *out.shape[1:])


def said_generator() -> torch.Generator:
    """What sentences are sampled from where nobody says otherwise."""
    return torch.Generator().manual_seed(0)


def write_bundle(
    folder: Path,
    name: str,
    captioner: nn.Module,
    config: Any,
    vqgan: VQGAN,
    vocabulary: Vocabulary,
    provenance: Mapping[str, Any],
    shown: Shown | None = None,
) -> None:
    """Write a bundle; it is there whole or not at all."""
    with atomic_folder(folder) as fresh:
        save_tensors(fresh / "captioner.safetensors", dict(captioner.state_dict()))
        save_tensors(fresh / "vqgan.safetensors", dict(vqgan.state_dict()))
        write_json(fresh / "vocabulary.json", vocabulary.to_json())
        write_json(fresh / "provenance.json", provenance)
        settings = {
            "format": FORMAT,
            "captioner": name,
            "config": asdict(config),
            "vqgan": asdict(vqgan.config),
            "shown": asdict(shown) if shown else None,
        }
        write_json(fresh / "config.json", settings)
        write_json(fresh / "manifest.json", {file: file_digest(fresh / file) for file in FILES})


def bundle_digest(folder: Path) -> str:
    """sha256 of the manifest: one name for everything in the bundle."""
    return file_digest(folder / "manifest.json")


def load_bundle(
    folder: Path, device: str | torch.device = "cpu", load_midpoint: LoadMidpoint | None = None
) -> Bundle:
    """Open a bundle after checking every file against its manifest.

    ``load_midpoint`` is for captioners that see interpolated frames. Raises BadInput for a missing, changed or
    foreign file.
    """
    check_manifest(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if settings["format"] != FORMAT:
        raise BadInput(
            f"a bundle of format {settings['format']}",
            where=str(folder / "config.json"),
            expected=f"format {FORMAT}",
            do="train it again with this version, or use the version that wrote it",
        )
    kind = captioner_class(settings["captioner"])
    captioner = kind(from_json(kind.Config, settings["config"], str(folder / "config.json")))
    try:
        captioner.load_state_dict(load_tensors(folder / "captioner.safetensors")[0])
    except RuntimeError as error:  # its message names the weights
        raise BadInput(
            f"weights of another version of {settings['captioner']}: {' '.join(str(error).split())[:300]}",
            where=str(folder / "captioner.safetensors"),
            expected="those that this version has",
            do="train it again with this version, or use the version that wrote it",
        ) from None
    vqgan = read_vqgan(folder / "vqgan.safetensors", settings["vqgan"])
    between: Between = nothing_between
    if settings["shown"] is not None:
        if load_midpoint is None:
            raise ValueError("this captioner sees interpolated frames: load_bundle needs load_midpoint")
        between = frames_between(from_json(Shown, settings["shown"]), load_midpoint, torch.device(device))
    return Bundle(
        settings["captioner"],
        frozen(captioner).to(device),
        vqgan.to(device),
        Vocabulary.from_json(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))),
        json.loads((folder / "provenance.json").read_text(encoding="utf-8")),
        between,
    )


def check_manifest(folder: Path) -> None:
    """Raises BadInput for a folder that is no bundle, or whose files are not what was written."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        raise BadInput(
            "not a bundle",
            where=str(folder),
            expected="a folder with manifest.json, config.json and *.safetensors",
            do="name the folder data/caption/<captioner>/bundle, or run `dvc repro caption`",
        )
    for file, digest in _digests(manifest).items():
        path = folder / file
        found = file_digest(path) if path.exists() else "no file"
        if found != digest:
            raise BadInput(
                "the bundle's content is not what was written",
                where=str(path),
                expected=f"sha256 {digest}, found {found}",
                do="copy the bundle again, or `dvc checkout` it",
            )


def _digests(manifest: Path) -> dict[str, str]:
    try:
        digests = json.loads(manifest.read_text(encoding="utf-8"))
    except ValueError:
        digests = None
    if not isinstance(digests, dict) or set(digests) != set(FILES):
        raise BadInput(
            "the bundle's manifest is not what was written",
            where=str(manifest),
            expected=f"JSON with the sha256 of {', '.join(FILES)}",
            do="copy the bundle again, or `dvc checkout` it",
        )
    return digests
