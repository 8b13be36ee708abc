"""The library: pictures in any form, captions with what is known of them, many or one."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import procap
from procap.captioners import Batch, Decoding
from procap.captioners.explanation import attention
from procap.captioning import addresses, captioner
from procap.captioning.addresses import Fetched
from procap.captioning.captioner import Caption, enlarged
from procap.datasets.images import resize
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.models.build import frozen
from procap.training.bundle import encode_pairs, load_bundle, nothing_between, write_bundle
from procap.training.optimiser import make_optimiser
from tests.small import captioner_config, generator, shaken, small_captioner, small_vqgan
from tests.toy import CAPTIONS, toy_prepared

VOCABULARY = Vocabulary.build([caption for kind in CAPTIONS.values() for caption in kind], 1, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A bundle of an untrained procap."""
    folder = tmp_path_factory.mktemp("untrained") / "bundle"
    write(folder, shaken(small_captioner("procap", vocabulary=len(VOCABULARY), words=9), 0.3), "procap")
    return folder


def write(folder: Path, network: torch.nn.Module, name: str, **facts: object) -> None:
    config = captioner_config(name, len(VOCABULARY), 9)
    provenance = {"no_change": CAPTIONS[NO_CHANGE], **facts}
    write_bundle(folder, name, network, config, small_vqgan(), VOCABULARY, provenance)


@pytest.fixture(scope="module")
def model(folder):
    return procap.load_captioner(folder, "cpu")


def photograph(seed: int, height: int = 40, width: int = 60) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


PAIR = photograph(0), photograph(1)


def plain(caption: Caption) -> tuple:
    """Without explanation, and to a few digits."""
    chances = (*caption.word_probabilities, caption.end_probability, caption.probability, caption.change_probability)
    return caption.text, caption.words, tuple(np.round(chances, 4).tolist())


def test_it_says_which_captioner_it_is(model, folder):
    from procap.training.bundle import bundle_digest

    about = model.about
    assert dataclasses.astuple(about) == (str(folder), None, bundle_digest(folder), "procap", 32, None)


def test_pictures_may_have_any_form(model, tmp_path):
    said = model.caption(*PAIR)
    paths = []
    for name, pixels in zip("ab", PAIR, strict=True):
        paths.append(tmp_path / f"{name}.png")
        paths[-1].write_bytes(png(pixels))
    forms = [paths, list(map(str, paths)), list(map(png, PAIR)), list(map(Image.fromarray, PAIR))]
    assert [model.caption(*pair) for pair in forms] == [said] * len(forms)
    assert model.caption(paths[0], PAIR[1]) == said
    assert said != model.caption(*PAIR[::-1])


def test_a_photograph_is_turned_upright_in_any_form(model):
    turned = Image.fromarray(np.rot90(PAIR[0]).copy())
    exif = turned.getexif()
    exif[0x0112] = 6
    out = io.BytesIO()
    turned.save(out, "PNG", exif=exif)
    said = model.caption(*PAIR)
    assert model.caption(out.getvalue(), PAIR[1]) == said
    assert model.caption(Image.open(io.BytesIO(out.getvalue())), PAIR[1]) == said


def test_pictures_are_resized_as_in_training(model):
    side = model.about.image_size
    assert plain(model.caption(*PAIR)) == plain(model.caption(*(resize(picture, side) for picture in PAIR)))


@pytest.mark.parametrize("beams", [1, 3])
def test_the_words_chances_multiply_to_the_sentences(model, beams):
    said = model.caption([PAIR[0], PAIR[1], photograph(3)], [PAIR[1], PAIR[0], photograph(4)], decoding=Decoding(beams))
    assert len({one.text for one in said}) > 1
    for one in said:
        assert " ".join(one.words) == one.text
        assert len(one.words) == len(one.word_probabilities)
        assert np.prod([*one.word_probabilities, one.end_probability]) == pytest.approx(one.probability, rel=1e-3)
        assert 0 <= one.change_probability <= 1


def test_many_are_captioned_like_one_whatever_their_sizes(model):
    pairs = [(photograph(n, 30 + n, 50), photograph(n + 50, 30 + n, 50)) for n in range(5)]
    alone = [model.caption(*pair) for pair in pairs]
    together = model.caption(*map(list, zip(*pairs, strict=True)))
    streamed = list(model.stream(iter(pairs), batch=2))
    assert list(map(plain, together)) == list(map(plain, streamed)) == list(map(plain, alone))
    assert model.caption([], []) == list(model.stream([])) == []


def test_a_stream_reads_pictures_when_their_turn_comes(model):
    taken = []

    def pairs():
        for number in range(6):
            taken.append(number)
            yield PAIR

    stream = model.stream(pairs(), batch=2)
    assert taken == []
    next(stream)
    assert taken == [0, 1]


def test_bundles_that_do_not_know_how_no_change_is_said_leave_it_open(tmp_path, model):
    network = small_captioner("static", vocabulary=len(VOCABULARY), words=9)
    write(tmp_path / "bundle", network, "static", no_change=[])
    said = procap.load_captioner(tmp_path / "bundle", "cpu").caption(*PAIR, explain=True)
    assert said.change_probability is None
    assert said.explanation.change_map.max() == pytest.approx(1)
    assert len(said.explanation.frames) == 2


