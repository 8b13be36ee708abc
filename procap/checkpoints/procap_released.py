"""Weights of the released ProCap under our names: stage 1 (``dalle.pt``) and stage 2 (``model.chkpt``)."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

RENAMED = {
    "image_mask": "query",
    "text_pos_emb.weight": "word_positions",
    "conv_to_embedding.0": "feature_norm",
    "conv_to_embedding.1": "feature_embedding",
    "to_logits": "token_head",
    "to_logits_rel": "align_head",
    "to_logits_vid": "csy_head",
}
BLOCK = {"ln_1": "norm_attention", "ln_2": "norm_feed", "attn.out_proj": "attention.out", "mlp.c_fc": "feed.0",
         "mlp.c_proj": "feed.2"}  # fmt: skip
NORMS = {"selfattn": "norm_self", "attention": "norm_cross", "feedforward": "norm_feed"}
ATTENTIONS = {"selfattn": "self_attention", "attention": "cross_attention"}
FEED = {"linear1": "feed.0", "linear2": "feed.2"}


def encoder_weights(released: Mapping[str, Tensor], vocabulary: int, words: int = 24) -> dict[str, Tensor]:
    """State of a ``ProcedureEncoder`` with ``pads: placed``, ``reserved`` and ``special_positions``.

    ``vocabulary`` is 49408 for stage 1; 0 keeps the rows that stage 2 reads, the first ``words``.
    """
    table, specials = released["text_emb.weight"], released["special_emb.weight"]
    out = {
        "word_embedding.weight": table[: vocabulary + words],
        "special_positions": released["special_pos_emb.weight"][:3],
    }
    out |= dict(zip(("align", "reserved", "csy"), specials, strict=False))
    for axis, name in enumerate(("frame", "row", "column")):
        out[f"positions.{name}"] = _either(
            released, f"target_pos_emb.weights.{axis}", f"target_pos_emb.weights_{axis}"
        )[0]
    for key, value in released.items():
        part, _, rest = key.rpartition(".")
        if key in RENAMED:
            out[RENAMED[key]] = value
        elif part in RENAMED:
            out[f"{RENAMED[part]}.{rest}"] = value
        elif (head := re.match(r"(to_logits\w*)\.(.*)", key)) is not None:
            out[f"{RENAMED[head[1]]}.{head[2]}"] = value
        elif (block := re.match(r"transformer\.transformer\.resblocks\.(\d+)\.(.*)", key)) is not None:
            out |= _block(f"blocks.{block[1]}.", block[2], value)
    return out


def _block(ours: str, key: str, value: Tensor) -> dict[str, Tensor]:
    part, _, rest = key.rpartition(".")
    if part in BLOCK:
        return {f"{ours}{BLOCK[part]}.{rest}": value}
    if key.startswith("attn.in_proj_"):
        width, kind = len(value) // 3, key.removeprefix("attn.in_proj_")
        return {f"{ours}attention.query.{kind}": value[:width], f"{ours}attention.key_value.{kind}": value[width:]}
    return {}


def captioner_weights(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State of an ``EncoderDecoder`` whose encoder knows no words (``vocabulary`` 0) and decoder is the reference's."""
    inner = "intermediate_generator."
    encoder = {key.removeprefix(inner): value for key, value in released.items() if key.startswith(inner)}
    out = {f"encoder.{key}": value for key, value in encoder_weights(encoder, 0).items()}
    for key, value in released.items():
        if key.startswith("mlp."):
            out["projection." + key.removeprefix("mlp.")] = value
        elif (layer := re.match(r"text_decoder\.decoder\.layers\.(\d+)\.(\w+)\.(.*)", key)) is not None:
            out |= _layer(released, f"decoder.blocks.{layer[1]}.", layer[2], layer[3], key)
    out["decoder.embedding.weight"] = released["text_decoder.decoder.out.weight"]
    out["decoder.bias"] = released["text_decoder.decoder.out.bias"]
    return out


def _layer(released: Mapping[str, Tensor], ours: str, part: str, key: str, whole: str) -> dict[str, Tensor]:
    kind, _, rest = key.removeprefix("layer.").rpartition(".")
    value = released[whole]
    if kind == "layernorm":
        return {f"{ours}{NORMS[part]}.{rest}": value}
    if part == "feedforward":
        return {f"{ours}{FEED[kind]}.{rest}": value}
    name = f"{ours}{ATTENTIONS[part]}."
    match kind:
        case "wq":
            return {f"{name}query.weight": value}
        case "wo":
            return {f"{name}out.weight": value}
        case "wk":
            return {f"{name}key_value.weight": torch.cat([value, released[whole.replace(".wk.", ".wv.")]])}
    return {}


def _either(released: Mapping[str, Tensor], *names: str) -> Tensor:
    return next(released[name] for name in names if name in released)
