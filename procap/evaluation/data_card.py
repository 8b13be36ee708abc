"""A corpus on one HTML page that needs no network: counts, histograms, what breaks a rule, and pairs to look at."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SHIFT, SPLITS, UNKNOWN_CHANGE, Pairs
from procap.datasets.shards import Shards
from procap.evaluation.embedded import picture
from procap.evaluation.page_template import STYLE
from procap.evaluation.quality import Finding, row_of

PER_TYPE = 2
"""Pairs shown of each change type."""
DOUBTFUL = 6
"""Pairs shown that break a rule."""
MASK_EDGES = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def card(
    corpus: str, pairs: Pairs, tables: Mapping[str, Any], findings: Sequence[Finding], cleaned: Mapping[str, int]
) -> str:
    """The page; ``tables`` are those of ``all_facts``, ``cleaned`` counts by reason what was left out before."""
    from jinja2 import Environment, StrictUndefined

    facts, captions = tables["pairs"], tables["captions"]
    broken = sorted((each for each in findings if not each.success), key=lambda each: each.rule.severity)
    height, width = pairs.images.shape[1:3]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(
        corpus=corpus,
        size=f"{width} x {height}",
        pictures=len(pairs.images),
        tiles=_tiles(facts, captions, broken),
        broken=broken,
        rules=len(findings),
        cleaned=cleaned,
        splits=_splits(facts),
        types=_types(facts),
        histograms=_histograms(facts, captions),
        examples=[_shown(pairs, row) for row in _typical(facts)],
        doubtful=[{**_shown(pairs, row), "why": why} for row, why in _doubtful(facts, broken).items()],
    )


def _splits(facts: Any) -> tuple[str, ...]:
    return (*SPLITS, *({SHIFT} & set(facts["split"])))


def _tiles(facts: Any, captions: Any, broken: Sequence[Finding]) -> list[tuple[str, str]]:
    unchanged = (facts["change_type"] == NO_CHANGE).mean()
    said = [each.rule.severity for each in broken]
    return [
        ("pairs", f"{len(facts):,}"),
        *((split, f"{(facts['split'] == split).sum():,}") for split in _splits(facts)),
        ("unchanged", f"{100 * unchanged:.0f} %"),
        ("with a mask", f"{100 * facts['masked'].mean():.0f} %"),
        ("captions", f"{len(captions):,}"),
        ("words each", f"{captions['words'].mean():.1f}"),
        ("critical", str(said.count("critical"))),
        ("warnings", str(said.count("warning"))),
    ]


def _types(facts: Any) -> list[dict[str, Any]]:
    """Per change type that occurs: its pairs in each split, and the length of its bar in percent."""
    counts = {
        kind: [int(((facts["change_type"] == kind) & (facts["split"] == split)).sum()) for split in _splits(facts)]
        for kind in (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)
    }
    most = max(map(sum, counts.values()))
    return [
        {"name": kind, "counts": found, "bar": 100 * sum(found) / most} for kind, found in counts.items() if sum(found)
    ]


def _histograms(facts: Any, captions: Any) -> list[dict[str, Any]]:
    words, per_pair = Counter(captions["words"]), Counter(facts["captions"])
    found = [
        _bars("Words per caption", {str(n): words[n] for n in range(max(words, default=0) + 1)}),
        _bars("Captions per pair", {str(n): per_pair[n] for n in range(max(per_pair, default=0) + 1)}),
    ]
    shares = facts.loc[facts["mask_share"] > 0, "mask_share"]
    if len(shares):
        counts, _ = np.histogram(shares, MASK_EDGES)
        labels = [f"≤ {100 * edge:g} %" for edge in MASK_EDGES[1:]]
        found.append(_bars("Part of the picture that masks mark", dict(zip(labels, map(int, counts), strict=True))))
    return found


def _bars(title: str, counts: Mapping[str, int]) -> dict[str, Any]:
    most = max(counts.values(), default=0) or 1
    bars = [{"label": label, "count": count, "height": 100 * count / most} for label, count in counts.items()]
    return {"title": title, "bars": bars}


def _typical(facts: Any) -> list[int]:
    """The first training pairs of each type that have their pictures."""
    usable = facts[(facts["split"] == "train") & ~facts["picture_missing"]]
    return [
        int(row)
        for kind in (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)
        for row in usable.index[usable["change_type"] == kind][:PER_TYPE]
    ]


def _doubtful(facts: Any, broken: Sequence[Finding]) -> dict[int, str]:
    """Pairs that break a rule, a few, of each rule in turn: what it is that they break."""
    rows = {name: row for row, name in reversed(list(facts.loc[~facts["picture_missing"], "id"].items()))}
    of_pairs = [each for each in broken if each.rule.table in ("pairs", "captions")]
    found: dict[int, str] = {}
    for turn in range(DOUBTFUL):
        for each in of_pairs:
            name, detail = next(iter([*each.offenders.items()][turn:]), ("", ""))
            if name in rows and rows[name] not in found and len(found) < DOUBTFUL:
                found[rows[name]] = f"not so: {each.rule.says}" + (f" ({detail})" if detail else "")
    return found


def _shown(pairs: Pairs, row: int) -> dict[str, Any]:
    of = pairs.table.iloc[row]
    pictures = {end: picture(np.array(row_of(pairs.images, of[end]))) for end in ("before", "after")}
    if of["mask"] >= 0 and of["mask"] < len(masks := Shards(pairs.folder, "masks")):
        pictures["mask"] = picture(np.repeat(row_of(masks, of["mask"])[..., None], 3, axis=-1))
    described = {key: of[key] for key in ("id", "split", "change_type")}
    return {**described, "captions": list(of["captions"])[:6], "pictures": pictures}


TEMPLATE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ corpus }}: data card</title>
<style>"""
    + STYLE
    + """
.chart { display: flex; align-items: flex-end; gap: 2px; height: 110px; }
.chart div { flex: 1 1 0; min-width: 0; height: 100%; display: flex; flex-direction: column; justify-content: end; }
.chart i { display: block; background: rgba(var(--blue), .8); border-radius: 2px 2px 0 0; }
.labels { display: flex; gap: 2px; border-top: 1px solid var(--line); }
.labels span { flex: 1 1 0; min-width: 0; text-align: center; font-size: .7rem; color: var(--soft); }
.ids { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.broken td { vertical-align: top; border-top: 1px solid var(--line); }
.pairs { grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
figure img { image-rendering: pixelated; }
</style>
</head>
<body>
<main>
<h1>{{ corpus }} <span class="soft">data card</span></h1>
<div class="soft">{{ "{:,}".format(pictures) }} pictures of {{ size }} pixels, as the models see them</div>

<div class="tiles">
{% for label, value in tiles %}
<div class="tile"><span>{{ label }}</span><b>{{ value }}</b></div>
{% endfor %}
</div>

<h2>Rules</h2>
<section class="panel">
{% if broken %}
<table class="broken">
{% for each in broken %}
<tr><td><span class="badge {{ "wrong" if each.rule.severity == "critical" else "half" }}">
{{ each.rule.severity }}</span></td>
<td>not so: {{ each.rule.says }}<div class="ids">{{ each.named|join(", ") }}
{{ "..." if each.offenders|length > each.named|length }}</div></td>
<td class="number">{{ "{:,}".format(each.unexpected) }} of {{ "{:,}".format(each.checked) }}</td></tr>
{% endfor %}
</table>
{% endif %}
<div class="soft">{{ rules - broken|length }} of {{ rules }} rules hold. Every offending row is in findings.csv.</div>
</section>

<h2>Counts</h2>
<div class="panels">
<section class="panel">
<h2>Pairs by change type</h2>
<table>
<tr><th>change type</th><th class="bar"></th>
{% for split in splits %}
<th class="number">{{ split }}</th>
{% endfor %}
</tr>
{% for type in types %}
<tr><td>{{ type.name }}</td><td class="bar"><div><i style="width: {{ "%.1f"|format(type.bar) }}%"></i></div></td>
{% for count in type.counts %}
<td class="number">{{ "{:,}".format(count) }}</td>
{% endfor %}
</tr>
{% endfor %}
</table>
</section>
{% for each in histograms %}
<section class="panel">
<h2>{{ each.title }}</h2>
<div class="chart">
{% for bar in each.bars %}
<div title="{{ bar.label }}: {{ bar.count }}"><i style="height: {{ "%.1f"|format(bar.height) }}%"></i></div>
{% endfor %}
</div>
<div class="labels">
{% for bar in each.bars %}
<span>{{ bar.label if each.bars|length <= 12 or loop.index0 % 5 == 0 }}</span>
{% endfor %}
</div>
</section>
{% endfor %}
<section class="panel">
<h2>Left out before</h2>
{% if cleaned %}
<table>
{% for reason, count in cleaned.items() %}
<tr><td>{{ reason }}</td><td class="number">{{ "{:,}".format(count) }}</td></tr>
{% endfor %}
</table>
{% else %}
<div class="soft">nothing</div>
{% endif %}
</section>
</div>
{% macro gallery(chosen) %}
<div class="pairs">
{% for each in chosen %}
<article class="pair">
<header><span>{{ each.id }}</span><span>{{ each.split }}, <b>{{ each.change_type }}</b></span></header>
<div class="strip">
{% for name, address in each.pictures.items() %}
<figure><img alt="{{ name }}" src="{{ address }}"><figcaption>{{ name }}</figcaption></figure>
{% endfor %}
</div>
{% if each.why is defined %}
<div class="ids">{{ each.why }}</div>
{% endif %}
<ul>
{% for caption in each.captions %}
<li>{{ caption }}</li>
{% endfor %}
</ul>
</article>
{% endfor %}
</div>
{% endmacro %}
{% if doubtful %}

<h2>Pairs that break a rule</h2>
{{ gallery(doubtful) }}
{% endif %}

<h2>Training pairs of each type</h2>
{{ gallery(examples) }}
</main>
</body>
</html>
"""
)
