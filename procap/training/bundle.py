"""A trained captioner as one folder that needs nothing else: weights, sizes, words, where it came from.

No pickle: safetensors and JSON, and ``manifest.json`` with the sha256 of every file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from procap.captioners import captioner_class
from procap.datasets.images import resize
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.files import atomic_folder, file_digest, write_json
from procap.models.build import frozen
from procap.models.vqgan import VQGAN, VQGANConfig, frame_features
from procap.shapes import UInt8
from procap.training.checkpoint import load_tensors, save_tensors

FORMAT = 1
FILES = ("captioner.safetensors", "config.json", "provenance.json", "vocabulary.json", "vqgan.safetensors")
"""Of a bundle, besides its manifest."""


@dataclass(frozen=True)
class Caption:
    """One sentence about one pair."""

    text: str
    probability: float
    """Of the whole sentence given the pair, in [0, 1]."""


@dataclass(frozen=True)
class Bundle:
    """A captioner that takes pictures: resizes them as in training, encodes them once, writes sentences."""

    name: str
    captioner: nn.Module
    vqgan: VQGAN
    vocabulary: Vocabulary
    provenance: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        return next(self.captioner.parameters()).device

    def features(self, before: UInt8[np.ndarray, "b h w 3"], after: UInt8[np.ndarray, "b h w 3"]) -> torch.Tensor:
        """Frozen features (b, 2, n, c) of pictures of any one size."""
        side = self.vqgan.config.image_size
        ends = np.stack([resize(picture, side) for picture in (*before, *after)])
        features = frame_features(self.vqgan, ends, self.device)
        return torch.stack(features.float().chunk(2), dim=1)

    def caption(
        self,
        before: UInt8[np.ndarray, "b h w 3"],
        after: UInt8[np.ndarray, "b h w 3"],
        *,
        beams: int = 1,
        generator: torch.Generator | None = None,
    ) -> list[Caption]:
        """One sentence per pair, in order."""
        generator = generator or torch.Generator().manual_seed(0)
        said = self.captioner.caption(self.features(before, after), beams=beams, generator=generator)  # type: ignore[operator]
        return [Caption(self.vocabulary.decode(p.ids), p.probability) for p in said]

    @torch.no_grad()
    def imagine(
        self, before: UInt8[np.ndarray, "b h w 3"], after: UInt8[np.ndarray, "b h w 3"]
    ) -> UInt8[np.ndarray, "b k h2 w2 3"] | None:
        """The frames that the captioner imagines, in the size that it works with; None where it imagines none."""
        if not hasattr(self.captioner, "imagine_tokens"):
            return None
        tokens = self.captioner.imagine_tokens(self.features(before, after)).argmax(-1)
        b, k, _ = tokens.shape
        if k == 0:
            return None
        pictures = self.vqgan.decode(tokens.flatten(0, 1))
        out = (pictures * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return out.reshape(b, k, *out.shape[1:])


def write_bundle(
    folder: Path,
    name: str,
    captioner: nn.Module,
    config: Any,
    vqgan: VQGAN,
    vocabulary: Vocabulary,
    provenance: Mapping[str, Any],
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
        }
        write_json(fresh / "config.json", settings)
        write_json(fresh / "manifest.json", {file: file_digest(fresh / file) for file in FILES})


def bundle_digest(folder: Path) -> str:
    """sha256 of the manifest: one name for everything in the bundle."""
    return file_digest(folder / "manifest.json")


def load_bundle(folder: Path, device: str | torch.device = "cpu") -> Bundle:
    """Open a bundle after checking every file against its manifest.

    Raises BadInput for a missing, changed or foreign file.
    """
    _check_manifest(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if settings["format"] != FORMAT:
        raise BadInput(
            f"a bundle of format {settings['format']}",
            where=str(folder / "config.json"),
            expected=f"format {FORMAT}",
            do="train it again with this version, or use the version that wrote it",
        )
    kind = captioner_class(settings["captioner"])
    captioner = kind(from_json(kind.Config, settings["config"]))
    captioner.load_state_dict(load_tensors(folder / "captioner.safetensors")[0])
    vqgan = read_vqgan(folder / "vqgan.safetensors", settings["vqgan"])
    return Bundle(
        settings["captioner"],
        frozen(captioner).to(device),
        vqgan.to(device),
        Vocabulary.from_json(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))),
        json.loads((folder / "provenance.json").read_text(encoding="utf-8")),
    )


def _check_manifest(folder: Path) -> None:
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


def read_vqgan(weights: Path, config: Mapping[str, Any]) -> VQGAN:
    """A frozen VQGAN from its weights and sizes."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        vqgan = VQGAN(from_json(VQGANConfig, config))
    vqgan.load_state_dict(load_tensors(weights)[0])
    return frozen(vqgan).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def from_json(kind: Any, values: Mapping[str, Any]) -> Any:
    """Undo ``asdict`` for nested frozen dataclasses; lists become tuples."""
    made = {}
    for item in fields(kind):
        value = values[item.name]
        if is_dataclass(item.type):
            value = from_json(item.type, value)
        made[item.name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)