def test_the_reasons_have_the_pictures_proportions(model):
    said = model.caption(*PAIR, explain=True)
    why, words = said.explanation, len(said.words)
    assert words > 1
    assert why.attention_before.shape == why.attention_after.shape == (words, 40, 60)
    both = np.stack([why.attention_before, why.attention_after])
    np.testing.assert_allclose(both.max(axis=(0, 2, 3)), 1)
    assert both.min() >= 0
    features = model.bundle.features(*(pixels[None] for pixels in PAIR))
    (ids,) = [prediction.ids for prediction in model.bundle.predict(features)]
    seen = attention(model.bundle.captioner.network, features, [ids])[0, :words]
    for frame, shown in ((0, why.attention_before), (-1, why.attention_after)):
        true = enlarged(seen[:, frame], (40, 60))
        np.testing.assert_allclose(shown, true * (shown.max((1, 2)) / true.max((1, 2)))[:, None, None], rtol=1e-4)
    np.testing.assert_allclose(why.attention_frames, seen.sum(-1), rtol=1e-4)
    assert why.attention_frames.shape == (words, 4)
    np.testing.assert_allclose(why.attention_frames.sum(1), 1, rtol=1e-5)
    assert why.change_map.shape == (40, 60)
    assert why.change_map.max() == pytest.approx(said.change_probability)
    side = model.about.image_size
    assert why.frames.shape == (4, side, side, 3)
    for frame, pixels in ((why.frames[0], PAIR[0]), (why.frames[-1], PAIR[1])):
        np.testing.assert_array_equal(frame, resize(pixels, side))
    imagined = model.bundle.imagine(*(resize(pixels, side)[None] for pixels in PAIR))[0]
    np.testing.assert_array_equal(why.frames[1:-1], imagined)
    assert plain(said) == plain(model.caption(*PAIR))


def test_maps_of_large_pictures_are_reduced(model):
    large = [np.array(Image.fromarray(pixels).resize((1200, 800))) for pixels in PAIR]
    why = model.caption(*large, explain=True).explanation
    assert why.change_map.shape == why.attention_after.shape[1:] == (341, 512)


def test_a_map_lies_where_its_places_lie():
    places = torch.zeros(1, 16)
    places[0, 4 * 1 + 2] = 1
    wide = enlarged(places, (40, 80))[0]
    assert 0.9 < wide.max() <= 1
    row, column = (np.indices(wide.shape) * wide).sum((1, 2)) / wide.sum()
    assert (row, column) == (pytest.approx(14.5, abs=0.1), pytest.approx(49.5, abs=0.1))


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (PAIR[0], photograph(1, 41), "60 x 40 and 60 x 41 pixels"),
        (PAIR[0], PAIR[1].astype(np.float32), "float32"),
        (PAIR[0], PAIR[1][..., 0], "an array"),
        (PAIR[0], None, "a NoneType is no picture"),
        (PAIR[0], b"", "of 0 bytes"),
        (PAIR[0], png(PAIR[1])[:200], "damaged or cut short"),
        (PAIR[0], "nowhere.png", "not there"),
    ],
)
def test_what_is_no_pair_is_refused_by_name(model, before, after, what):
    with pytest.raises(BadInput, match=what):
        model.caption(before, after)
    with pytest.raises(BadInput, match=what) as caught:
        model.caption([PAIR[0], before], [PAIR[1], after])
    assert "pair 1" in caught.value.where or after == "nowhere.png"


def test_pictures_that_do_not_pair_up_are_refused(model):
    with pytest.raises(ValueError, match="2 pictures before, 1 after"):
        model.caption(list(PAIR), [PAIR[0]])
    with pytest.raises(ValueError, match="one picture each, or a list each"):
        model.caption(PAIR[0], [PAIR[1]])


def test_only_known_kinds_of_addresses_are_asked(folder, monkeypatch):
    asked = []

    class Point:
        name = "models"

        @staticmethod
        def load():
            return lambda address: asked.append(address) or Fetched(folder, "7", "# A card")

    monkeypatch.setattr(addresses, "entry_points", lambda group: [Point] if group == "procap.addresses" else [])
    about = procap.load_captioner("models:/procap@champion", "cpu").about
    assert (about.address, about.version, about.card) == ("models:/procap@champion", "7", "# A card")
    assert asked == ["models:/procap@champion"]
    with pytest.raises(BadInput, match="addresses that begin with s3:/") as caught:
        procap.load_captioner("s3://bucket/model")
    assert "models:/" in caught.value.expected


def test_a_change_is_likely_where_something_changed_however_no_change_is_said(tmp_path):
    """A tiny captioner that learned some toy pairs, of which the unchanged ones were described in two ways."""
    toy_prepared(tmp_path, pairs=8)
    pairs = Pairs.read(tmp_path).split("train")
    before, after = pairs.before(), pairs.after()
    changed = pairs.table["change_type"].to_numpy() != NO_CHANGE
    features = encode_pairs(small_vqgan(), before, after, nothing_between, torch.device("cpu"))
    words = [np.stack([VOCABULARY.encode(str(c[way])) for c in pairs.table["captions"]]) for way in range(2)]
    network = small_captioner("static", vocabulary=len(VOCABULARY), words=9).train()
    optimiser = make_optimiser("adamw", [(network, 3e-3)], weight_decay=0.0)
    for step in range(100):
        optimiser.zero_grad()
        batch = Batch(features, torch.from_numpy(words[step % 2]))
        sum(network.loss(batch, generator=generator(step)).values()).backward()
        optimiser.step()
    write(tmp_path / "bundle", frozen(network), "static")
    said = procap.load_captioner(tmp_path / "bundle", "cpu").caption(list(before), list(after))
    chances = np.array([one.change_probability for one in said])
    assert chances[changed].min() > 0.7
    assert chances[~changed].max() < 0.3
    assert max(one.probability for one, is_changed in zip(said, changed, strict=True) if not is_changed) < 0.7, (
        "one of the two ways alone would do: shows nothing"
    )


def test_a_bundle_is_loaded_once_and_leaves_threads_alone(folder):
    threads = torch.get_num_threads()
    model = captioner.load_captioner(folder)
    assert model.bundle.provenance == load_bundle(folder).provenance
    assert torch.get_num_threads() == threads
