"""pretrain and caption: every choice of the paper's ablations is reachable by a parameter, and does what it says."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from procap.captioners import Decoding, captioner_class
from procap.checkpoints.midpoints import load_midpoint
from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.steps import caption, pretrain
from procap.training.bundle import load_bundle
from procap.training.checkpoint import load_tensors
from tests.steps import tiny_params, tokenised

EARLIER = ("prepare", "interpolate", "sample", "tokenizer", "tokenize")


@pytest.fixture(scope="module", autouse=True)
def _no_curves():
    """Drawing them takes as long as these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        for step in (pretrain, caption):
            patch.setattr(step, "draw_history", lambda history, names: None)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run both stages with these parameters; what comes before is made once for each k, l and method."""

    @cache
    def corpus(frames: int, kept: int):
        data = tmp_path_factory.mktemp(f"corpus_{frames}_{kept}") / "data"
        tokenised(data, tiny_params(interpolate__frames=frames, sample__kept=kept))
        return data

    def run(params: Params, *captioners: str):
        data = tmp_path_factory.mktemp("run") / "data"
        data.mkdir()
        for step in EARLIER:
            (data / step).symlink_to(corpus(params.interpolate.frames, params.sample.kept) / step)
        pretrain.run(params, data)
        for name in captioners:
            caption.run(params, data, captioner=name)
        return data

    return run


def weights(data, stage: str = "pretrain", captioner: str = "procap") -> dict[str, torch.Tensor]:
    inside = "encoder" if stage == "pretrain" else f"{captioner}/bundle/captioner"
    return load_tensors(data / stage / f"{inside}.safetensors")[0]


def same(one: dict, other: dict) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def plain(trained):
    return trained(tiny_params(), "procap", "static")


def test_a_replicate_is_another_training_of_the_same_data(trained, plain):
    again, other, third = (trained(tiny_params(replicate=n), "procap", "static") for n in (0, 1, 2))
    for stage in ("pretrain", "caption"):
        assert same(weights(plain, stage), weights(again, stage))
        assert not same(weights(plain, stage), weights(other, stage))
        assert not same(weights(third, stage), weights(other, stage))
    assert not same(weights(plain, "caption", "static"), weights(other, "caption", "static"))
    told = json.loads((other / "caption" / "procap" / "bundle" / "provenance.json").read_text())
    assert told["params"]["replicate"] == 1


def test_no_replicate_is_what_another_seed_is():
    seeds = [tiny_params(seed=seed, replicate=n).training_seed for seed in (0, 1, 2**31 - 1) for n in (0, 1, 2)]
    assert len(set(seeds)) == 9
    assert tiny_params(seed=5).training_seed == 5


def test_stage_one_keeps_the_comparison_and_stage_two_may_change_it(trained, plain):
    first = trained(tiny_params(pretrain__steps=1, pretrain__learning_rate=1e-60, pretrain__weight_decay=0))
    start, after, final = weights(first), weights(plain), weights(plain, "caption")
    held = [name for name in after if torch.equal(start[name], after[name])]
    comparing = ("feature_norm.", "feature_embedding.", "positions.", "blocks.0.norm_attention.", "blocks.0.attention.")
    assert held == [name for name in after if name.startswith(comparing)]
    assert not any(torch.equal(after[name], final[f"network.encoder.{name}"]) for name in held)


def test_without_stage_one_the_captioner_starts_elsewhere(trained, plain):
    """With no learning rate to speak of, what stage 2 leaves is what it started from."""
    still = {"caption__learning_rate": 1e-60, "caption__encoder_learning_rate": 1e-60, "caption__weight_decay": 0}
    first = weights(plain)
    for pretrained in (True, False):
        data = trained(tiny_params(caption__pretrained=pretrained, **still), "procap")
        assert same(first, weights(data)), "stage 1 is the same"
        encoder = {n.removeprefix("network.encoder."): w for n, w in weights(data, "caption").items()}
        encoder = {n: w for n, w in encoder.items() if not n.startswith("network.")}
        assert same(first, encoder) == pretrained


def test_stage_one_ends_with_its_best_or_its_last_weights(trained):
    """A learning rate that ruins everything after the first update tells the two apart."""
    found = {}
    for selection in ("val", "last"):
        steps = {"pretrain__steps": 4, "pretrain__validate_every": 1, "pretrain__schedule": "log_warmup"}
        data = trained(tiny_params(pretrain__selection=selection, pretrain__learning_rate=3.0, **steps))
        found[selection] = json.loads((data / "pretrain" / "metrics.json").read_text())
    assert found["last"]["best_step"] == 4
    assert found["val"]["best_step"] < 4
    assert found["val"]["loss"] < found["last"]["loss"]


SWITCHES = [
    *({"sample__kept": k} for k in (0, 1, 4, 7)),
    {"interpolate__frames": 3},
    {"interpolate__frames": 1, "sample__kept": 1},
    {"pretrain__layers": 3},
    {"caption__decoder_layers": 3},
    *({"pretrain__weights": row} for row in np.eye(3).tolist()),
    *({"pretrain__masking": row} for row in np.eye(4).tolist()),
    {"pretrain__encoder__start": "usual", "caption__decoder": "reference"},
    {"pretrain__encoder__activation": "quick_gelu", "pretrain__encoder__reserved": True},
    {"pretrain__encoder__pads": "placed", "pretrain__encoder__special_positions": True},
    {"pretrain__encoder__csy_sees": "frames"},
    {"pretrain__msm_mean": "pairs"},
    {"pretrain__entire": "frames", "pretrain__masking": [0.0, 1.0, 0.0, 0.0], "pretrain__unseen": "counted"},
    {"caption__imagining__prompt": "without_align", "caption__imagining__prompt_rows": "first"},
    {"pretrain__optimiser": "adam", "pretrain__schedule": "log_warmup"},
    {"caption__optimiser": "bert_adam", "caption__schedule": "warmup_linear", "caption__planned_steps": 6},
    {"caption__label_smoothing": 0.1, "caption__reduction": "sum"},
    {"pretrain__encoder__captions": False},
    {"pretrain__encoder__queries": "each"},
    {"caption__pretrained": False},
    {"caption__between": "frames"},
    {"caption__between": "frames", "caption__pretrained": False},
    {"caption__between": "nothing"},
]


def told(changes: dict) -> str:
    return ", ".join(f"{key.replace('__', '.')}={value}" for key, value in changes.items())


@pytest.mark.parametrize("changes", SWITCHES, ids=told)
def test_every_switch_trains_and_captions(trained, plain, changes):
    data = trained(tiny_params(**changes), "procap")
    changed = [stage for stage in ("pretrain", "caption") if not alike(data, plain, stage)]
    expected = {key.partition("__")[0] for key in changes}
    assert changed == (["caption"] if expected == {"caption"} else ["pretrain", "caption"]), "the switch does nothing"
    assert all(w.isfinite().all() for stage in ("pretrain", "caption") for w in weights(data, stage).values())
    pictures = np.zeros((2, 2, 20, 20, 3), np.uint8)
    bundle = load_bundle(data / "caption" / "procap" / "bundle", load_midpoint=load_midpoint)
    assert len(bundle.caption(*pictures)) == 2
    imagined = bundle.imagine(*pictures)
    kept = 0 if changes.get("caption__between") == "nothing" else changes.get("sample__kept", 2)
    assert (0 if imagined is None else imagined.shape[1]) == kept


@pytest.fixture(scope="module")
def explicit(trained):
    return trained(tiny_params(caption__between="frames", sample__kept=2), "procap", "static")


def test_a_captioner_of_explicit_frames_makes_them_itself(explicit):
    """What it sees of a pair alone is what stage 1's cache has of that pair: before, frames 3 and 5 of 7, after."""
    bundle = load_bundle(explicit / "caption" / "procap" / "bundle", load_midpoint=load_midpoint)
    pairs = Pairs.read(explicit / "prepare").split("train", "val")
    cached = np.concatenate(Shards(explicit / "tokenize", "features").arrays)[:, [0, 3, 5, 8]]
    seen = bundle.features(pairs.before(), pairs.after()).numpy()
    assert np.abs(seen - cached).max() < 5e-3
    assert np.abs(seen[:, 1] - seen[:, 2]).max() > 0.05
    with pytest.raises(ValueError, match="needs load_midpoint"):
        load_bundle(explicit / "caption" / "procap" / "bundle")


