"""The choices in which the paper, the reference code and we differ: each does what it says, alone and together."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from procap.captioners import GREEDY, Batch, Decoding
from procap.captioners.decoding import write_captions
from procap.captioners.procap import ProCap
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from procap.models import procedure_encoder
from procap.models.build import build
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.layers import Attention, Blocked
from procap.models.procedure_encoder import Imagining, ProcedureEncoder
from tests.small import decoder_config, encoder_config, features, generator, sentences, shaken, small_encoder

REFERENCE = {
    "start": "usual", "activation": "quick_gelu", "reserved": True, "special_positions": True, "csy_sees": "frames",
    "pads": "placed",
}  # fmt: skip
PAPER = {"start": "usual", "activation": "quick_gelu", "csy_sees": "frames", "pads": "placed", "queries": "each"}
SHIFTED = Imagining(prompt="without_align", prompt_rows="first", mask_rows="shifted")
FULL = Imagining(prompt="full")


def embedded(encoder: ProcedureEncoder, b: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.rand(b, 4, 16, generator=generator(1)) < 0.5
    return encoder.embed_caption(sentences(b)), encoder.embed_frames(features(b, 4), kept)


def naive(encoder: ProcedureEncoder, x: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
    """The blocks place by place, with a matrix of scores and -inf where ``blocked``; quick GELU."""
    state, width = dict(encoder.named_parameters()), x.shape[-1]
    heads, part = encoder.config.heads, width // encoder.config.heads

    def linear(name: str, y: torch.Tensor) -> torch.Tensor:
        return y @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name: str, y: torch.Tensor) -> torch.Tensor:
        centred = y - y.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / spread * state[f"{name}.weight"] + state[f"{name}.bias"]

    for i in range(encoder.config.layers):
        block = f"blocks.{i}."
        y = norm(f"{block}norm_attention", x)
        queries = linear(f"{block}attention.query", y)
        keys, values = linear(f"{block}attention.key_value", y).split(width, dim=-1)
        out = []
        for head in range(heads):
            at = slice(head * part, (head + 1) * part)
            scores = queries[..., at] @ keys[..., at].mT / math.sqrt(part)
            out.append(scores.masked_fill(blocked, -torch.inf).softmax(-1) @ values[..., at])
        x = x + linear(f"{block}attention.out", torch.cat(out, -1))
        y = linear(f"{block}feed.0", norm(f"{block}norm_feed", x))
        x = x + linear(f"{block}feed.2", y / (1 + torch.exp(-1.702 * y)))
    return x


@pytest.mark.parametrize("reserved", [False, True])
def test_states_and_gradients_equal_a_formulation_with_a_whole_mask(reserved):
    encoder = small_encoder(**(REFERENCE | {"reserved": reserved}))
    caption, frames = (x.detach().double() for x in embedded(encoder))
    encoder, x = encoder.double(), torch.cat([caption, frames.flatten(1, 2)], 1)
    blocked = torch.zeros(8 + 64 + 1 + reserved, 8 + 64 + 1 + reserved, dtype=torch.bool)
    for row in range(8, 9 + reserved):
        blocked[row, :row] = True
    weights = [weight for name, weight in encoder.named_parameters() if name.startswith("blocks")]
    draw, found = torch.randn(2, len(blocked), 48, generator=generator(4), dtype=torch.float64), []
    for out in (encoder.transform(caption, frames, encoder.unseeing(9 + reserved)), naive(encoder, x, blocked)):
        found.append([out, *torch.autograd.grad((out * draw).sum(), weights)])
    for got, expected in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-9, atol=1e-10)


def test_blocked_rows_see_what_they_may_and_others_see_all():
    attention, x = shaken(Attention(12, 3)), torch.randn(2, 6, 12, generator=generator())
    visible = torch.rand(2, 6, generator=generator(3)) < 0.5
    visible[:, 0] = True
    whole = torch.ones(6, 6, dtype=torch.bool)
    whole[2:4] = visible
    queries, (keys, values) = attention.split(attention.query(x)), attention.keys_values(x)
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=whole)
    expected = attention.out(expected.transpose(1, 2).flatten(2))
    got = attention.attend(x, keys, values, blocked=Blocked(2, visible))
    assert torch.allclose(got, expected, atol=1e-6)
    assert not torch.allclose(attention.attend(x, keys, values), expected, atol=1e-3)


def test_the_sequence_of_the_reference_is_align_caption_reserved_csy_frames():
    encoder, words = small_encoder(**REFERENCE), sentences(2)
    start = encoder.embed_caption(words)
    assert start.shape[1] == 1 + 7 + 2
    vectors = torch.stack([encoder.align, encoder.reserved, encoder.csy]) + encoder.special_positions
    assert torch.equal(start[:, [0, 8, 9]], vectors.expand(2, -1, -1))
    for row, place in itertools.product(range(2), range(7)):
        word = int(words[row, place])
        vector = encoder.word_embedding.weight[20 + place if word == PAD else word] + encoder.word_positions[place]
        assert torch.equal(start[row, 1 + place], vector)
    assert (words == PAD).any()
    assert procedure_encoder.PAD == PAD


def test_csy_does_not_see_the_caption_where_it_sees_frames_only():
    encoder, words = small_encoder(**REFERENCE, layers=1), sentences(2)
    frames = embedded(encoder)[1]
    first, second = (encoder(encoder.embed_caption(w), frames) for w in (words, words.flip(0)))
    assert torch.equal(first.csy, second.csy)
    assert not torch.allclose(first.align, second.align, atol=1e-3)
    assert not torch.allclose(first.frames, second.frames, atol=1e-3)


def test_without_captions_nothing_depends_on_them():
    encoder = small_encoder(captions=False)
    frames = embedded(encoder)[1]
    start = encoder.embed_caption(sentences(2))
    assert torch.equal(start, encoder.csy.expand(2, 1, -1))
    assert encoder(start, frames).csy.shape == (2, 48)


def test_a_query_for_each_place():
    encoder, shown = small_encoder(queries="each"), features(2, 4)
    assert encoder.query.shape == (4, 16, 48)
    hidden = encoder.embed_frames(shown, torch.zeros(2, 4, 16, dtype=torch.bool))
    assert torch.equal(hidden, (encoder.query + encoder.positions()).expand(2, -1, -1, -1))
    encoder.blocks = torch.nn.ModuleList()
    assert torch.equal(encoder.imagine(features(2))[:, 1:-1], hidden[:, 1:-1])


@pytest.mark.parametrize("start", ["comparison", "usual"])
def test_only_a_comparison_has_three_heads_in_its_first_block(start):
    encoder = ProcedureEncoder(encoder_config(start=start))
    assert [block.attention.heads for block in encoder.blocks] == [3 if start == "comparison" else 4, 4]
    loud = encoder.blocks[1].attention.out.weight.any()
    assert bool(loud) == (start == "usual")
    assert bool(encoder.positions()[..., 16:].any()) == (start == "usual")


def test_real_frames_between_are_what_the_encoder_sees():
    encoder, shown = small_encoder(), features(3, 4)
    got = encoder.imagine(shown, Imagining(between="frames"))
    nothing = torch.empty(3, 0, 48)
    assert torch.equal(got.flatten(1, 2), encoder.transform(nothing, encoder.embed_frames(shown, None), 0))


def test_nothing_between_leaves_the_ends_where_they_are():
    encoder, shown = small_encoder(), features(3, 4)
    got = encoder.imagine(shown, Imagining(between="nothing"))
    ends = encoder.embed_frames(shown, None)[:, [0, -1]]
    assert torch.equal(got.flatten(1, 2), encoder.transform(torch.empty(3, 0, 48), ends, 0))


@pytest.mark.parametrize(
    ("imagining", "length", "first", "block"),
    [(FULL, 10, 1, 8), (SHIFTED, 9, 0, 8), (replace(SHIFTED, mask_rows="right"), 9, 0, 7)],
)
def test_the_prompts_of_stage_2(imagining, length, first, block, monkeypatch):
    encoder, seen = small_encoder(**REFERENCE), []
    start = encoder.prompt(2, imagining)
    assert start.shape[1] == length
    rows = torch.arange(7) + (0 if imagining.prompt_rows == "first" else 20)
    caption = encoder.word_embedding.weight[rows] + encoder.word_positions
    assert torch.equal(start[:, first : first + 7], caption.expand(2, -1, -1))
    monkeypatch.setattr(encoder, "blocked", lambda row, places: seen.append(row))
    assert encoder.imagine(features(2), imagining).shape == (2, 4, 16, 48)
    assert seen == [block], "the first of the rows that are blocked"


IMAGININGS = [
    Imagining(between, *rest)
    for between in ("queries", "frames", "nothing")
    for rest in (("none",), ("full",), ("without_align", "first", "shifted"))
]


@pytest.mark.parametrize("imagining", IMAGININGS, ids=str)
@pytest.mark.parametrize("encoder", [REFERENCE, PAPER], ids=["reference", "paper"])
def test_stage_2_trains_what_it_reads_and_nothing_else(imagining, encoder):
    decoder = decoder_config(style="reference", dropout=0.1)
    config = EncoderDecoderConfig(encoder_config(**encoder), decoder, 0.1, "sum", imagining, "reference")
    captioner = shaken(ProCap(config)).train()
    shown = features(4, 4 if imagining.between == "frames" else 2)
    sum(captioner.loss(Batch(shown, sentences(4)), generator=generator()).values()).backward()
    for name, weight in captioner.named_parameters():
        assert weight.requires_grad == (weight.grad is not None and bool(weight.grad.any())), name
    assert not captioner.network.encoder.token_head[1].weight.requires_grad
    assert captioner.imagine_tokens(shown).shape == (4, 0 if imagining.between == "nothing" else 2, 16, 16)


def test_a_reference_decoder_cannot_start_as_a_comparison():
    with pytest.raises(ValueError, match="start usual"):
        EncoderDecoderConfig(encoder_config(), decoder_config(style="reference"), 0.0)


@torch.no_grad()
def test_the_reference_decodes_greedily_and_says_any_mark_but_one():
    encoder, decoder = encoder_config(**REFERENCE), decoder_config(style="reference")
    config = EncoderDecoderConfig(encoder, decoder, 0.1, "sum", SHIFTED, "reference")
    network, pairs = shaken(build(lambda: EncoderDecoder(config), generator(1)), 0.3), features(12)
    for name, weight in network.decoder.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.normal_(weight, std=2, generator=generator(len(name)))
    with pytest.raises(ValueError, match="beams is 3, expected 1"):
        write_captions(network, pairs, Decoding(3))
    said = write_captions(network, pairs, GREEDY)
    read = network.read(pairs)
    for row, prediction in enumerate(said):
        words, total = torch.full((1, 7), BOS), 0.0
        one = [(keys[row : row + 1], values[row : row + 1]) for keys, values in read]
        for place in range(6):
            logits = network.decoder(words, one)[0, place].index_fill(0, torch.tensor([UNK]), -torch.inf)
            words[0, place + 1] = logits.argmax()
            if EOS not in words[0, : place + 1]:
                total += float(logits.log_softmax(-1).max())
        ids = words[0, 1:].tolist()
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        assert prediction.ids == tuple(word for word in ids if word >= len(SPECIALS))
        assert prediction.probability == pytest.approx(math.exp(total), rel=1e-3)
    assert len({p.ids for p in said}) > 1
    assert len({len(p.ids) for p in said}) > 1, "no sentence ends early, or all do"


def test_dropout_on_attention_weights_keeps_the_mean():
    attention = shaken(Attention(8, 2, weight_dropout=0.3))
    x = torch.randn(1, 5, 8, generator=generator())
    read = attention.keys_values(x)
    dropped = torch.stack([attention.attend(x, *read, causal=True, generator=generator(i)) for i in range(3000)])
    assert torch.allclose(dropped.mean(0), attention.attend(x, *read, causal=True), atol=0.05)
    assert dropped.std(0).max() > 0.1
