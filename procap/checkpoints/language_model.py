"""A trained language model, from a folder or a hub, as what ``procap.models.language`` takes. Read by transformers."""

import json
from typing import Any

import torch

from procap.errors import BadInput
from procap.shapes import Float, Tensor

PROMPT = "Here are two pictures, before and after. Say what changed, and whether the change can be outlined."
_KEY = "ccrc.language_model"


def language_model_config(name: str) -> tuple[str, int]:
    """(configuration as JSON, length of the prompt). Raises BadInput for what is no causal language model."""
    config = _load("AutoConfig", name)
    plain = config.to_dict()
    if not any(size in plain for size in ("hidden_size", "n_embd", "d_model")):
        raise _bad(name, f"a {type(config).__name__} is no language model of one stack")
    prompt = len(_pieces(_load("AutoTokenizer", name), PROMPT))
    if not prompt:
        raise _bad(name, "its tokenizer knows no words; are its files there?")
    return json.dumps(plain, sort_keys=True), prompt


def refuse_short(name: str, body: str, needed: int) -> None:
    """Raise BadInput where the model of this configuration reads fewer than ``needed`` pieces at once."""
    plain = json.loads(body)
    longest = plain.get("n_positions") or plain.get("max_position_embeddings")
    if longest and longest < needed:
        raise _bad(name, f"it reads {longest} pieces at once, and {needed} are due")


def load_language_model(
    name: str, texts: list[str]
) -> tuple[dict[str, Tensor], Float[Tensor, "v d"], Float[Tensor, "v d"], Float[Tensor, "p d"]]:
    """(weights of the body, a row in and a row out per text, the prompt).

    A text's row is the mean of those of the pieces into which the model's own tokenizer cuts it.
    """
    whole, tokenizer = _load("AutoModelForCausalLM", name), _load("AutoTokenizer", name)
    table, head = whole.get_input_embeddings().weight.float(), whole.get_output_embeddings().weight.float()
    pieces = [_pieces(tokenizer, f" {text}") for text in texts]
    rows, out = (torch.stack([weights[some].mean(0) for some in pieces]) for weights in (table, head))
    body = {key: weight.float() for key, weight in whole.base_model.state_dict().items()}
    return body, rows.detach(), out.detach(), table[_pieces(tokenizer, PROMPT)].detach()


def _pieces(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _load(kind: str, name: str) -> Any:
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(name)
    except Exception as error:  # whatever is wrong with the files of others
        raise _bad(name, (str(error).strip() or type(error).__name__).splitlines()[0]) from error


def _bad(name: str, what: str) -> BadInput:
    return BadInput(
        f"the language model cannot be read: {what}",
        where=f"params.yaml: {_KEY}: {name}",
        expected="a folder with config.json, weights and the tokenizer's files, or its name on a hub that is reached",
        do=f"mend the name, or set {_KEY}: null to train a small one",
    )
