"""A trained language model from a folder: our words as means of its pieces, frozen beside adapters."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from procap.captioners import Decoding
from procap.captioners.answers import STRUCTURE, Grammar
from procap.captioners.ccrc import CCRC
from procap.checkpoints.language_model import PROMPT, language_model_config, load_language_model, refuse_short
from procap.datasets.vocabulary import SPECIALS, Vocabulary
from procap.errors import BadInput
from procap.models.build import build, frozen
from procap.models.language import LanguageConfig, LanguageModel, small_body
from procap.training.bundle import load_bundle, write_bundle
from procap.training.optimiser import make_optimiser
from tests.small import batch_of, ccrc_config, generator, small_vqgan

VOCABULARY = Vocabulary(tuple(f"w{number:02d}" for number in range(12)), 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 and its tokenizer of single characters, as transformers saves them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    signs = "abcdefghijklmnopqrstuvwxyz0123456789 ,.[]ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    tokenizer = Tokenizer(models.WordLevel({sign: number for number, sign in enumerate(signs)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    path = tmp_path_factory.mktemp("language model")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 160, "vocab_size": len(signs)}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=" ").save_pretrained(path)
    return path


def adapted(folder) -> tuple[CCRC, object]:
    pytest.importorskip("peft")
    body, prompt = language_model_config(str(folder))
    config = replace(ccrc_config(), language=LanguageConfig(body, Grammar(20).size, prompt, lora=2))
    model = build(lambda: CCRC(config), generator())
    model.language.adopt(*load_language_model(str(folder), [*SPECIALS, *VOCABULARY.words, *STRUCTURE]))
    return model, config


def test_a_folder_becomes_a_frozen_model_with_adapters_that_learns_and_is_kept(folder, tmp_path):
    from transformers import GPT2LMHeadModel

    model, config = adapted(folder)
    whole = GPT2LMHeadModel.from_pretrained(folder)
    pieces = torch.tensor([["0123456789".index(sign) + 26 for sign in "03"]])
    expected = whole.get_input_embeddings().weight[[36, 22, *pieces[0].tolist()]].mean(0)
    assert torch.allclose(model.language.rows.weight[len(SPECIALS) + 3], expected)
    assert len(model.language.prompt) == len(PROMPT)
    inputs = torch.randn(1, 5, 32, generator=generator())
    same = whole.eval().transformer(inputs_embeds=inputs).last_hidden_state
    assert torch.allclose(model.eval().language(inputs)[0], same, atol=1e-5)
    before = {name: weight.clone() for name, weight in model.language.body.state_dict().items()}
    batch, optimiser = batch_of("ccrc", 4), make_optimiser("adamw", [(model.train(), 1e-2)], weight_decay=0.0)
    losses = []
    for step in range(30):
        optimiser.zero_grad()
        total = sum(model.loss(batch, generator=generator(step)).values())
        total.backward()
        optimiser.step()
        losses.append(total.item())
    assert losses[-1] < 0.5 * losses[0]
    moved = {name for name, weight in model.language.body.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    write_bundle(tmp_path / "bundle", "ccrc", frozen(model), config, small_vqgan(), VOCABULARY, {})
    again = load_bundle(tmp_path / "bundle").captioner
    said = [one.caption(batch.features, decoding=Decoding(), generator=generator()) for one in (model, again)]
    assert said[0] == said[1]


def test_a_folder_without_a_language_model_is_refused(tmp_path, folder):
    with pytest.raises(BadInput, match="cannot be read") as caught:
        language_model_config(str(tmp_path))
    assert "ccrc.language_model" in caught.value.where
    model, _ = adapted(folder)
    body, *rest = load_language_model(str(folder), [*SPECIALS, *VOCABULARY.words, *STRUCTURE])
    del body["h.0.ln_1.weight"]
    with pytest.raises(BadInput, match=r"lacks 1 weights.*h\.0\.ln_1\.weight"):
        model.language.adopt(body, *rest)


@pytest.mark.parametrize("spoil", ["weights cut off", "no weights in it", "no tokenizer", "a word for a width"])
def test_a_folder_that_was_written_by_half_is_refused(tmp_path, folder, spoil):
    half = shutil.copytree(folder, tmp_path / "half")
    match spoil:
        case "weights cut off":
            (half / "model.safetensors").write_bytes((half / "model.safetensors").read_bytes()[:3000])
        case "no weights in it":
            (half / "model.safetensors").write_bytes(b"")
        case "no tokenizer":
            for path in half.glob("*token*"):
                path.unlink()
        case "a word for a width":
            config = json.loads((half / "config.json").read_text())
            (half / "config.json").write_text(json.dumps(config | {"n_embd": "wide"}))
    with pytest.raises(BadInput, match="cannot be read") as caught:
        load_language_model(str(half), ["red"]) if "weights" in spoil else language_model_config(str(half))
    assert str(half) in caught.value.where


def test_a_model_that_reads_too_little_at_once_is_refused(folder):
    body, prompt = language_model_config(str(folder))
    refuse_short(str(folder), body, 160)
    with pytest.raises(BadInput, match="reads 160 pieces at once, and 161 are due"):
        refuse_short(str(folder), body, 161)
    assert prompt == len(PROMPT)


def test_nothing_of_a_body_is_dropped_in_training(folder):
    body = json.loads(language_model_config(str(folder))[0])
    assert body["resid_pdrop"] > 0
    model = LanguageModel(LanguageConfig(json.dumps(body), 20, 1)).train()
    inputs, state = torch.randn(1, 5, 32, generator=generator()), torch.random.get_rng_state()
    assert torch.equal(model(inputs)[0], model(inputs)[0])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_reading_on_is_reading_all_at_once():
    model = build(lambda: LanguageModel(LanguageConfig(small_body(32, 2, 4, 32), 20, 1)), generator()).eval()
    inputs = torch.randn(3, 9, 32, generator=generator())
    whole, _ = model(inputs)
    _, past = model(inputs[:, :6])
    kept = [(keys.clone(), values.clone()) for keys, values in past]
    rest, _ = model(inputs[:, 6:], past)
    assert torch.allclose(rest, whole[:, 6:], atol=1e-5)
    assert all(torch.equal(*each) for pair in zip(past, kept, strict=True) for each in zip(*pair, strict=True))
