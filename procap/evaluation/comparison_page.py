"""A comparison to read: as Markdown, as a table of numbers, and as one HTML page that needs no network."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8

from procap.evaluation.comparison import ACCURACIES, MEASURES, Cell, Comparison, System, per_type
from procap.evaluation.embedded import picture
from procap.evaluation.metrics import SCALE
from procap.evaluation.page_template import STYLE

SHOWN = (*ACCURACIES, "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "scene_graph_f1", "sentence_similarity")
LABELS = {
    "change_accuracy": "change / none, %",
    "change_type_accuracy": "change type, %",
    "referring_accuracy": "right object, %",
}

Curve = Sequence[tuple[int, float]]
"""(update, CIDEr on the validation split)"""


@dataclass(frozen=True)
class Shown:
    """A pair that is shown, with what each system says of it."""

    id: str
    actual: str
    references: Sequence[str]
    said: Sequence[tuple[str, str, bool]]
    """(system, sentence of its first training, whether the type is right)"""
    before: UInt8[np.ndarray, "h w 3"]
    after: UInt8[np.ndarray, "h w 3"]


def findings(comparison: Comparison, base: str) -> list[str]:
    """A sentence per system and main metric; a difference is called one only where its interval excludes zero."""
    said = []
    for metric in ("CIDEr", "change_type_accuracy", "change_accuracy"):
        for name, cells in comparison.items():
            cell = cells.get(metric)
            if cell is None or cell.interval is None or cell.difference is None:
                continue
            scale = _scale(metric)
            low, high = (scale * bound for bound in cell.interval)
            verdict = "differs from" if cell.differs else "is not shown to differ from"
            said.append(
                f"{LABELS.get(metric, metric)}: {name} {verdict} {base}: "
                f"{scale * cell.difference:+.1f} [{low:+.1f}, {high:+.1f}]"
            )
    return said


def markdown(title: str, about: str, comparison: Comparison, base: str, missing: Sequence[str]) -> str:
    """Title, table, what it says, and what is missing in it."""
    metrics = _metrics(comparison)
    published = _published(comparison)
    heads = ["", *(LABELS.get(metric, metric) for metric in metrics), *(f"{metric}, paper" for metric in published)]
    lines = [f"# {title}", "", *([about[0].upper() + about[1:] + ".", ""] if about else []), _row(heads)]
    lines.append(_row(["---"] * len(heads)))
    for name, cells in comparison.items():
        values = ["<br>".join(filter(None, texts(metric, cells.get(metric)))) for metric in metrics]
        figures = [_figure(cells[metric].published) for metric in published]
        lines.append(_row([f"{name} (base)" if name == base else name, *values, *figures]))
    lines += ["", EXPLAINED.format(base=base), "", *(f"- {one}" for one in findings(comparison, base))]
    if missing:
        lines += ["", "Missing: " + ", ".join(missing)]
    return "\n".join(lines) + "\n"


def rows(comparison: Comparison) -> list[list[Any]]:
    """A heading, then a row per system and metric, as the metrics' own numbers (shares in [0, 1], scores x100)."""
    found: list[list[Any]] = [
        ["system", "metric", "mean", "deviation", "trainings", "difference", "low", "high", "differs", "paper"]
    ]
    for name, cells in comparison.items():
        for metric, cell in cells.items():
            low, high = cell.interval or (None, None)
            numbers = [cell.mean, cell.deviation, len(cell.values), cell.difference, low, high]
            plain = [round(one, 6) if isinstance(one, float) else one for one in numbers]
            found.append([name, metric, *plain, cell.differs if cell.interval else None, cell.published])
    return found


def page(
    title: str,
    about: str,
    systems: Sequence[System],
    comparison: Comparison,
    base: str,
    curves: Mapping[str, Sequence[Curve]],
    examples: Sequence[Shown],
    missing: Sequence[str],
) -> str:
    """The whole comparison as HTML; ``curves`` has one per training of a system."""
    from jinja2 import Environment, StrictUndefined

    metrics, published = _metrics(comparison), _published(comparison)
    types = {system.name: per_type(system) for system in systems}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(
        title=title,
        about=about,
        explained=EXPLAINED.format(base=base),
        base=base,
        heads=[LABELS.get(metric, metric) for metric in metrics],
        published=published,
        rows=[
            {
                "name": name,
                "cells": [(*texts(metric, cells.get(metric)), _look(cells.get(metric))) for metric in metrics],
                "paper": [_figure(cells[metric].published) for metric in published],
                "trainings": len(cells[metrics[0]].values),
            }
            for name, cells in comparison.items()
        ],
        findings=findings(comparison, base),
        missing=missing,
        kinds=list(dict.fromkeys(kind for shares in types.values() for kind in shares)),
        types=types,
        curves=_address(_draw(curves)) if any(curves.values()) else None,
        pairs=len(systems[0].predictions[0]),
        examples=[
            {**vars(one), "before": picture(one.before), "after": picture(one.after)} for one in examples
        ],
    )  # fmt: skip


def _metrics(comparison: Comparison) -> list[str]:
    return [metric for metric in SHOWN if any(metric in cells for cells in comparison.values())]


def _published(comparison: Comparison) -> list[str]:
    """Metrics for which some system has a published figure."""
    known = {metric for cells in comparison.values() for metric, cell in cells.items() if cell.published is not None}
    return [metric for metric in MEASURES if metric in known]


def _scale(metric: str) -> int:
    return 100 if metric in ACCURACIES else 1


