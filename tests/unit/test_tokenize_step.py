"""tokenize: what it keeps is what a fresh encoding gives, for the frames that the table names."""

import json
import resource
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from procap.config import check_params
from procap.datasets import shards
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, ShardWriter
from procap.errors import refusal
from procap.files import folder_digest, write_json
from procap.models.vqgan import encode_frames
from procap.procedure.warping import affine_matrices, shift_colours, transform
from procap.report import Silent
from procap.steps import tokenize
from procap.training.checkpoint import save_tensors
from tests.small import VQGAN_CONFIG, small_vqgan
from tests.toy import toy_prepared

L, DRAWS, KEPT = 3, 2, 2


def small_params():
    from ruamel.yaml import YAML

    raw = YAML(typ="safe").load((Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8"))
    raw["hardware"] |= {"device": "cpu", "threads": 1}
    raw["interpolate"]["frames"], raw["sample"]["kept"], raw["sample"]["draws"] = L, KEPT, DRAWS
    raw["tokenize"]["batch"] = 4 * (L + 2)
    return check_params(raw, "params.yaml")


def earlier_steps(data: Path) -> None:
    """What prepare, interpolate, sample and tokenizer leave."""
    toy_prepared(data / "prepare", pairs=20)
    pairs, draw = Pairs.read(data / "prepare").split("train", "val"), np.random.default_rng(0)
    with ShardWriter(data / "interpolate" / "frames", "frames", (L, 32, 32, 3), np.uint8) as writer:
        writer.append(draw.integers(0, 256, (len(pairs), L, 32, 32, 3), dtype=np.uint8))
    kept = np.sort(draw.permuted(np.tile(np.arange(1, L + 1), (DRAWS, len(pairs), 1)), axis=2)[..., :KEPT], axis=2)
    (data / "sample").mkdir()
    np.save(data / "sample" / "kept.npy", kept.astype(np.int16))
    vqgan = small_vqgan()
    (data / "tokenizer").mkdir()
    save_tensors(data / "tokenizer" / "vqgan.safetensors", dict(vqgan.state_dict()))
    write_json(data / "tokenizer" / "vqgan.json", asdict(VQGAN_CONFIG))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    data = tmp_path_factory.mktemp("tokenized") / "data"
    earlier_steps(data)
    tokenize.run(small_params(), data)
    return data


@pytest.fixture(scope="module")
def whole(done) -> np.ndarray:
    """All frames of all pairs of train and val, before and after included."""
    pairs = Pairs.read(done / "prepare").split("train", "val")
    return np.concatenate(
        [pairs.before()[:, None], Shards(done / "interpolate" / "frames", "frames")[:], pairs.after()[:, None]], 1
    )


def test_what_is_kept_is_what_a_fresh_encoding_gives(done, whole):
    vqgan = tokenize.load_tokenizer(done / "tokenizer")
    features, tokens = (Shards(done / "tokenize", name) for name in ("features", "tokens"))
    assert len(features) == len(tokens) == len(whole)
    for row in range(len(whole)):
        found, codes = encode_frames(vqgan, whole[row], torch.device("cpu"))
        assert np.abs(features[row] - found.numpy()).max() < 2e-3
        assert (tokens[row] == codes.numpy()).mean() > 0.98
    assert features.dtype == np.float16
    assert tokens.dtype == np.int16


def test_the_test_split_is_not_touched(done):
    table = Pairs.read(done / "prepare").table
    assert len(Shards(done / "tokenize", "features")) == (table["split"] != "test").sum() < len(table)


def test_warped_frames_are_among_those_that_were_kept(done, whole):
    which = np.load(done / "tokenize" / "warped_frames.npy")
    assert which.shape == (len(whole), DRAWS, 2)
    assert set(np.unique(which)) == set(range(KEPT + 2)), "any frame, before and after included"


def test_warped_features_are_of_the_frames_that_they_name(done, whole, monkeypatch):
    """Without a warp the warped frame is the kept one: its cached features must be found again."""
    monkeypatch.setattr(tokenize, "shift_colours", lambda pictures, shifts: pictures)
    monkeypatch.setattr(tokenize, "transform", lambda pictures, matrices: pictures)
    copy = done.parent / "unwarped"
    for name in ("prepare", "interpolate", "sample", "tokenizer"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).symlink_to(done / name)
    tokenize.run(small_params(), copy)
    features, warped = Shards(copy / "tokenize", "features"), Shards(copy / "tokenize", "warped")
    which, kept = np.load(copy / "tokenize" / "warped_frames.npy"), np.load(copy / "sample" / "kept.npy")
    for pair in range(len(whole)):
        for draw in range(DRAWS):
            sequence = [0, *kept[draw, pair], L + 1]
            for number in range(2):
                expected = features[pair][sequence[which[pair, draw, number]]]
                assert np.abs(warped[pair][draw, number] - expected).max() < 2e-3


def test_the_first_warp_is_of_colour_and_the_second_of_place(done, monkeypatch):
    seen = {}
    monkeypatch.setattr(tokenize, "shift_colours", lambda p, s: seen.setdefault("colour", shift_colours(p, s)))
    monkeypatch.setattr(tokenize, "transform", lambda p, m: seen.setdefault("affine", transform(p, m)))
    monkeypatch.setattr(tokenize, "affine_matrices", lambda b, g: affine_matrices(b, g))
    copy = done.parent / "watched"
    for name in ("prepare", "interpolate", "sample", "tokenizer"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).symlink_to(done / name)
    tokenize.run(small_params(), copy)
    vqgan, warped = tokenize.load_tokenizer(copy / "tokenizer"), Shards(copy / "tokenize", "warped")[:4]
    for number, name in enumerate(("colour", "affine")):
        expected = vqgan.features(vqgan.encode(seen[name]), seen[name]).detach().reshape(4, DRAWS, 16, 8).numpy()
        assert np.abs(warped[:, :, number] - expected).max() < 2e-3


def test_the_same_bytes_again(done, tmp_path):
    earlier_steps(tmp_path / "data")
    tokenize.run(small_params(), tmp_path / "data")
    assert folder_digest(tmp_path / "data" / "tokenize") == folder_digest(done / "tokenize")
    summary = json.loads((done / "tokenize" / "summary.json").read_text())
    tokens = Shards(done / "tokenize", "tokens")[:]
    assert summary == {"frames": tokens.shape[0] * (L + 2), "codes_used": len(np.unique(tokens)) / 16}


class Killed(BaseException):
    """Like SIGKILL: what was not kept is lost."""


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("tidy", [True, False], ids=["stopped", "killed"])
def test_killed_it_goes_on_after_what_it_had_kept(done, tmp_path, monkeypatch, at, tidy):
    earlier_steps(tmp_path / "data")
    monkeypatch.setattr(shards, "SHARD_BYTES", 6 * (L + 2) * 16 * 8 * 2)  # several shards, batches across their ends
    monkeypatch.setattr(shards, "flush", lambda path: None)  # it waits for the disk
    monkeypatch.setattr(tokenize, "KEPT_SECONDS", 0.0)
    encode, calls = tokenize.encode_pictures, []

    def dying(*arguments):
        calls.append(1)
        if len(calls) > at:
            if not tidy:
                monkeypatch.setattr(tokenize._Growing, "__exit__", lambda *_: None)
            raise Killed
        return encode(*arguments)

    monkeypatch.setattr(tokenize, "encode_pictures", dying)
    with pytest.raises(Killed):
        tokenize.run(small_params(), tmp_path / "data")
    assert not (tmp_path / "data" / "tokenize").exists()
    monkeypatch.setattr(tokenize, "encode_pictures", lambda *given: (calls.append(1), encode(*given))[1])
    heard = Counted()
    tokenize.run(small_params(), tmp_path / "data", report=heard)
    assert heard.counted == [(4, at)]
    assert len(calls) == 4 + 1, "no batch twice but the one it was at"
    assert len(Shards(tmp_path / "data" / "tokenize", "features").paths) == 3
    for name in ("features", "tokens", "warped"):
        assert np.array_equal(Shards(tmp_path / "data" / "tokenize", name)[:], Shards(done / "tokenize", name)[:])
    for name in ("warped_frames.npy", "summary.json"):
        assert (tmp_path / "data" / "tokenize" / name).read_bytes() == (done / "tokenize" / name).read_bytes()
    assert not list((tmp_path / ".state" / "tokenize").iterdir())


class Counted(Silent):
    def __init__(self) -> None:
        self.counted: list[tuple] = []

    def progress(self, items, what, total=None, done=0):
        self.counted.append((total, done))
        yield from items


def test_without_room_it_says_so_and_goes_on_later(done, tmp_path):
    earlier_steps(tmp_path / "data")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(Silent):
        def progress(self, items, what, total=None, done=0):
            for number, item in enumerate(items):
                if number == 2:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
                yield item

    try:
        with pytest.raises(OSError, match="File too large") as caught:
            tokenize.run(small_params(), tmp_path / "data", report=Filling())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refusal(caught.value).where.endswith("-00000.npy")
    assert not (tmp_path / "data" / "tokenize").exists()
    tokenize.run(small_params(), tmp_path / "data")
    assert folder_digest(tmp_path / "data" / "tokenize") == folder_digest(done / "tokenize")
