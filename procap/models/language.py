"""An autoregressive language model from ``transformers`` that reads a pair as visual tokens and writes our words."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from procap.errors import BadInput
from procap.models.caption_decoder import Past
from procap.shapes import Float, Tensor


@dataclass(frozen=True)
class LanguageConfig:
    """Which language model, and how it is trained."""

    body: str
    """The configuration of a model of ``transformers``, as JSON; it says sizes and ``model_type``."""
    words: int
    """Words that it knows here, marks and structure included; a row in and a row out for each."""
    prompt: int
    """Vectors between the pair and the answer."""
    lora: int = 0
    """Rank of the adapters that are trained while the body stays as it was; 0: the whole body is trained."""

    @property
    def width(self) -> int:
        """Of the body's vectors."""
        return _width(json.loads(self.body))


def small_body(width: int, layers: int, heads: int, length: int) -> str:
    """The configuration of a small Llama for sequences of ``length``."""
    sizes = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "intermediate_size": 4 * width, "max_position_embeddings": length,
        "initializer_range": width**-0.5, "vocab_size": 1,
    }  # fmt: skip
    return json.dumps(sizes, sort_keys=True)


class LanguageModel(nn.Module):
    """The body of a causal language model between rows of our own words.

    A word is one row in and one row out, whatever pieces the model's own tokenizer would cut it into; the model's own
    tables are left out. With ``lora`` only adapters, the rows and the prompt are trained.
    """

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.body: Any = _body(json.loads(config.body))
        if config.lora:
            _adapt(self.body, config.lora)
        width = config.width
        self.rows = nn.Embedding(config.words, width)
        nn.init.normal_(self.rows.weight, std=width**-0.5)
        self.out = nn.Linear(width, config.words)
        self.prompt = nn.Parameter(torch.randn(config.prompt, width) * width**-0.5)

    def train(self, mode: bool = True) -> "LanguageModel":
        """A frozen body stays in evaluation mode."""
        super().train(mode)
        if self.config.lora:
            self.body.eval()
        return self

    def forward(
        self, inputs: Float[Tensor, "b s d"], past: Past | None = None
    ) -> tuple[Float[Tensor, "b s d"], Past]:
        """(hidden states of new inputs, keys and values of all); ``past`` stays as it is."""
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self.body.config)
        for layer, (keys, values) in enumerate(past or ()):
            cache.update(keys, values, layer)
        found = self.body(inputs_embeds=inputs, cache=cache, use_cache=True)
        return found.last_hidden_state, [(layer.keys, layer.values) for layer in cache.layers]

    @torch.no_grad()
    def looks(self, inputs: Float[Tensor, "b s d"]) -> Float[Tensor, "b s s"]:
        """How much each input takes from each, mean over layers and heads; a pass of its own, as weights are kept."""
        usual = self.body.config._attn_implementation
        self.body.set_attn_implementation("eager")
        try:
            found = self.body(inputs_embeds=inputs, use_cache=False, output_attentions=True)
        finally:
            self.body.set_attn_implementation(usual)
        return torch.stack(found.attentions).mean((0, 2))

    def logits(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return self.out(hidden).float()

    def opening(self, visual: Float[Tensor, "b n d"]) -> Float[Tensor, "b m d"]:
        """Visual tokens and the prompt: what an answer begins after."""
        return torch.cat([visual, self.prompt.expand(len(visual), -1, -1).to(visual.dtype)], dim=1)

    def adopt(self, body: dict[str, Tensor], rows: Tensor, out: Tensor, prompt: Tensor) -> None:
        """Take the weights of a trained language model, and rows for our words and the prompt that were made of its.

        Raises BadInput where a weight is missing or of another shape.
        """
        own = {name.replace(".base_layer.", "."): weight for name, weight in self.body.state_dict().items()
               if "lora_" not in name}  # fmt: skip
        wrong = sorted(name for name, weight in own.items() if name not in body or body[name].shape != weight.shape)
        if wrong:
            raise BadInput(
                f"the language model lacks {len(wrong)} weights that it is said to have: {', '.join(wrong[:3])}",
                where="params.yaml: ccrc.language_model",
                expected="config.json and weights of one model",
                do="download the folder anew",
            )
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(body[name])
            self.rows.weight.copy_(rows)
            self.out.weight.copy_(out)
            self.out.bias.zero_()
            self.prompt.copy_(prompt)


def _width(config: dict[str, Any]) -> int:
    return next(config[name] for name in ("hidden_size", "n_embd", "d_model") if name in config)


def _body(config: dict[str, Any]) -> Any:
    """A transformer without table and head, its weights random and nothing dropped (no global generator)."""
    with _quiet():
        from transformers import AutoConfig, AutoModel

        chosen = AutoConfig.for_model(**config)
        chosen.vocab_size, chosen.pad_token_id, chosen.bos_token_id, chosen.eos_token_id = 1, None, None, None
        for name, value in vars(chosen).items():
            if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
                setattr(chosen, name, 0.0)
        body = AutoModel.from_config(chosen, attn_implementation="sdpa")
    body.set_input_embeddings(nn.Identity())
    return body.float()


def _adapt(body: Any, rank: int) -> None:
    """Freeze the body and put LoRA adapters (Hu et al., 2022) beside its linear layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise BadInput(
            "a frozen language model is trained by adapters, and the package peft is not there",
            where="params.yaml: ccrc.language_model",
            expected="the extra 'lora'",
            do="pip install 'procap[lora]', or leave ccrc.language_model null",
        ) from None
    kinds = {name.rpartition(".")[2]: type(part).__name__ for name, part in body.named_modules()}
    linear = sorted(name for name, kind in kinds.items() if kind in ("Linear", "Conv1D"))
    turned = "Conv1D" in kinds.values()  # GPT-2 keeps its matrices the other way round
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear, fan_in_fan_out=turned), body)
    for name, weight in body.named_parameters():
        weight.requires_grad_("lora_" in name)


@contextmanager
def _quiet() -> Iterator[None]:
    """``transformers`` warns of marks that a body without a table has no use for."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
