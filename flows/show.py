"""What a bundle, a registered version or a run is, for `procap show`."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from procap.errors import BadInput

EXAMPLES = 4
_RUN = re.compile(r"(?:runs:/)?([0-9a-f]{32})/?")


def describe(what: str, root: Path) -> Iterable[Any]:
    """Things for rich to print. Raises BadInput where there is nothing by that name."""
    if run := _RUN.fullmatch(what):
        yield from _run(run[1], root)
        return
    from procap.captioning.addresses import find_bundle

    fetched = find_bundle(what)
    yield _bundle(what, fetched.folder, fetched.version)
    if fetched.version:
        yield _facts("In the registry", _registered(what, root))
    if fetched.card:
        from rich.markdown import Markdown

        yield Markdown(fetched.card)
    yield from _scores(fetched.folder, root)


def _bundle(what: str, folder: Path, version: str | None) -> Any:
    """Sizes and provenance, from the bundle's own JSON."""
    from procap.training.bundle import bundle_digest, check_manifest

    check_manifest(folder)
    settings, provenance, words = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("config", "provenance", "vocabulary")
    )
    side = settings["vqgan"]["image_size"]
    weights = [_weights(folder / f"{name}.safetensors") for name in ("captioner", "vqgan")]
    parts = {name: of for name, of in settings["config"].items() if isinstance(of, Mapping)}
    others = [f"{name} {value}" for name, value in settings["config"].items() if name not in parts]
    grid = next(of["grid"] for of in parts.values() if "grid" in of)
    frames = parts.get("encoder", {}).get("frames")
    params = provenance.get("params", {})
    own = params.get(settings["captioner"], {})
    facts = {
        "captioner": settings["captioner"] + (f", version {version}" if version else ""),
        "digest": bundle_digest(folder),
        "pictures": f"{side} x {side} pixels, {grid} x {grid} places",
        "frames": f"{frames}, of which {frames - 2} imagined" if frames else None,
        **{name: _size(of) for name, of in parts.items()},
        "settings": ", ".join(others),
        "weights": f"{weights[0]:,} and {weights[1]:,} (VQGAN)",
        "words": f"{len(words['words'])}, at most {words['length'] - 2} in a sentence",
        "no change": _few(provenance.get("no_change")),
        "trained on": provenance.get("dataset"),
        "pairs": (provenance.get("pairs_sha256") or "")[:12],
        "updates": own.get("steps") or params.get("caption", {}).get("steps"),
        "seed": params.get("seed"),
        "selected": f"on {provenance['selected_on']}, CIDEr {provenance['selection_CIDEr']:.1f}"
        if "selection_CIDEr" in provenance
        else None,
        "imported": provenance.get("imported"),
    }
    return _facts(what, facts)


def _size(part: Mapping[str, Any]) -> str | None:
    """Layers and width of a part of a network, where it has any."""
    if "body" in part:
        body = json.loads(part["body"])
        return f"{body['model_type']}, {body['num_hidden_layers']} layers of width {body['hidden_size']}"
    told = [f"{part['layers']} layers"] if "layers" in part else []
    return " of ".join([*told, f"width {part['width']}"]) if "width" in part else None


def _weights(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - not a mapping
    total = 0
    for shape in sizes:
        count = 1
        for side in shape:
            count *= side
        total += count
    return total


def _few(sentences: list[str] | None) -> str | None:
    if not sentences:
        return None
    return f"{len(sentences)} ways to say it: {', '.join(sentences[:3])}" + (", ..." if len(sentences) > 3 else "")


def _registered(address: str, root: Path) -> Mapping[str, Any]:
    from flows.addresses import find_version
    from flows.store import connect

    version = find_version(connect(root), address)
    return {
        "model": f"{version.name}, version {version.version}",
        "aliases": ", ".join(version.aliases),
        "run": version.run_id,
        **dict(sorted(version.tags.items())),
    }


def _scores(folder: Path, root: Path) -> Iterable[Any]:
    """Test scores and examples of an evaluation of this very bundle, where there is one here."""
    from flows.results import read_folder, scores_table
    from procap.files import file_digest

    same = [
        root / "data" / "evaluate" / path.parent.parent.name
        for path in sorted((root / "data" / "caption").glob("*/bundle/manifest.json"))
        if file_digest(path) == file_digest(folder / "manifest.json")
    ]
    for evaluation in same:
        if (evaluation / "metrics.json").exists():
            yield scores_table({evaluation.name: read_folder(evaluation)})
        if (evaluation / "predictions.json").exists():
            yield _examples(json.loads((evaluation / "predictions.json").read_text(encoding="utf-8")))


def _examples(predictions: Mapping[str, Mapping[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("pair", "it says", "one reference", "", title="Examples of the test split")
    names = sorted(predictions)
    for name in names[:: max(1, len(names) // EXAMPLES)][:EXAMPLES]:
        one = predictions[name]
        verdict = "right" if one["type_right"] or (one["change_type"] == "unknown" and one["change_right"]) else "wrong"
        table.add_row(escape(name), escape(one["sentence"]), escape(one["references"][0]), verdict)
    return table


def _run(run_id: str, root: Path) -> Iterable[Any]:
    from mlflow.exceptions import MlflowException

    from flows.addresses import client_of
    from flows.store import show_uri, tracking_uri

    client = client_of(root)
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise BadInput(
            "there is no such run",
            where=f"{run_id}, in {show_uri(tracking_uri(root))}",
            expected="the id of a run",
            do="see `make servers`, or set MLFLOW_TRACKING_URI",
        ) from error
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith(("mlflow.", "dvc."))}
    yield _facts(f"run {run.info.run_name}", {"id": run_id, "status": run.info.status, **dict(sorted(tags.items()))})
    if run.data.params:
        yield _facts("Parameters", dict(sorted(run.data.params.items())))
    if run.data.metrics:
        yield _facts("Numbers", {name: f"{value:.6g}" for name, value in sorted(run.data.metrics.items())})


def _facts(title: str, facts: Mapping[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value not in (None, ""):
            table.add_row(f"[dim]{escape(name)}[/dim]", escape(str(value)))
    return table