def test_static_never_sees_a_frame_between(explicit, plain):
    bundle = load_bundle(explicit / "caption" / "static" / "bundle")
    assert bundle.features(*np.zeros((2, 2, 20, 20, 3), np.uint8)).shape[1] == 2
    assert same(weights(explicit, "caption", "static"), weights(plain, "caption", "static"))


@pytest.mark.parametrize(("between", "seen"), [("queries", 2 * 16), ("frames", 4 * 16), ("nothing", 2 * 16)])
def test_training_and_captioning_see_the_same_frames(trained, between, seen, monkeypatch):
    """A batch of stage 2 is, row for row, what the trained bundle makes of the same pairs."""
    batches = []

    class Watched(caption._Training):
        def batch(self, rows, generator):
            batches.append((rows, super().batch(rows, generator).features))
            return super().batch(rows, generator)

    monkeypatch.setattr(caption, "_Training", Watched)
    data = trained(tiny_params(caption__between=between), "procap")
    bundle = load_bundle(data / "caption" / "procap" / "bundle", load_midpoint=load_midpoint)
    pairs = Pairs.read(data / "prepare").split("train", "val")
    rows, features = batches[0]
    torch.testing.assert_close(bundle.features(pairs.before(rows), pairs.after(rows)), features, atol=5e-3, rtol=0)
    assert features.shape[1] * features.shape[2] == seen


def alike(one, other, stage: str) -> bool:
    mine, theirs = weights(one, stage), weights(other, stage)
    if {name: w.shape for name, w in mine.items()} != {name: w.shape for name, w in theirs.items()}:
        return False
    return same(mine, theirs)


@pytest.mark.parametrize("name", ["mct_ccdiff", "decider"])
def test_a_diffusion_captioner_follows_its_updates_and_sees_all_captions(trained, name, monkeypatch):
    kind, seen = captioner_class(name), []
    loss = kind.loss
    monkeypatch.setattr(kind, "loss", lambda self, batch, *, generator: seen.append(batch) or loss(
        self, batch, generator=generator
    ))  # fmt: skip
    small = {"steps": 4, "width": 16, "heads": 2, "layers": 1, "encoder_layers": 1, "draws": 1}
    data = trained(tiny_params(**{f"{name}__{key}": value for key, value in small.items()}), name)
    kept = weights(data, "caption", name)
    assert int(kept["average.n_averaged"]) == 4
    assert not torch.equal(kept["average.module.text.embedding"], kept["network.text.embedding"])
    for batch in seen:
        assert batch.captions.shape[1] > 1
        assert (batch.captions == batch.words[:, None]).all(2).any(1).all(), "the pair's own is among them"
    bundle = load_bundle(data / "caption" / name / "bundle")
    pairs = Pairs.read(data / "prepare").split("test")
    said = [bundle.caption(pairs.before(), pairs.after(), decoding=Decoding(steps=3)) for _ in range(2)]
    assert said[0] == said[1]
