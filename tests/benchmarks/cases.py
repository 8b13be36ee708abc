"""Networks, pictures and steps of one configuration: the ways that are compared, on the same weights and data."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from procap.captioners.decoding import search, word_loss
from procap.models.build import build, frozen
from procap.models.caption_decoder import DecoderConfig
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig, Imagining, ProcedureEncoder
from procap.models.vqgan import VQGAN, VQGANConfig, encode_frames, frame_features
from procap.procedure.masking import Masking
from procap.procedure.objective import OURS, Draws, ProcedureBatch, Weights, draw, losses
from procap.training.optimiser import make_optimiser
from procap.training.runtime import Runtime
from tests.benchmarks import naive
from tests.small import generator, sentences
from tests.steps import preset

Step = Callable[[], Any]
WORDS, VOCABULARY = 24, 80
CLIP = 1.0


@dataclass(frozen=True)
class Sizes:
    """What scaling curves change; the defaults are the CLEVR configuration."""

    batch: int = 2
    frames: int = 4
    layers: int = 12
    grid: int = 14


class Case:
    """``reference-clevr`` with random weights, and ``sizes.batch`` pairs of random pictures."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, raw = sizes, preset("reference-clevr")
        self.optimisers: dict[int, torch.optim.Optimizer] = {}
        stage_1, stage_2, vqgan = raw["pretrain"], raw["caption"], raw["tokenizer"]
        self.vqgan_config = VQGANConfig(
            vqgan["channels"], tuple(vqgan["multipliers"]), vqgan["blocks"], vqgan["codes"], vqgan["code_width"],
            16 * sizes.grid, vqgan["precision"], vqgan["features"],
        )  # fmt: skip
        encoder = EncoderConfig(
            sizes.frames, sizes.grid, vqgan["code_width"], vqgan["codes"], VOCABULARY, WORDS, stage_1["width"],
            sizes.layers, stage_1["heads"], **stage_1["encoder"],
        )  # fmt: skip
        width = stage_2["decoder_width"]
        decoder = DecoderConfig(
            VOCABULARY, WORDS, width, width, stage_2["decoder_layers"], stage_2["decoder_heads"], 0.0,
            stage_2["decoder"],
        )  # fmt: skip
        self.config = EncoderDecoderConfig(
            encoder, decoder, stage_2["label_smoothing"], stage_2["reduction"],
            Imagining("queries", **stage_2["imagining"]), "search",
        )  # fmt: skip
        self.weights = Weights(*stage_1["weights"])
        self.masking = Masking(tuple(stage_1["masking"]), stage_1["patch_masked"], stage_1["entire"])

    @cached_property
    def encoder(self) -> ProcedureEncoder:
        return build(lambda: ProcedureEncoder(self.config.encoder), generator(0))

    @cached_property
    def network(self) -> EncoderDecoder:
        return build(lambda: EncoderDecoder(self.config), generator(1))

    @cached_property
    def vqgan(self) -> VQGAN:
        """In float32, as the naive formulation has it."""
        return frozen(build(lambda: VQGAN(self.vqgan_config), generator(2)))

    @cached_property
    def fast_vqgan(self) -> VQGAN:
        """In bfloat16, channels last."""
        copied = copy.deepcopy(self.vqgan)
        copied.config = replace(self.vqgan_config, precision="bfloat16")
        return copied.to(memory_format=torch.channels_last)

    @cached_property
    def photographs(self) -> np.ndarray:
        """As bytes (b t h w 3), as they are stored."""
        side = self.vqgan_config.image_size
        shape = (self.sizes.batch, self.sizes.frames, side, side, 3)
        return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)

    @cached_property
    def pictures(self) -> torch.Tensor:
        """The same as numbers (b t 3 h w)."""
        return (torch.from_numpy(self.photographs).float() / 255).movedim(-1, 2).contiguous()

    @cached_property
    def words(self) -> torch.Tensor:
        return sentences(self.sizes.batch, VOCABULARY, WORDS)

    @cached_property
    def batch(self) -> ProcedureBatch:
        """Features and tokens as if they were cached."""
        b, t, n, c = self.sizes.batch, self.sizes.frames, self.sizes.grid**2, self.vqgan_config.code_width
        drawn = generator(4)
        return ProcedureBatch(
            torch.randn(b, t, n, c, generator=drawn),
            torch.randint(self.vqgan_config.codes, (b, t, n), generator=drawn),
            self.words,
            torch.randn(b, 2, n, c, generator=drawn),
            torch.randint(t, (b, 2), generator=drawn),
        )

    @cached_property
    def draws(self) -> Draws:
        """Random patches for all pairs: 0.8 of the places are hidden."""
        masking = Masking((1.0, 0.0, 0.0, 0.0), self.masking.patch_masked)
        return draw(self.batch, self.sizes.grid, masking, OURS, generator(5))

    @property
    def hidden(self) -> int:
        return int((~self.draws.kept).sum())

    @property
    def prompt(self) -> int:
        """Places before the frames in stage 2."""
        return self.network.encoder.prompt(1, self.config.imagining).shape[1]

    def encoding(self, runtime: Runtime) -> Step:
        """The blocks of stage 1 alone, for three sequences of each pair."""
        encoder, batch = self.encoder, self.batch

        @torch.no_grad()
        def step() -> torch.Tensor:
            with runtime.autocast():
                caption, frames = encoder.embed_caption(batch.words), encoder.embed_frames(batch.features, None)
                start = caption.repeat(3, 1, 1)
                return encoder.transform(start, frames.repeat(3, 1, 1, 1), encoder.unseeing(start.shape[1]))

        return step

    def naive_stage_1(self) -> Step:
        def loss() -> Iterator[torch.Tensor]:
            return naive.stage_1(
                self.encoder, self.vqgan, self.pictures, self.pictures, self.words, self.draws, self.weights
            )

        return self.update(self.encoder, loss)

    def stage_1(self, runtime: Runtime) -> Step:
        def loss() -> Iterator[torch.Tensor]:
            with runtime.autocast():
                found, _ = losses(self.encoder, self.batch, self.draws, OURS)
            yield sum(getattr(self.weights, name) * value for name, value in found.items())

        return self.update(self.encoder, loss)

    def naive_stage_2(self) -> Step:
        ends = self.pictures[:, [0, -1]]
        return self.update(self.network, lambda: [naive.stage_2(self.network, self.vqgan, ends, self.words)])

    def stage_2(self, runtime: Runtime) -> Step:
        def loss() -> Iterator[torch.Tensor]:
            with runtime.autocast():
                logits = self.network(self.batch.features[:, [0, -1]], self.words, generator(6))
                total = word_loss(logits, self.words, self.config.label_smoothing, self.config.reduction)
            yield total

        return self.update(self.network, loss)

    def update(self, module: torch.nn.Module, parts: Callable[[], Iterable[torch.Tensor]]) -> Step:
        """A whole update by parts of a loss; the learning rate is so small that weights stay what they are."""
        optimiser = self.optimisers.setdefault(id(module), make_optimiser("adamw", [(module, 1e-9)], 0.0))

        def step() -> float:
            optimiser.zero_grad(set_to_none=True)
            total = 0.0
            for part in parts():
                part.backward()
                total += part.item()
            torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
            optimiser.step()
            return total

        return step

    @cached_property
    def imagined(self) -> torch.Tensor:
        shape = (self.sizes.batch, self.sizes.frames, self.sizes.grid**2, self.config.encoder.width)
        return torch.randn(*shape, generator=generator(7))

    def naive_decode(self) -> Step:
        return lambda: naive.decode(self.network, self.imagined)

    def decode(self, runtime: Runtime) -> Step:
        @torch.no_grad()
        def step() -> list[tuple[int, ...]]:
            with runtime.autocast():
                memory = self.network.projection(self.imagined.flatten(1, 2))
                read = self.network.decoder.read(memory)
                return [found.ids for found in search(self.network.decoder.step, read, WORDS)]

        return step

    def naive_caption(self) -> Step:
        return lambda: naive.caption(self.network, self.vqgan, self.pictures[:, [0, -1]])

    def caption(self, runtime: Runtime) -> Step:
        ends = self.photographs[:, [0, -1]].reshape(-1, *self.photographs.shape[2:])
        vqgan = self.fast_vqgan if runtime.precision == torch.bfloat16 else self.vqgan

        @torch.no_grad()
        def step() -> list[tuple[int, ...]]:
            seen = frame_features(vqgan, ends, runtime.device).float().unflatten(0, (-1, 2))
            with runtime.autocast():
                return [found.ids for found in search(self.network.decoder.step, self.network.read(seen), WORDS)]

        return step

    def naive_tokenise(self) -> Step:
        one = self.pictures[:, :1]
        return lambda: (naive.tokens(self.vqgan, one), naive.features(self.vqgan, one))

    def tokenise(self, precision: str) -> Step:
        vqgan = self.fast_vqgan if precision == "bfloat16" else self.vqgan
        return lambda: encode_frames(vqgan, self.photographs[:, 0], torch.device("cpu"))
