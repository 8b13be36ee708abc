"""params.yaml: what is wrong is said with file, key, value and what is allowed; what we ship is right."""

import copy
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from flows.presets import apply_preset
from procap.captioners import CAPTIONERS
from procap.config import Own, Params, check_params, load_params
from procap.errors import BadInput
from procap.steps import STEPS

PROJECT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (PROJECT / "infra" / "presets").glob("*.yaml"))


@pytest.fixture
def raw():
    return YAML(typ="safe").load((PROJECT / "params.yaml").read_text(encoding="utf-8"))


def put(raw: dict, key: str, value: object) -> dict:
    changed = copy.deepcopy(raw)
    *sections, last = key.split(".")
    here = changed
    for section in sections:
        here = here[section]
    here[last] = value
    return changed


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_what_we_ship_is_valid(preset, tmp_path):
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    if preset:
        shutil.copytree(PROJECT / "infra" / "presets", tmp_path / "infra" / "presets")
        assert apply_preset(tmp_path, preset), "it changes something"
    params = load_params(tmp_path / "params.yaml")
    assert params.frames == params.sample.kept + 2


def test_every_step_has_its_section():
    keys = {field.alias or name for name, field in Params.model_fields.items()}
    assert set(STEPS) == keys - {"seed", "replicate", "dataset", "captioners", "hardware", *CAPTIONERS}
    params = load_params(PROJECT / "params.yaml")
    assert all(isinstance(params.section(step), BaseModel) for step in STEPS)


def test_every_registered_captioner_may_be_named(raw):
    params = check_params(put(raw, "captioners", list(CAPTIONERS)), "x")
    assert params.captioners == tuple(CAPTIONERS)
    assert all(isinstance(params.own(name), Own) for name in CAPTIONERS)


def test_what_a_captioner_has_for_itself_goes_before_caption(raw):
    from procap.steps.caption import _settings

    params = check_params(put(raw, "procap", {"steps": 7}), "x")
    assert (_settings(params, "procap").steps, _settings(params, "static").steps) == (7, raw["caption"]["steps"])
    assert _settings(params, "procap").batch == raw["caption"]["batch"]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("pretrain.steps", 0, "greater than or equal to 1"),
        ("pretrain.steps", "many", "valid integer"),
        ("caption.dropout", 1.0, "less than 1"),
        ("caption.weight_decay", float("inf"), "finite number"),
        ("caption.selection", "train", "'val' or 'test'"),
        ("interpolate.frames", 4, "1, 3, 7 or 15"),
        ("hardware.device", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("prepare.image_size", 100, "multiple of 16"),
        ("prepare.scenes.samples", 9, "less than or equal to 8"),
        ("dataset.name", "imagenet", "'rendered'"),
        ("seed", -1, "greater than or equal to 0"),
        ("decider.width", 0, "greater than or equal to 8"),
        ("ccrc.mask_width", 0, "greater than or equal to 8"),
        ("caption.decoder_width", -8, "greater than or equal to 8"),
        ("captioners", "procap", "valid tuple"),
    ],
)
def test_a_wrong_value_is_named(raw, key, value, allowed):
    with pytest.raises(BadInput) as caught:
        check_params(put(raw, key, value), "some/params.yaml")
    assert caught.value.what == f"'{key}' is {value!r}"
    assert caught.value.where == f"some/params.yaml: {key}"
    assert allowed in caught.value.expected


@pytest.mark.parametrize(
    ("key", "near", "known"),
    [
        ("pretrain.step", "steps", "warmup"),
        ("prepare.scenes.cout", "count", "truth"),
        ("captioner", "captioners", "seed"),
    ],
)
def test_an_unknown_key_is_answered_with_its_neighbours(raw, key, near, known):
    with pytest.raises(BadInput) as caught:
        check_params(put(raw, key, 7), "params.yaml")
    assert caught.value.what == f"unknown key '{key}' (value 7); did you mean '{near}'?"
    assert caught.value.where == f"params.yaml: {key}"
    assert known in caught.value.expected


