"""A trained captioner on a page of Markdown: what it is for, what it learnt from, how well, and where it came from."""

from collections.abc import Mapping, Sequence
from typing import Any

from procap.evaluation.metrics import NAMES, SCALE

ACCURACIES = {
    "change_accuracy": "change or not",
    "change_type_accuracy": "type of change",
    "referring_accuracy": "points at the right object",
}


def model_card(
    name: str,
    captioner: str,
    metrics: Mapping[str, Any],
    validation: Mapping[str, Any] | None,
    lineage: Mapping[str, Any],
) -> str:
    """The card of one bundle; ``metrics`` is its metrics.json, ``validation`` the corpus' report.json.

    ``lineage`` has params, git, bundle, steps, versions and machine, as ``flows.evidence`` collects them.
    """
    params, git = lineage["params"], lineage["git"]
    corpus, side = params["dataset"]["name"], params["prepare"]["image_size"]
    dirty = ", with changes" if git.get("git.dirty") == "true" else ""
    blocks = [
        f"# {name}: {captioner}\n\nTwo pictures of one place in, one English sentence out that says what changed "
        "between them, or that nothing did.",
        "## Use\n\nPictures like those it was trained on "
        f"(corpus `{corpus}`), resized to {side}x{side}; the earlier one first. On other pictures its sentences are "
        "fluent and unfounded. It states no reason and measures nothing; don't let it decide alone where a missed or "
        "invented change does harm.",
        _scores(metrics),
        _types(metrics),
        _validation(validation),
        _training(captioner, params),
        "## Where it comes from\n\n"
        + _table(
            ("what", "value"),
            [
                ("bundle (sha256)", f"`{lineage['bundle']}`"),
                ("commit", f"`{git.get('git.commit', 'none')}`" + dirty),
                ("seed, replicate", f"{params['seed']}, {params['replicate']}"),
                ("test data (sha256)", f"`{lineage['test_data']}`"),
                ("made with", ", ".join(f"{key} {value}" for key, value in lineage["versions"].items())),
                ("made on", ", ".join(f"{value}" for value in lineage["machine"].values())),
            ],
        ),
        f"`procap lineage models:/{name}/<version>` prints all of it and the commands that rebuild the model.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _scores(metrics: Mapping[str, Any]) -> str:
    rows = []
    for key, means in ACCURACIES.items():
        if key in metrics:
            low, high = metrics[f"{key}_interval"]
            rows.append((means, f"{100 * metrics[key]:.1f} %", f"[{100 * low:.1f}, {100 * high:.1f}]"))
    for key in (key for key in NAMES if key in metrics):
        bounds = metrics.get(f"{key}_interval")
        rows.append((key, f"{metrics[key]:.1f}", f"[{bounds[0]:.1f}, {bounds[1]:.1f}]" if bounds else ""))
    skipped = "".join(f"\n- {key} left out: {why}" for key, why in sorted(metrics.get("skipped", {}).items()))
    head = f"## Scores\n\n{metrics['pairs']} pairs of the test split, which nothing was chosen on.\n\n"
    return head + _table(("metric", "score", "95 %"), rows) + f"\n\n{SCALE}" + (f"\n{skipped}" if skipped else "")


def _types(metrics: Mapping[str, Any]) -> str:
    rows = []
    for kind, of in metrics["per_type"].items():
        low, high = of["accuracy_interval"]
        rows.append(
            (kind, str(of["count"]), f"{100 * of['accuracy']:.1f} %", f"[{100 * low:.1f}, {100 * high:.1f}]")
        )
    return "By change type (right about the type):\n\n" + _table(("type", "pairs", "right", "95 %"), rows)


def _validation(report: Mapping[str, Any] | None) -> str:
    if report is None:
        return "## Data\n\nNo validation report is known."
    broken = [rule["says"] for rule in report["rules"].values() if not rule["success"]]
    text = f"## Data\n\n{report['critical']} critical rules and {report['warnings']} others were broken."
    return text + "".join(f"\n- not so: {says}" for says in broken)


def _training(captioner: str, params: Mapping[str, Any]) -> str:
    stage = params["caption"]
    rows = [
        ("captioner", captioner),
        ("frames between", f"{params['interpolate']['frames']} by {params['interpolate']['method']}"),
        ("kept frames", str(params["sample"]["kept"])),
        ("stage 1", f"{params['pretrain']['steps']} updates, batch {params['pretrain']['batch']}"),
        ("stage 2", f"{stage['steps']} updates, batch {stage['batch']}, {stage['optimiser']}"),
        ("weights picked on", "validation" if stage["selection"] == "val" else f"**{stage['selection']}**"),
    ]
    return "## Training\n\n" + _table(("what", "value"), rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
