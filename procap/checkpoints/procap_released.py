"""Weights of the released ProCap under our names and back: stage 1 (``dalle.pt``) and stage 2 (``model.chkpt``).

The sizes follow from the tensors' shapes. What cannot be seen there is as in all released configurations: attention
heads of 64.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from procap.checkpoints.reader import ForeignState, read_state
from procap.checkpoints.vqgan import halvings, open_vqgan, vqgan_from_state
from procap.datasets.vocabulary import MASK
from procap.errors import BadInput
from procap.models.build import build
from procap.models.caption_decoder import DecoderConfig
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig, Imagining, ProcedureEncoder
from procap.models.vqgan import VQGAN

RELEASED = "take the file as the reference code wrote it: dalle.pt for stage 1, model.chkpt for stage 2"

HEAD = 64
"""Width of an attention head."""

INNER = "intermediate_generator."
"""Before the names of stage 1 in stage 2."""

TOKENIZER = "vae.model."
"""Before the VQGAN's names."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Released tensors and ours that hold the same numbers.

    Written one after another, row by row, the released ones begin with ours. What they have beyond that is never
    read: it is dropped on the way in and zero on the way out.
    """

    released: Mapping[str, Shape]
    ours: tuple[str, ...] = ()


def released_encoder(sizes: Mapping[str, Any]) -> EncoderConfig:
    """The reference code's procedure encoder of these sizes (``EncoderConfig``'s fields without a default)."""
    return EncoderConfig(
        **sizes, start="usual", activation="quick_gelu", reserved=True, special_positions=True,
        csy_sees="frames", pads="placed", queries="shared", captions=True,
    )  # fmt: skip


def released_captioner(encoder: EncoderConfig, decoder: Mapping[str, Any]) -> EncoderDecoderConfig:
    """The reference code's stage 2 with this encoder and a decoder of these sizes."""
    return EncoderDecoderConfig(
        encoder,
        DecoderConfig(**decoder, style="reference"),
        label_smoothing=0.1,
        reduction="sum",
        imagining=Imagining("queries", "without_align", "first", "shifted"),
        decoding="reference",
    )


def encoder_parts(config: EncoderConfig, text_rows: int) -> Iterator[Part]:
    """Stage 1 without its VQGAN; ``text_rows`` is the height of the table of words."""
    d, c, t, g = config.width, config.feature_width, config.frames, config.grid
    yield Part({"image_mask": (d,)}, ("query",))
    yield Part({"text_emb.weight": (text_rows, d)}, ("word_embedding.weight",))
    yield Part({"text_pos_emb.weight": (config.words, d)}, ("word_positions",))
    yield Part({"image_emb.weight": (config.codes + 2, d)})
    yield from _linear("conv_to_embedding.0", "feature_norm", (c,))
    yield from _linear("conv_to_embedding.1", "feature_embedding", (d, c))
    yield Part({"target_pos_emb.weights.0": (1, t, 1, 1, d)}, ("positions.frame",))
    yield Part({"target_pos_emb.weights.1": (1, 1, g, 1, d)}, ("positions.row",))
    yield Part({"target_pos_emb.weights.2": (1, 1, 1, g, d)}, ("positions.column",))
    yield Part({"special_emb.weight": (5, d)}, ("align", "reserved", "csy"))
    yield Part({"special_pos_emb.weight": (5, d)}, ("special_positions",))
    for i in range(config.layers):
        theirs, ours = f"transformer.transformer.resblocks.{i}.", f"blocks.{i}."
        yield Part({theirs + "attn_mask": (_sequence(config), _sequence(config))})
        for kind, shape in (("weight", (3 * d, d)), ("bias", (3 * d,))):
            pair = f"{ours}attention.query.{kind}", f"{ours}attention.key_value.{kind}"
            yield Part({f"{theirs}attn.in_proj_{kind}": shape}, pair)
        yield from _linear(theirs + "attn.out_proj", ours + "attention.out", (d, d))
        yield from _linear(theirs + "ln_1", ours + "norm_attention", (d,))
        yield from _linear(theirs + "mlp.c_fc", ours + "feed.0", (4 * d, d))
        yield from _linear(theirs + "mlp.c_proj", ours + "feed.2", (d, 4 * d))
        yield from _linear(theirs + "ln_2", ours + "norm_feed", (d,))
    for theirs, ours, rows in (
        ("to_logits", "token_head", config.codes), ("to_logits_rel", "align_head", 1), ("to_logits_vid", "csy_head", 1)
    ):  # fmt: skip
        yield from _linear(f"{theirs}.0", f"{ours}.0", (d,))
        yield from _linear(f"{theirs}.1", f"{ours}.1", (rows, d))


