"""Bundles as versions of a registered model: one per digest, and no name tag for a model that was not seen to work."""

import base64
import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.evidence import Evidence, keep
from flows.store import AWAY, patiently
from procap.errors import BadInput

SERVED = Path(__file__).parent / "serving" / "model.py"

NEEDED = ("einops", "jaxtyping", "mlflow", "numpy", "pandas", "pillow", "safetensors", "torch")
"""Distributions that a served bundle imports."""

DIGEST, VERIFIED = "procap.bundle", "procap.verified"


@patiently()
def register(
    client: Any,
    run_id: str,
    bundle: Path,
    name: str,
    tags: Mapping[str, str],
    alias: str | None,
    evidence: Evidence | None = None,
) -> dict[str, Any]:
    """Make a version of ``name`` from a bundle, or find the one that holds it already; then set the alias.

    The version is loaded back and asked for one caption before it counts; ``evidence`` is kept beside it.
    Raises BadInput where that fails; the alias then stays where it was.
    """
    from procap.training.bundle import bundle_digest

    digest = bundle_digest(bundle)
    found = find_version(client, name, digest)
    if found is None:
        found = _log_version(client, run_id, bundle, name, dict(tags) | {DIGEST: digest})
    if found.tags.get(VERIFIED) != "true":
        example = ask(f"models:/{name}/{found.version}")
        client.set_model_version_tag(name, found.version, VERIFIED, "true")
        client.set_model_version_tag(name, found.version, "procap.example", example)
    if evidence is not None:
        keep(client, run_id, found, evidence)
        for key in (key for key in tags if key.startswith("test.")):
            client.set_model_version_tag(name, found.version, key, tags[key])
    if alias:
        client.set_registered_model_alias(name, alias, found.version)
    return {"name": name, "version": int(found.version), "alias": alias, "digest": digest, "run": found.run_id}


def find_version(client: Any, name: str, digest: str) -> Any:
    """The newest version made from the bundle with this digest, or None."""
    versions = client.search_model_versions(f"name = '{name}' and tags.`{DIGEST}` = '{digest}'")
    return max(versions, key=lambda one: int(one.version), default=None)


def ask(uri: str) -> str:
    """Load a model by its address, as a user would, and return its caption of the example pair.

    Raises BadInput where it cannot be loaded or does not answer as promised; MLflow's error where the store is away.
    """
    try:
        (caption,) = answers(uri, example_input())
    except Exception as error:
        if AWAY in str(error):
            raise
        raise BadInput(
            f"the registered model does not work: {error}",
            where=uri,
            expected="a model that loads and captions a pair",
            do="see the run's log; the alias stays where it was",
        ) from error
    return caption


@patiently()
def answers(uri: str, pairs: Any) -> list[str]:
    """What a model, loaded by its address, says of each row of ``pairs``; ValueError where that is no caption."""
    import mlflow

    with no_pickle(), _quietly():
        table = mlflow.pyfunc.load_model(uri).predict(pairs)
    for caption, probability in zip(table["caption"], table["probability"], strict=True):
        if not isinstance(caption, str) or not 0 <= probability <= 1:
            raise ValueError(f"it answers {caption!r} with probability {probability!r}")
    return list(table["caption"])


def example_input() -> Any:
    """One pair of small pictures, a square that turns from red to blue, as the model takes it."""
    import pandas as pd
    from PIL import Image

    def encoded(colour: tuple[int, int, int]) -> str:
        picture, file = Image.new("RGB", (32, 32), (128, 128, 128)), io.BytesIO()
        picture.paste(colour, (10, 10, 22, 22))
        picture.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")

    return pd.DataFrame({"before": [encoded((200, 30, 30))], "after": [encoded((30, 30, 200))]})


def _log_version(client: Any, run_id: str, bundle: Path, name: str, tags: dict[str, str]) -> Any:
    """Log the bundle as a pyfunc model of the run and make a version of it; nothing is known of it yet."""
    import mlflow

    import procap

    with no_pickle(), _quietly(), mlflow.start_run(run_id=run_id):
        logged = mlflow.pyfunc.log_model(
            name=f"{name}-{tags.get('captioner', 'model')}",
            python_model=str(SERVED),
            artifacts={"bundle": str(bundle.resolve())},
            code_paths=[str(Path(procap.__file__).parent)],
            pip_requirements=[f"{package}=={version(package).split('+')[0]}" for package in NEEDED],
            signature=signature(),
            input_example=example_input(),
            registered_model_name=name,
            tags=tags,
        )
    return client.get_model_version(name, str(logged.registered_model_version))


def signature() -> Any:
    """What the model takes and gives."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, DataType

    return ModelSignature(
        inputs=Schema([ColSpec("string", "before"), ColSpec("string", "after")]),
        outputs=Schema(
            [
                ColSpec("string", "caption"),
                ColSpec("double", "probability"),
                ColSpec("double", "change_probability", required=False),
                ColSpec(Array(DataType.string), "words"),
                ColSpec(Array(DataType.double), "word_probabilities"),
            ]
        ),
        params=ParamSchema([ParamSpec("paths", "boolean", False), ParamSpec("beams", "long", 1)]),
    )


@contextmanager
def no_pickle() -> Iterator[None]:
    """MLflow may unpickle nothing inside."""
    key = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
    before = os.environ.get(key)
    os.environ[key] = "false"
    try:
        yield
    finally:
        os.environ.pop(key) if before is None else os.environ.update({key: before})


@contextmanager
def _quietly() -> Iterator[None]:
    """Without MLflow's advice on type hints (the signature is explicit) and its word on each new version."""
    import warnings

    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
