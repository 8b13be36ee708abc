"""Weights of others into folders that steps and commands take, and our models into the reference code's files."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from procap.errors import BadInput
from procap.files import atomic_folder, file_digest, write_json

KINDS = {
    "vqgan": "tokenizer.checkpoint: {out}",
    "stage1": "pretrain.checkpoint: {out} and tokenizer.checkpoint: {out}",
    "stage2": "procap caption before.png after.png --model {out}",
    "vfiformer": "interpolate.method: vfiformer and interpolate.checkpoint: {out}",
    "rife": "interpolate.checkpoint: {out}",
}
"""What can be imported, and what to do with it then."""


def import_weights(file: Path, kind: str, out: Path, vocabulary: Path | None = None, vqgan: Path | None = None) -> str:
    """Write the folder ``out`` and say how to go on.

    Raises BadInput for a file that is no checkpoint of this kind; then ``out`` is as it was.
    """
    write: Callable[[Path], None] = {
        "vqgan": lambda fresh: _vqgan(file, fresh),
        "stage1": lambda fresh: _stage1(file, fresh, vqgan),
        "stage2": lambda fresh: _stage2(file, fresh, vocabulary, vqgan),
        "vfiformer": lambda fresh: _vfiformer(file, fresh),
        "rife": lambda fresh: _rife(file, fresh),
    }[kind]
    with atomic_folder(out) as fresh:
        write(fresh)
    return KINDS[kind].format(out=out)


def _vqgan(file: Path, fresh: Path) -> None:
    from procap.checkpoints.vqgan import import_as_trained
    from procap.training.checkpoint import save_tensors

    save_tensors(fresh / "vqgan.safetensors", dict(import_as_trained(file).state_dict()))


def _stage1(file: Path, fresh: Path, vqgan: Path | None) -> None:
    from procap.checkpoints.procap_released import import_stage1
    from procap.training.checkpoint import save_tensors

    encoder, tokenizer = import_stage1(file, vqgan)
    save_tensors(fresh / "encoder.safetensors", dict(encoder.state_dict()))
    write_json(fresh / "encoder.json", asdict(encoder.config))
    save_tensors(fresh / "vqgan.safetensors", dict(tokenizer.state_dict()))
    write_json(fresh / "vqgan.json", asdict(tokenizer.config))


def _stage2(file: Path, fresh: Path, vocabulary: Path | None, vqgan: Path | None) -> None:
    import torch

    from procap.captioners.procap import ProCap
    from procap.checkpoints.procap_released import import_stage2
    from procap.datasets.vocabulary import Vocabulary
    from procap.training.bundle import write_bundle

    if vocabulary is None:
        raise BadInput(
            "a captioner needs the words that its numbers stand for",
            where="--vocabulary",
            expected="the release's JSON file {word: number}, for example clevr_word2idx.json",
            do="name it with --vocabulary",
        )
    network, tokenizer = import_stage2(file, vqgan)
    config = network.config
    words = Vocabulary.read_released(vocabulary, config.decoder.words)
    if len(words) != config.decoder.vocabulary:
        raise BadInput(
            f"a vocabulary of {len(words)} words, marks included, for a captioner of {config.decoder.vocabulary}",
            where=str(vocabulary),
            expected=f"{config.decoder.vocabulary} numbers",
            do="take the file that the captioner was trained with",
        )
    with torch.device("meta"):
        captioner = ProCap(config)
    captioner.network = network
    provenance = {"imported": file.name, "sha256": file_digest(file), "vocabulary": vocabulary.name}
    write_bundle(fresh, "procap", captioner, config, tokenizer, words, provenance)


def _vfiformer(file: Path, fresh: Path) -> None:
    import torch

    from procap.checkpoints.vfiformer import load_vfiformer
    from procap.training.checkpoint import save_tensors

    save_tensors(fresh / "vfiformer.safetensors", dict(load_vfiformer(file, torch.device("cpu")).state_dict()))


def _rife(file: Path, fresh: Path) -> None:
    import torch

    from procap.checkpoints.rife import load_rife
    from procap.training.checkpoint import save_tensors

    save_tensors(fresh / "rife.safetensors", dict(load_rife(torch.device("cpu"), file).state_dict()))


def export_weights(folder: Path, file: Path, vqgan: Path | None = None) -> str:
    """Write ``file`` from a bundle (stage 2), or from a folder with ``encoder.safetensors`` (stage 1); say which.

    ``vqgan`` is a folder with vqgan.safetensors and vqgan.json, for a stage 1 that has none beside it. Raises
    BadInput for a model that the reference code cannot be set to.
    """
    import torch

    kind, content = _exported(folder, vqgan or folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    torch.save(content, partial)
    partial.replace(file)
    return kind


def _exported(folder: Path, tokenizer: Path) -> tuple[str, dict[str, Any]]:
    from procap.checkpoints.procap_released import export_stage1, export_stage2
    from procap.steps.tokenize import load_tokenizer
    from procap.training.bundle import load_bundle

    if (folder / "manifest.json").exists():
        bundle: Any = load_bundle(folder)
        if bundle.name != "procap":
            raise BadInput(
                f"a captioner of the kind {bundle.name}",
                where=str(folder),
                expected="procap, the only one that the reference code knows",
                do="name a bundle of procap",
            )
        return "stage2", export_stage2(bundle.captioner.network, bundle.vqgan, str(folder))
    encoder = _read_encoder(folder)
    if not (tokenizer / "vqgan.json").exists():
        raise BadInput(
            "the reference code keeps a VQGAN in the same file, and there is none here",
            where=str(tokenizer),
            expected="vqgan.json and vqgan.safetensors",
            do="name the folder with --vqgan, for example data/tokenizer",
        )
    return "stage1", export_stage1(encoder, load_tokenizer(tokenizer), str(folder))


def _read_encoder(folder: Path) -> Any:
    import torch

    from procap.models.build import build
    from procap.models.procedure_encoder import EncoderConfig, ProcedureEncoder
    from procap.steps.pretrain import read_sizes
    from procap.training.checkpoint import load_tensors
    from procap.training.restore import from_json

    config = from_json(EncoderConfig, read_sizes(folder), str(folder / "encoder.json"))
    encoder = build(lambda: ProcedureEncoder(config), torch.Generator())
    encoder.load_state_dict(load_tensors(folder / "encoder.safetensors")[0])
    return encoder