def captioner_parts(config: EncoderDecoderConfig, text_rows: int) -> Iterator[Part]:
    """Stage 2 without its VQGAN."""
    for part in encoder_parts(config.encoder, text_rows):
        names = {INNER + key: shape for key, shape in part.released.items()}
        yield Part(names, tuple(f"encoder.{key}" for key in part.ours))
    width, memory, d, v = (
        config.encoder.width, config.decoder.memory_width, config.decoder.width, config.decoder.vocabulary
    )  # fmt: skip
    yield from _linear("mlp.0", "projection.0", (width, width))
    yield from _linear("mlp.2", "projection.2", (memory, width))
    yield from _linear("mlp.3", "projection.3", (memory,))
    for j in range(config.decoder.layers):
        layer, block = f"text_decoder.decoder.layers.{j}.", f"decoder.blocks.{j}."
        for theirs, ours, norm, read in (
            ("selfattn", "self_attention", "norm_self", d), ("attention", "cross_attention", "norm_cross", memory)
        ):  # fmt: skip
            yield _product(f"{layer}{theirs}.layer.", ("wq",), f"{block}{ours}.query", (d, d))
            yield _product(f"{layer}{theirs}.layer.", ("wk", "wv"), f"{block}{ours}.key_value", (d, read))
            yield _product(f"{layer}{theirs}.layer.", ("wo",), f"{block}{ours}.out", (d, d))
            yield from _norm(f"{layer}{theirs}.layernorm", f"{block}{norm}", d)
        yield from _linear(layer + "feedforward.layer.linear1", block + "feed.0", (4 * d, d))
        yield from _linear(layer + "feedforward.layer.linear2", block + "feed.2", (d, 4 * d))
        yield from _norm(layer + "feedforward.layernorm", block + "norm_feed", d)
    yield Part({"text_decoder.decoder.out.weight": (v, d)}, ("decoder.embedding.weight",))
    yield Part({"text_decoder.decoder.out.bias": (v,)}, ("decoder.bias",))
    yield Part({"text_decoder.loss_func.one_hot": (1, v)})


def _linear(theirs: str, ours: str, shape: Shape) -> Iterator[Part]:
    """A linear layer or a layer norm: ``shape`` is that of the weight."""
    yield Part({f"{theirs}.weight": shape}, (f"{ours}.weight",))
    yield Part({f"{theirs}.bias": shape[:1]}, (f"{ours}.bias",))


def _product(theirs: str, names: tuple[str, ...], ours: str, shape: Shape) -> Part:
    """Linear layers without biases, several of theirs in one of ours."""
    return Part({f"{theirs}{name}.weight": shape for name in names}, (f"{ours}.weight",))


def _norm(theirs: str, ours: str, width: int) -> Iterator[Part]:
    yield from (Part({f"{theirs}.{name}": (width,)}, (f"{ours}.{name}",)) for name in ("gamma", "beta"))


def _sequence(config: EncoderConfig) -> int:
    """Length of stage 1's sequence: [REL] text [ST1] [VID] frames."""
    return 3 + config.words + config.frames * config.grid**2


