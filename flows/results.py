"""What came out: scores of the test split and registered versions, as tables to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from procap.errors import BadInput

if TYPE_CHECKING:  # these load torch, and the pipeline's flow wants the scores alone
    from procap.evaluation.comparison import Comparison
    from procap.evaluation.quality import Finding

SHOWN = (
    "change_accuracy",
    "change_type_accuracy",
    "referring_accuracy",
    "BLEU-1",
    "BLEU-2",
    "BLEU-3",
    "BLEU-4",
    "METEOR",
    "ROUGE-L",
    "CIDEr",
    "SPICE",
    "scene_graph_f1",
    "sentence_similarity",
)

COMPARED = ("change_accuracy", "change_type_accuracy", "METEOR", "CIDEr")


def read_scores(root: Path) -> dict[str, dict[str, Any]]:
    """{captioner: metrics.json} of ``data/evaluate``; metrics that were skipped are absent."""
    paths = sorted((root / "data" / "evaluate").glob("*/metrics.json"))
    return {path.parent.name: read_folder(path.parent) for path in paths}


def read_folder(folder: Path) -> dict[str, Any]:
    """``metrics.json`` of one evaluation."""
    scores: dict[str, Any] = read_result(folder / "metrics.json")
    return scores


def read_result(path: Path) -> Any:
    """A JSON file that a step wrote. Raises BadInput where it is not there, or is torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot be read: {error}",
            where=str(path),
            expected="the file as the step wrote it, such as those of data/evaluate/<captioner>",
            do="run `dvc repro`, which makes it again, or takes it from the cache",
        ) from None


def read_versions(root: Path) -> list[dict[str, Any]]:
    """``data/register/versions.json``, best first; empty before the first registration."""
    path = root / "data" / "register" / "versions.json"
    return read_result(path) if path.exists() else []


def skipped_metrics(root: Path) -> dict[str, str]:
    """{metric: why it was not computed}."""
    paths = sorted((root / "data" / "evaluate").glob("*/metrics.json"))
    return {k: v for path in paths for k, v in read_result(path).get("skipped", {}).items()}


def scores_table(scores: dict[str, dict[str, Any]]) -> Any:
    """A rich table with a row per metric and a column per captioner, 95 % intervals in brackets."""
    from rich.table import Table

    from procap.evaluation.metrics import SCALE

    table = Table("metric", *scores, title="Test split", caption=SCALE)
    for name in SHOWN:
        if any(name in one for one in scores.values()):
            table.add_row(name, *(_cell(name, one) for one in scores.values()))
    return table


def findings_table(broken: Sequence["Finding"]) -> Any:
    """A rich table with a row per broken rule, critical ones first."""
    from rich.table import Table

    table = Table("severity", "not so", "broken by", "such as")
    for each in sorted(broken, key=lambda each: each.rule.severity):
        more = ", ..." if len(each.offenders) > 3 else ""
        table.add_row(
            each.rule.severity,
            escape(each.rule.says),
            f"{each.unexpected} of {each.checked}",
            escape(", ".join(each.named[:3]) + more),
        )
    return table


def versions_table(versions: list[dict[str, Any]]) -> Any:
    """A rich table of the registered versions."""
    from rich.table import Table

    table = Table("model", "version", "alias", "captioner", "bundle", title="Registered")
    for one in versions:
        table.add_row(one["name"], str(one["version"]), one.get("alias") or "", one["captioner"], one["digest"][:12])
    return table


def comparison_table(comparison: "Comparison", base: str) -> Any:
    """A rich table with a row per system; a difference whose interval excludes zero is bold."""
    from rich.table import Table

    from procap.evaluation.comparison_page import texts

    metrics = [metric for metric in COMPARED if any(metric in cells for cells in comparison.values())]
    table = Table("", *metrics, title=f"Mean ± deviation over trainings; difference from {base} [95 % interval]")
    for name, cells in comparison.items():
        shown = [texts(metric, cells.get(metric)) for metric in metrics]
        looks = ["bold" if metric in cells and cells[metric].differs else "dim" for metric in metrics]
        differences = [f"[{look}]{escape(text)}[/{look}]" for look, (_, text) in zip(looks, shown, strict=True)]
        table.add_row(
            escape(name), *("\n".join((value, text)) for (value, _), text in zip(shown, differences, strict=True))
        )
    return table


def _cell(name: str, scores: Mapping[str, Any]) -> str:
    if name not in scores:
        return "-"
    share = name.endswith("accuracy")
    scale, unit = (100, " %") if share else (1, "")
    bounds = [f"{scale * bound:.1f}" for bound in scores.get(f"{name}_interval", ())]
    text = f"{100 * scores[name]:.1f}{unit}" if share else f"{scores[name]:.2f}"
    return text + (escape(f" [{', '.join(bounds)}]") if bounds else "")
