"""The procedure encoder: what stage 1 and stage 2 put together, and what may depend on what."""

import pytest
import torch

from procap.captioners.procap import ProCap
from procap.captioners.static import Static
from tests.small import captioner_config, features, generator, sentences, small_captioner, small_encoder


@pytest.mark.parametrize("frames", [2, 3, 5])
def test_imagining_is_encoding_with_the_middle_hidden_and_no_caption(frames):
    encoder, ends = small_encoder(frames=frames), features(3)
    whole = torch.cat([ends[:, :1], features(3, frames - 2, seed=7), ends[:, 1:]], dim=1)
    kept = torch.zeros(3, frames, 16, dtype=torch.bool)
    kept[:, [0, -1]] = True
    nothing = torch.empty(3, 0, encoder.config.width)
    x = torch.cat([nothing, encoder.embed_frames(whole, kept).flatten(1, 2)], dim=1)
    for block in encoder.blocks:
        x = block(x)
    imagined = encoder.imagine(ends)
    assert imagined.shape == (3, frames, 16, encoder.config.width)
    assert torch.allclose(imagined.flatten(1, 2), x, atol=1e-5)


def test_hidden_places_hold_the_query_and_their_position():
    encoder, shown = small_encoder(), features(2, 4)
    kept = torch.rand(2, 4, 16, generator=generator()) < 0.5
    embedded = encoder.embed_frames(shown, kept)
    stands_in = (encoder.query + encoder.positions()).expand_as(embedded)
    assert torch.equal(embedded[~kept], stands_in[~kept])
    assert torch.equal(embedded[kept], encoder.embed_frames(shown, None)[kept])


def test_every_place_has_a_position_of_its_own():
    positions = small_encoder().positions().flatten(0, 1)
    apart = torch.cdist(positions, positions) + 1e9 * torch.eye(len(positions))
    assert apart.min() > 0.01
    frame, row, column = (small_encoder().positions().reshape(4, 4, 4, -1).diff(dim=axis) for axis in range(3))
    assert torch.allclose(frame, frame[:, :1, :1].expand_as(frame), atol=1e-5), "first axis: frames"
    assert torch.allclose(row, row[:1, :, :1].expand_as(row), atol=1e-5), "second: rows"
    assert torch.allclose(column, column[:1, :1].expand_as(column), atol=1e-5), "third: columns"


def test_the_sequence_is_align_caption_csy_frames():
    encoder, words, shown = small_encoder(), sentences(2), features(2, 4)
    encoder.blocks = torch.nn.ModuleList()
    encoded = encoder(encoder.embed_caption(words), encoder.embed_frames(shown, None))
    assert torch.equal(encoded.align, encoder.align.expand(2, -1))
    assert torch.equal(encoded.csy, encoder.csy.expand(2, -1))
    assert torch.equal(encoded.frames, encoder.embed_frames(shown, None))


def test_everything_looks_at_everything_of_its_own_pair():
    encoder, words, shown = small_encoder(), sentences(2), features(2, 4)
    first = encoder(encoder.embed_caption(words), encoder.embed_frames(shown, None))
    words[0, 1], other = words[0, 1] - 1, shown.clone()
    other[0, 3, 15] += 1
    changed = (
        encoder(encoder.embed_caption(words), encoder.embed_frames(shown, None)),
        encoder(encoder.embed_caption(sentences(2)), encoder.embed_frames(other, None)),
    )
    for second in changed:
        for part in ("align", "csy", "frames"):
            a, b = getattr(first, part), getattr(second, part)
            assert (a[0] != b[0]).flatten(0, -2).any(-1).all() if part == "frames" else (a[0] != b[0]).any()
            assert torch.equal(a[1], b[1]), "another pair is none of its business"


def test_imagined_tokens_are_of_the_frames_between():
    captioner = small_captioner("procap")
    logits = captioner.imagine_tokens(features(3))
    assert logits.shape == (3, 2, 16, 16)
    encoder = captioner.network.encoder
    assert torch.equal(logits[:, 1], encoder.token_head(encoder.imagine(features(3))[:, 2]))


def test_static_has_no_procedure():
    with pytest.raises(ValueError, match=r"encoder\.frames is 4, expected 2"):
        Static(captioner_config("procap"))
    assert ProCap(captioner_config("procap")).network.memory(features(2)).shape == (2, 4 * 16, 32)
    assert Static(captioner_config("static")).network.memory(features(2)).shape == (2, 2 * 16, 32)