def texts(metric: str, cell: Cell | None) -> tuple[str, str]:
    """Mean and deviation; difference and interval, marked * where it excludes zero."""
    if cell is None:
        return "-", ""
    scale = _scale(metric)
    value = f"{scale * cell.mean:.1f}" + (f" ± {scale * cell.deviation:.1f}" if cell.deviation is not None else "")
    if cell.difference is None:
        return value, ""
    difference = f"{scale * cell.difference:+.1f}"
    if cell.interval is not None:
        difference += " [{:+.1f}, {:+.1f}]".format(*(scale * bound for bound in cell.interval))
    return value, difference + (" *" if cell.differs else "")


def _look(cell: Cell | None) -> str:
    if cell is None or not cell.differs:
        return "soft"
    return "right" if (cell.difference or 0) > 0 else "wrong"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _draw(curves: Mapping[str, Sequence[Curve]]) -> Any:
    """A colour per system, a thin line per training (matplotlib figure)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, trainings) in enumerate(curves.items()):
        for training, points in enumerate(trainings):
            label = name if not training else None
            axes.plot(*zip(*points, strict=True), color=f"C{number % 10}", linewidth=1.2, alpha=0.8, label=label)
    axes.set_xlabel("update of stage 2")
    axes.set_ylabel("CIDEr, validation")
    axes.legend(fontsize="small", frameon=False)
    return figure


def _address(figure: Any) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


EXPLAINED = (
    "Means over the trainings of a row, ± their standard deviation. Below: the difference from {base}, with 95 % "
    "bounds of a paired bootstrap (10,000 draws of test pairs, those that share a picture together, and of trainings). "
    "A difference is called one only where its interval excludes zero: marked *. "
    f"{SCALE} BLEU and METEOR are not means over pairs and have no interval."
)

TEMPLATE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>"""
    + STYLE
    + """
.numbers td, .numbers th { text-align: right; vertical-align: top; }
.numbers th:first-child { text-align: left; }
.numbers tr + tr td, .numbers tr + tr th { border-top: 1px solid var(--line); }
.numbers small { display: block; white-space: nowrap; }
.numbers .right { color: var(--right); } .numbers .wrong { color: var(--wrong); }
.curves { width: 100%; max-width: 880px; border-radius: 6px; }
.panel + .panel { margin-top: 1rem; }
.saying { display: flex; justify-content: space-between; gap: 1rem; border-top: 1px solid var(--line); }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<div class="soft">{{ about }}{{ "; " if about }}{{ pairs }} pairs of the test split</div>

<h2>Scores</h2>
<section class="panel">
<table class="numbers">
<tr><th></th><th>trainings</th>{% for head in heads %}<th>{{ head }}</th>{% endfor %}
{% for metric in published %}<th>{{ metric }}, paper</th>{% endfor %}</tr>
{% for row in rows %}
<tr><th>{{ row.name }}{{ " (base)" if row.name == base }}</th><td>{{ row.trainings }}</td>
{% for value, difference, look in row.cells %}
<td>{{ value }}<small class="{{ look }}">{{ difference }}</small></td>
{% endfor %}
{% for figure in row.paper %}
<td>{{ figure }}</td>
{% endfor %}
</tr>
{% endfor %}
</table>
<p class="soft">{{ explained }}</p>
{% if missing %}
<p><b>Missing:</b> {{ missing|join(", ") }}</p>
{% endif %}
</section>
{% if findings %}

<h2>What the intervals say</h2>
<ul class="notes">
{% for one in findings %}
<li>{{ one }}</li>
{% endfor %}
</ul>
{% endif %}

<h2>Right about the type, by change type</h2>
<section class="panel">
<table>
<tr><th></th>{% for kind in kinds %}<th>{{ kind }}</th>{% endfor %}</tr>
{% for name, shares in types.items() %}
<tr><th>{{ name }}</th>
{% for kind in kinds %}
<td><div style="display: flex; align-items: center; gap: .4rem"><span class="track" style="min-width: 3rem">
<i class="fill" style="display: block; height: .7rem; border-radius: 3px; background: rgba(var(--blue), .8);
 width: {{ "%.1f"|format(100 * shares[kind][0]) }}%"></i></span>
<span style="min-width: 3rem; text-align: right">{{ "%.0f"|format(100 * shares[kind][0]) }} %</span></div>
<small class="soft">[{{ "%.0f, %.0f"|format(100 * shares[kind][1], 100 * shares[kind][2]) }}]</small></td>
{% endfor %}
</tr>
{% endfor %}
</table>
</section>
{% if curves %}

<h2>Learning curves</h2>
<section class="panel"><img class="curves" alt="CIDEr on the validation split by update" src="{{ curves }}"></section>
{% endif %}
{% if examples %}

<h2>Pairs on which they differ most</h2>
<div class="pairs">
{% for one in examples %}
<article class="pair">
<header><span>{{ one.id }}</span><span>true change: <b>{{ one.actual }}</b></span></header>
<div class="strip">
<figure><img alt="before" src="{{ one.before }}"><figcaption>before</figcaption></figure>
<figure><img alt="after" src="{{ one.after }}"><figcaption>after</figcaption></figure>
</div>
{% for name, sentence, right in one.said %}
<div class="saying"><span><span class="soft">{{ name }}:</span> {{ sentence or "(no words)" }}</span>
<span><span class="badge {{ "right" if right else "wrong" }}">{{ "right" if right else "wrong" }}</span></span></div>
{% endfor %}
<ul>
{% for reference in one.references %}
<li>{{ reference }}</li>
{% endfor %}
</ul>
</article>
{% endfor %}
</div>
{% endif %}
</main>
</body>
</html>
"""
)
