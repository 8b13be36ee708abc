"""What mediators cost beside direct attention, and how fast captions are sampled beside ProCap's decoder.

python -m tests.benchmarks.diffusion        one thread, random weights; prints the tables of docs/diffusion.md
"""

import torch

from procap.captioners import GREEDY, Decoding
from procap.captioners.decider import Decider, DeciderConfig
from procap.captioners.mct_ccdiff import MCTCCDiff, MCTCCDiffConfig
from procap.captioners.procap import ProCap
from procap.models.build import build, frozen
from procap.models.caption_decoder import DecoderConfig
from procap.models.difference_encoder import DifferenceConfig
from procap.models.encoder_decoder import EncoderDecoderConfig
from procap.models.mediator import DirectAttention, MediatorAttention
from procap.models.procedure_encoder import EncoderConfig
from procap.models.text_diffusion import TextDiffusionConfig
from tests.benchmarks.measure import alternate, median
from tests.small import generator

WIDTH, HEADS, PAIRS = 96, 4, 16
TOKENS = (196, 392, 784, 1568)
LENGTHS = (16, 64)
MEDIATORS = (4, 16)
STEPS = (1, 5, 10, 20, 50)
VOCABULARY, WORDS = 77, 17


def main() -> None:
    torch.set_num_threads(1)
    mediators()
    speed()


@torch.no_grad()
def mediators() -> None:
    """CPU milliseconds of one look at n tokens whose keys and values are there, per pair."""
    print(f"attention, width {WIDTH}, {HEADS} heads, {PAIRS} pairs at once, CPU ms per pair\n")
    print("| l | attention | " + " | ".join(f"n {n}" for n in TOKENS) + " | us per token |\n" + "| --- " * 7 + "|")
    for length in LENGTHS:
        x = torch.randn(PAIRS, length, WIDTH, generator=generator())
        ways = {"direct": DirectAttention(WIDTH, HEADS, WIDTH)}
        ways |= {f"{m} mediators": MediatorAttention(WIDTH, HEADS, WIDTH, m) for m in MEDIATORS}
        calls = {}
        for n in TOKENS:
            memory = torch.randn(PAIRS, n, WIDTH, generator=generator())
            for name, attention in ways.items():
                calls[f"{name} {n}"] = _look(attention, x, attention.keys_values(memory))
        found = {name: 1000 * median(several).cpu / PAIRS for name, several in alternate(calls, 7).items()}
        for name in ways:
            took = [found[f"{name} {n}"] for n in TOKENS]
            slope = 1000 * (took[-1] - took[0]) / (TOKENS[-1] - TOKENS[0])
            told = " | ".join(f"{one:.3f}" for one in [*took, slope])
            print(f"| {length} | {name} | {told} |", flush=True)


def _look(attention: DirectAttention | MediatorAttention, x: torch.Tensor, read: tuple[torch.Tensor, torch.Tensor]):
    return lambda: [attention.attend(x, *read) for _ in range(4)]


def speed(pairs: int = 32) -> None:
    """Captions per CPU second, from cached features, at the sizes of the default run."""
    encoder = EncoderConfig(4, 8, 76, 256, VOCABULARY, WORDS, WIDTH, 2, HEADS, start="comparison")
    procap = ProCap(EncoderDecoderConfig(encoder, DecoderConfig(VOCABULARY, WORDS, WIDTH, WIDTH, 2, HEADS, 0.0), 0.0))
    captioners = {"procap": procap, "mct_ccdiff": _mct_ccdiff(), "decider": _decider()}
    features = torch.randn(pairs, 2, 64, 76, generator=generator())
    calls = {"procap, greedy": _caption(captioners["procap"], features, GREEDY)}
    for name in ("mct_ccdiff", "decider"):
        for steps in STEPS:
            calls[f"{name}, {steps} steps"] = _caption(captioners[name], features, Decoding(steps=steps))
        calls[f"{name}, 20 steps, 5 candidates"] = _caption(captioners[name], features, Decoding(candidates=5))
    found = {name: pairs / median(several).cpu for name, several in alternate(calls, 3).items()}
    rows = "| way | captions/s | of procap's |\n| --- | --- | --- |"
    print(f"\ncaptions per CPU second, {pairs} pairs at once\n\n{rows}")
    for name, rate in found.items():
        print(f"| {name} | {rate:.0f} | {rate / found['procap, greedy']:.2f} |")


def _caption(captioner, features: torch.Tensor, decoding: Decoding):
    ready = frozen(captioner)
    return lambda: ready.caption(features, decoding=decoding, generator=generator())


def _text(memory_width: int, mediators: int) -> TextDiffusionConfig:
    return TextDiffusionConfig(VOCABULARY, WORDS, memory_width, 16, WIDTH, 3, HEADS, mediators)


def _mct_ccdiff() -> MCTCCDiff:
    config = MCTCCDiffConfig(DifferenceConfig(8, 76, WIDTH, 2, HEADS, WIDTH), _text(WIDTH, 8), 2, 0.99, 0.1, 0.5)
    return build(lambda: MCTCCDiff(config), generator())


def _decider() -> Decider:
    config = DeciderConfig(
        DifferenceConfig(8, 76, WIDTH, 2, HEADS, 96), _text(48, 0), 2, 0.99, 0.001, 400, 0.1, 0.1, 8, 2, 0.1, 1.0, 1.0
    )
    return build(lambda: Decider(config), generator())


if __name__ == "__main__":
    main()