@pytest.mark.parametrize("key", ["pretrain.width", "validate", "register.alias", "prepare.scenes.truth", "seed"])
def test_a_missing_key_is_named(raw, key):
    *sections, last = key.split(".")
    here = raw
    for section in sections:
        here = here[section]
    del here[last]
    with pytest.raises(BadInput) as caught:
        check_params(raw, "params.yaml")
    assert caught.value.what == f"missing key '{key}'"
    assert caught.value.where == f"params.yaml: {key}"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"pretrain.width": 96, "pretrain.heads": 7}, "pretrain.width"),
        ({"caption.decoder_width": 96, "caption.decoder_heads": 7}, "caption.decoder_width"),
        ({"pretrain.masking": [0.5, 0.1, 0.1, 0.1]}, "pretrain.masking"),
        ({"prepare.scenes.splits": [0.5, 0.1, 0.1]}, "prepare.scenes.splits"),
        ({"prepare.scenes.objects": [4, 3]}, "prepare.scenes.objects"),
        ({"sample.kept": 8, "interpolate.frames": 7}, "sample.kept"),
        ({"prepare.image_size": 48, "tokenizer.multipliers": [1, 1, 1, 1, 1, 1]}, "prepare.image_size"),
        ({"interpolate.method": "truth", "prepare.scenes.truth": False}, "interpolate.method"),
        ({"interpolate.method": "truth", "dataset.name": "clevr_change"}, "interpolate.method"),
        ({"caption.between": "frames", "interpolate.method": "truth", "prepare.scenes.truth": True}, "caption.between"),
        ({"interpolate.method": "vfiformer"}, "interpolate.checkpoint"),
        ({"interpolate.method": "h5"}, "interpolate.h5"),
        ({"captioners": ["static", "static"]}, "captioners"),
        ({"ccrc.width": 24, "ccrc.heads": 8, "ccrc.mask_width": 24}, "ccrc.width"),
        ({"caption.planned_steps": 7, "caption.steps": 8}, "caption.planned_steps"),
        ({"pretrain.planned_steps": 7, "pretrain.steps": 8}, "pretrain.planned_steps"),
        ({"caption.decoder": "reference"}, "caption.decoder"),
        ({"evaluate.beams": 3, "caption.decoding": "reference"}, "evaluate.beams"),
        ({"register.alias": "latest"}, "register.alias"),
    ],
)
def test_values_must_fit_together(raw, changes, where):
    for key, value in changes.items():
        raw = put(raw, key, value)
    with pytest.raises(BadInput) as caught:
        check_params(raw, "params.yaml")
    assert caught.value.where == f"params.yaml: {where}"
    value = next(iter(changes.values()))
    assert str(value if not isinstance(value, list) else value[0]) in caught.value.what


@pytest.mark.parametrize(
    ("named", "what", "where"),
    [
        ([], "captioners: [] names none", "captioners"),
        (["static", "procop"], "'captioners.1' is 'procop'", "captioners.1"),
    ],
)
def test_captioners_that_are_none_of_ours_are_told_once(raw, named, what, where):
    with pytest.raises(BadInput) as caught:
        check_params(put(raw, "captioners", named), "params.yaml")
    assert (caught.value.what, caught.value.where) == (what, f"params.yaml: {where}")


def test_several_problems_are_told_at_once(raw):
    with pytest.raises(BadInput) as caught:
        check_params(put(put(raw, "pretrain.steps", 0), "evaluate.beams", 99), "params.yaml")
    assert caught.value.where == "params.yaml: pretrain.steps; params.yaml: evaluate.beams"
    assert "2 problems" in caught.value.do
    assert "'evaluate.beams' is 99" in caught.value.do


@pytest.mark.parametrize(
    ("text", "what"),
    [("- 1\n- 2\n", "a list at the top"), ("seed: [1\n", "not YAML"), ("a: 1\na: 2\n", "not YAML"), ("", "NoneType")],
)
def test_a_file_that_is_no_parameters(tmp_path, text, what):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(BadInput, match=what) as caught:
        load_params(tmp_path / "params.yaml")
    assert caught.value.where == str(tmp_path / "params.yaml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="no parameter file"):
        load_params(tmp_path / "params.yaml")


def test_parameters_do_not_change(raw):
    params = check_params(raw, "x")
    with pytest.raises(ValidationError):
        params.pretrain.steps = 3
