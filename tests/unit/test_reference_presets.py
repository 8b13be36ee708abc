"""The published configurations: what differs between them, and that all their choices work together."""

import json

import pytest

from flows.presets import read_sections
from procap.checkpoints.midpoints import load_midpoint
from procap.config import check_params
from procap.datasets.pairs import Pairs
from procap.steps import caption, pretrain
from procap.training.bundle import load_bundle
from procap.training.checkpoint import load_tensors
from tests.steps import PROJECT, TINY, preset, tokenised, with_changes

CORPORA = ("clevr", "spot", "edit")


def flat(values: dict, above: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in values.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def different(one: str, other: str) -> dict[str, tuple[object, object]]:
    mine, theirs = flat(preset(one)), flat(preset(other))
    return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}


def test_corpora_differ_as_in_the_released_configurations():
    """Steps and batches count pairs of pictures; the rest is from the release's command lines and files."""
    counted = {"caption.steps", "caption.planned_steps", "caption.validate_every", "caption.batch"}
    spot, edit = (different("reference-clevr", f"reference-{name}") for name in ("spot", "edit"))
    assert {key: value for key, (_, value) in spot.items() if key not in counted} == {
        "dataset.name": "spot_the_diff", "pretrain.layers": 4, "caption.decoder_layers": 3, "evaluate.batch": 64,
    }  # fmt: skip
    assert {key: value for key, (_, value) in edit.items() if key not in counted} == {
        "dataset.name": "image_editing_request", "seed": 42,
    }  # fmt: skip


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_paper_and_its_code_differ_in_the_documented_choices(corpus):
    assert set(different(f"reference-{corpus}", f"paper-{corpus}")) == {
        "sample.draw", "sample.draws", "tokenizer.features",
        "pretrain.encoder.reserved", "pretrain.encoder.special_positions", "pretrain.encoder.queries",
        "pretrain.entire", "pretrain.weights", "pretrain.unseen",
        "caption.imagining.prompt", "caption.imagining.prompt_rows", "caption.imagining.mask_rows",
        "caption.decoding", "caption.label_smoothing", "caption.reduction", "caption.planned_steps",
        "caption.selection",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["reference", "paper"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_every_preset_is_valid_and_has_the_published_sizes(kind, corpus):
    params = check_params(preset(f"{kind}-{corpus}"), kind)
    assert params.prepare.image_size / params.tokenizer.reduction == 14, "tokens per side"
    assert (params.frames, params.interpolate.frames) == (4, 7)
    assert (params.pretrain.learning_rate, params.caption.learning_rate) == (1e-4, 5e-5)
    assert params.caption.encoder_learning_rate == 2e-5, "whatever the release's yaml says"
    assert params.pretrain.warmup * params.pretrain.steps == 5000


SHRUNK = TINY | {
    "dataset.name": "rendered",
    "tokenizer.channels": 32,
    "tokenizer.multipliers": [1, 1, 2, 1],
    "pretrain.layers": 2,
    "pretrain.heads": 4,
    "pretrain.steps": 6,
    "pretrain.warmup": 0.5,
    "pretrain.validate_every": 3,
    "caption.steps": 4,
    "caption.validate_every": 2,
    "sample.draws": 2,
}


@pytest.mark.parametrize("kind", ["reference", "paper"])
def test_all_choices_of_a_preset_work_together(kind, tmp_path):
    """Both stages at toy size, then a caption from the bundle alone."""
    shrunk = SHRUNK | ({"caption.planned_steps": 8} if kind == "reference" else {})
    params, data = with_changes(preset(f"{kind}-clevr"), shrunk), tmp_path / "data"
    tokenised(data, params)
    pretrain.run(params, data)
    caption.run(params, data, captioner="procap")
    for file in ("pretrain/encoder.safetensors", "caption/procap/bundle/captioner.safetensors"):
        assert all(weight.isfinite().all() for weight in load_tensors(data / file)[0].values())
    written = json.loads((data / "caption" / "procap" / "bundle" / "config.json").read_text(encoding="utf-8"))
    config, encoder = written["config"], written["config"]["encoder"]
    assert {key: encoder[key] for key in params.pretrain.encoder.model_dump()} == params.pretrain.encoder.model_dump()
    assert config["imagining"] == {"between": "queries", **params.caption.imagining.model_dump()}
    assert (config["decoding"], config["reduction"]) == (params.caption.decoding, params.caption.reduction)
    assert config["decoder"]["style"] == "reference"
    assert written["vqgan"]["features"] == params.tokenizer.features
    pairs = Pairs.read(data / "prepare").split("test")
    bundle = load_bundle(data / "caption" / "procap" / "bundle", load_midpoint=load_midpoint)
    said = bundle.caption(pairs.before(), pairs.after())
    assert len(said) == len(pairs) > 0
    assert all(0 <= one.probability <= 1 for one in said)
    assert bundle.imagine(pairs.before(), pairs.after()).shape[1] == 2


def documented() -> dict[str, tuple[object, object, object]]:
    """{key: (paper, reference, default)} of the table in docs/reference.md."""
    from ruamel.yaml import YAML

    read, found = YAML(typ="safe").load, {}
    for line in (PROJECT / "docs" / "reference.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 8 and cells[4].startswith("`"):
            found[cells[4].strip("` ")] = tuple(read(cell) for cell in cells[5:])
    return found


def test_the_table_of_differences_says_what_the_presets_say():
    default, table = flat(read_sections(PROJECT / "params.yaml", "safe")), documented()
    paper, reference = (flat(preset(f"{kind}-clevr")) for kind in ("paper", "reference"))
    for key, told in table.items():
        assert told == (paper[key], reference[key], default[key]), key
    assert set(different("reference-clevr", "paper-clevr")) <= set(table), "a difference is missing"
    assert len(table) > 30
