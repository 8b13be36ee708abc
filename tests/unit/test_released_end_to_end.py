"""Checkpoints of the published sizes, weights by formula, from a file to the words that the public code says."""

import argparse
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flows.cli import app
from procap.captioners.decoding import greedy
from procap.datasets.vocabulary import EOS, SPECIALS
from procap.training.bundle import load_bundle
from procap.training.checkpoint import load_tensors
from tests.formula import formula_pictures, formula_weights
from tests.released import OFFICIAL, raw_features, released_captioner, released_encoder, released_vqgan
from tests.unit.test_released_weights import same

pytestmark = [
    pytest.mark.shared,
    pytest.mark.slow,
    pytest.mark.skipif(not OFFICIAL.exists(), reason="../shared is not there"),
]


class Settings(dict):
    """As EasyDict."""


def published(name: str) -> dict[str, torch.Tensor]:
    """All keys of a published file; LPIPS and the discriminator are zero."""
    keys = json.loads((OFFICIAL / f"keys_{name}.json").read_text(encoding="utf-8"))
    buffers = {key for key, facts in keys.items() if facts["kind"] == "buffer" or ".loss." in key}
    made = formula_weights({key: tuple(facts["shape"]) for key, facts in keys.items() if key not in buffers})
    return {key: made.get(key, torch.zeros(facts["shape"])) for key, facts in keys.items()}


def call(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_a_released_captioner_says_what_the_public_code_says(tmp_path):
    file = tmp_path / "model.chkpt"
    more = {"model_cfg": Settings(vocab_size=80), "opt": argparse.Namespace(seed=52), "epoch": 31}
    torch.save({"model": published("stage2_clevr_n2"), **more}, file)
    words = {mark: n for n, mark in enumerate(SPECIALS)} | {f"word{n}": n for n in range(8, 80)}
    (tmp_path / "word2idx.json").write_text(json.dumps(words))
    told = "--vocabulary", tmp_path / "word2idx.json", "--out", tmp_path / "b"
    call("import-weights", file, "--kind", "stage2", *told)
    file.unlink()
    bundle = load_bundle(tmp_path / "b")
    network = bundle.captioner.network
    assert same(network, released_captioner())
    assert same(bundle.vqgan, released_vqgan())

    ends = [formula_pictures(*(f"stage2/{b}/{end}" for b in range(2))) for end in ("before", "after")]
    with np.load(OFFICIAL / "vectors_stage2.npz", allow_pickle=False) as vectors:
        expected = vectors["greedy"]
    features = raw_features(bundle.vqgan, torch.stack(ends, dim=1))
    ids, _ = greedy(network.decoder.step, network.read(features), network.config.decoder.words)
    assert np.array_equal(ids.numpy(), expected)

    before, after = ((end * 255).round().byte().permute(0, 2, 3, 1).numpy() for end in ends)
    for said, row in zip(bundle.caption(before, after), expected.tolist(), strict=True):
        ended = row[: row.index(EOS)] if EOS in row else row
        assert said.text == " ".join(f"word{number}" for number in ended if number >= len(SPECIALS))


def test_a_released_stage_1_is_the_network_that_the_vectors_were_compared_with(tmp_path):
    file = tmp_path / "dalle.pt"
    torch.save({"iter": 200000, "hparams": {"rel": True}, "vae_params": None, "weights": published("stage1_n2")}, file)
    call("import-weights", file, "--kind", "stage1", "--out", tmp_path / "a")
    file.unlink()
    got, expected = load_tensors(tmp_path / "a" / "encoder.safetensors")[0], released_encoder().state_dict()
    assert got.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in got.items())