def encoder_weights(released: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """State of a ``ProcedureEncoder`` from stage 1's tensors under their released names; others are passed over."""
    rows = len(released["text_emb.weight"])
    return _to_ours(encoder_parts(config, rows), released, lambda: ProcedureEncoder(config))


def captioner_weights(released: Mapping[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """State of an ``EncoderDecoder``, as ``encoder_weights``."""
    rows = len(released[INNER + "text_emb.weight"])
    return _to_ours(captioner_parts(config, rows), released, lambda: EncoderDecoder(config))


def _to_ours(parts: Iterable[Part], released: Mapping[str, Tensor], make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in make().state_dict().items()}
    out: dict[str, Tensor] = {}
    for part in parts:
        if part.ours:
            numbers = torch.cat([released[key].flatten() for key in part.released])
            pieces = numbers[: sum(shapes[name].numel() for name in part.ours)]
            sizes = [shapes[name].numel() for name in part.ours]
            out |= {n: piece.view(shapes[n]) for n, piece in zip(part.ours, pieces.split(sizes), strict=True)}
    return out


def _to_released(parts: Iterable[Part], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The released tensors; what ours do not hold is zero."""
    out = {}
    for part in parts:
        sizes = [torch.Size(shape).numel() for shape in part.released.values()]
        numbers = torch.cat([ours[name].flatten() for name in part.ours] or [torch.zeros(0)])
        numbers = torch.cat([numbers, numbers.new_zeros(sum(sizes) - len(numbers))])
        for (key, shape), piece in zip(part.released.items(), numbers.split(sizes), strict=True):
            out[key] = piece.view(shape).clone()
    return out


def import_stage1(path: Path, vqgan: Path | None = None) -> tuple[ProcedureEncoder, VQGAN]:
    """The encoder in a ``dalle.pt`` (key ``weights``), and its VQGAN, or the one in the file ``vqgan``.

    Its words are the release's byte pairs. Raises BadInput for a file that is no such checkpoint, and for keys that
    are missing, unknown or of another shape.
    """
    state = _spelled(read_state(path, expected="a stage 1 of ProCap", do=RELEASED, under=("weights",)))
    sizes = _encoder_sizes(state, "")
    rows = state.shape("text_emb.weight", 2)[0]
    config = released_encoder(_positive(state, sizes | {"vocabulary": rows - sizes["words"] - 1}))
    _check_keys(state, encoder_parts(config, rows), "")
    encoder = build(lambda: ProcedureEncoder(config), torch.Generator())
    encoder.load_state_dict(encoder_weights(state.tensors, config))
    return encoder.eval(), _tokenizer(state, "", config, vqgan)


def import_stage2(path: Path, vqgan: Path | None = None) -> tuple[EncoderDecoder, VQGAN]:
    """The captioner in a ``model.chkpt`` (key ``model``), and its VQGAN, or the one in the file ``vqgan``.

    Of the table of words it keeps the rows that stage 2 reads. Raises as ``import_stage1``.
    """
    state = _spelled(read_state(path, expected="a stage 2 of ProCap", do=RELEASED, under=("model",)))
    sizes = _encoder_sizes(state, INNER)
    v, d = state.shape("text_decoder.decoder.out.weight", 2)
    decoder = {
        "vocabulary": v,
        "words": sizes["words"],
        "memory_width": state.shape("mlp.2.weight", 2)[0],
        "width": d,
        "layers": state.count(r"text_decoder\.decoder\.layers\.(\d+)\."),
        "heads": d // HEAD,
    }
    encoder = released_encoder(_positive(state, sizes) | {"vocabulary": 0})
    config = released_captioner(encoder, _positive(state, decoder) | {"dropout": 0.1})
    rows = state.shape(INNER + "text_emb.weight", 2)[0]
    _check_keys(state, captioner_parts(config, max(rows, encoder.words)), INNER)
    network = build(lambda: EncoderDecoder(config), torch.Generator())
    network.load_state_dict(captioner_weights(state.tensors, config))
    return network.eval(), _tokenizer(state, INNER, encoder, vqgan)


def _spelled(state: ForeignState) -> ForeignState:
    """With axial positions named as axial-positional-embedding 0.3 does, not 0.2."""
    old = re.compile(r"(.*\btarget_pos_emb\.weights)_(\d)")
    return replace(state, tensors={old.sub(r"\1.\2", key): value for key, value in state.tensors.items()})


def _encoder_sizes(state: ForeignState, prefix: str) -> dict[str, int]:
    """``EncoderConfig``'s sizes but ``vocabulary``; 0 where the file has none of something."""
    width = state.shape(prefix + "image_mask", 1)[0]
    return {
        "frames": state.shape(prefix + "target_pos_emb.weights.0", 5)[1],
        "grid": state.shape(prefix + "target_pos_emb.weights.1", 5)[2],
        "feature_width": state.shape(prefix + "conv_to_embedding.0.weight", 1)[0],
        "codes": state.shape(prefix + "to_logits.1.weight", 2)[0],
        "words": state.shape(prefix + "text_pos_emb.weight", 2)[0],
        "width": width,
        "layers": state.count(re.escape(prefix) + r"transformer\.transformer\.resblocks\.(\d+)\."),
        "heads": width // HEAD,
    }


def _positive(state: ForeignState, sizes: dict[str, int]) -> dict[str, Any]:
    if min(sizes.values()) < 1:
        raise state.refusal(f"these are no sizes of {state.expected}: {sizes}")
    return sizes


def _check_keys(state: ForeignState, parts: Iterable[Part], prefix: str) -> None:
    """Every key but the VQGAN's and those that are never read."""
    wanted: dict[str, Shape] = {}
    for part in parts:
        if part.ours:
            wanted |= part.released
        else:
            state = state.without("|".join(re.escape(key) + "$" for key in part.released))
    state.without(re.escape(prefix + TOKENIZER)).check(wanted)


def _tokenizer(state: ForeignState, prefix: str, config: EncoderConfig, other: Path | None) -> VQGAN:
    """The checkpoint's own VQGAN, or the one in the file ``other``."""
    before = prefix + TOKENIZER
    own = {key.removeprefix(before): value for key, value in state.tensors.items() if key.startswith(before)}
    if other is None and not own:
        raise replace(state, do="name the VQGAN's own file with --vqgan").refusal("the checkpoint has no VQGAN in it")
    inner = replace(state, tensors=own) if other is None else open_vqgan(other)
    vqgan = vqgan_from_state(inner, config.grid * 2 ** halvings(inner), features="raw")
    fit = vqgan.config.feature_width, vqgan.config.codes
    if fit != (config.feature_width, config.codes):
        raise inner.refusal(
            f"the VQGAN has features of {fit[0]} and {fit[1]} codes; the encoder reads features of "
            f"{config.feature_width} and tells {config.codes} codes apart"
        )
    return vqgan


def export_stage1(encoder: ProcedureEncoder, vqgan: VQGAN, where: str) -> dict[str, Any]:
    """What the reference code reads as ``dalle.pt``: ``weights`` under its names, sizes, no state of an optimiser.

    Raises BadInput, naming ``where``, for an encoder that the reference code cannot be set to.
    """
    config = encoder.config
    _check_released(config, released_encoder(_sizes_of(config)), vqgan, where)
    parts = encoder_parts(config, config.vocabulary + config.words + 1)
    return {
        "iter": 0,
        "hparams": {
            "num_text_tokens": config.vocabulary, "text_seq_len": config.words, "dim": config.width,
            "num_targets": config.frames, "num_visuals": 0, "vision_layers": config.layers, "rel": True, "vid": True,
            "which_transformer": "openai_clip_visual",
        },
        "vae_params": None,
        "weights": _to_released(parts, encoder.state_dict()) | _tokenizer_out(vqgan, "") | _masks(config, ""),
    }  # fmt: skip


def export_stage2(network: EncoderDecoder, vqgan: VQGAN, where: str) -> dict[str, Any]:
    """What the reference code reads as ``model.chkpt``: ``model`` under its names and the decoder's sizes.

    Raises as ``export_stage1``.
    """
    config = network.config
    encoder, decoder = config.encoder, config.decoder
    released = released_captioner(released_encoder(_sizes_of(encoder)), _sizes_of(decoder))
    released = replace(released, label_smoothing=config.label_smoothing, reduction=config.reduction)
    _check_released(config, released, vqgan, where)
    smoothed = torch.full((1, decoder.vocabulary), config.label_smoothing / (decoder.vocabulary - 1))
    parts = captioner_parts(config, encoder.vocabulary + encoder.words + 1)
    return {
        "model": _to_released(parts, network.state_dict())
        | _tokenizer_out(vqgan, INNER)
        | _masks(encoder, INNER)
        | {"text_decoder.loss_func.one_hot": smoothed},
        "model_cfg": {
            "hidden_size": decoder.width, "intermediate_size": 4 * decoder.width, "vocab_size": decoder.vocabulary,
            "num_hidden_layers": decoder.layers, "num_attention_heads": decoder.heads, "max_t_len": decoder.words,
            "max_v_len": encoder.frames, "hidden_dropout_prob": decoder.dropout,
            "label_smoothing": config.label_smoothing, "mask_token_id": MASK,
        },
        "epoch": 0,
    }  # fmt: skip


def _sizes_of(config: Any) -> dict[str, Any]:
    """The fields without a default."""
    return {field.name: getattr(config, field.name) for field in fields(config) if field.default is MISSING}


def _check_released(config: Any, released: Any, vqgan: VQGAN, where: str) -> None:
    has = {**_flat(asdict(config)), "tokenizer.features": vqgan.config.features}
    due = {**_flat(asdict(released)), "tokenizer.features": "raw"}
    for name in [name for name in has if re.search(r"(^|\.)heads$", name)]:
        due[name] = has[name.replace("heads", "width")] / HEAD
    if different := [f"{name} is {value}, not {due[name]}" for name, value in has.items() if value != due[name]]:
        raise BadInput(
            f"the reference code cannot compute what this model does: {', '.join(different)}",
            where=where,
            expected="a model of the released kind: `procap preset reference-clevr`, or one that was imported",
            do="train with a reference preset, then export",
        )


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return out


def _masks(config: EncoderConfig, prefix: str) -> dict[str, Tensor]:
    """The reference's buffers: what [ST1] and [VID] do not see, in every block."""
    mask = torch.zeros(_sequence(config), _sequence(config))
    for row in (1 + config.words, 2 + config.words):
        mask[row, :row] = -torch.inf
    return {f"{prefix}transformer.transformer.resblocks.{i}.attn_mask": mask for i in range(config.layers)}


def _tokenizer_out(vqgan: VQGAN, prefix: str) -> dict[str, Tensor]:
    return {prefix + TOKENIZER + key: value for key, value in vqgan.state_dict().items()}
