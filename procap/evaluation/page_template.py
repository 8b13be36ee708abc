"""The text around what ``page`` shows, for jinja2 with escaping on."""

from procap.evaluation.explained_template import MACRO
from procap.evaluation.explained_template import STYLE as EXPLAINED_STYLE

STYLE = """
:root { --ink: #1d2433; --soft: #5d6779; --line: #e2e6ee; --ground: #f5f6f9; --card: #fff;
        --blue: 47, 99, 199; --right: #1a7f4b; --half: #9a6200; --wrong: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebf2; --soft: #9aa5b8; --line: #313a4b; --ground: #141923; --card: #1d2432;
          --blue: 110, 155, 245; --right: #56c48b; --half: #e0a848; --wrong: #f08a80; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.45 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.7rem; }
h2 { margin: 2.2rem 0 .8rem; font-size: 1.1rem; }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(108px, 1fr)); gap: .7rem; margin-top: 1.4rem; }
.tile, .panel, .pair { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { font-size: .78rem; color: var(--soft); white-space: nowrap; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 1rem; }
.panel { padding: .9rem 1.1rem; overflow-x: auto; }
.panel h2 { margin: 0 0 .6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--soft); text-align: left; font-size: .85rem; padding: .25rem .4rem; }
td { padding: .25rem .4rem; }
.number { text-align: right; }
.bar { width: 36%; }
.bar div { display: flex; align-items: center; gap: .5rem; white-space: nowrap; }
.bar i { display: block; height: .7rem; border-radius: 3px; background: rgba(var(--blue), .8); min-width: 1px; }
.bar i + span, .bar span { font-size: .85rem; }
.bar div > span:last-child { min-width: 6.2rem; text-align: right; }
.track { flex: 1; }
.matrix td { text-align: center; border: 2px solid var(--card); border-radius: 4px; }
.matrix th.stated { text-align: center; }
.matrix { table-layout: fixed; }
.matrix td.same { font-weight: 700; }
.matrix td.deep { color: #fff; }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 1rem; }
.pair { padding: 1rem; }
.pair header { display: flex; justify-content: space-between; gap: 1rem; font-size: .8rem; color: var(--soft); }
.strip { display: flex; gap: 6px; margin: .6rem 0; }
figure { margin: 0; flex: 1 1 0; min-width: 0; max-width: 190px; }
figure img { width: 100%; aspect-ratio: 1; display: block; border-radius: 6px; image-rendering: auto; }
figure.imagined img { outline: 2px dashed rgba(var(--blue), .7); outline-offset: -2px; }
figcaption { font-size: .75rem; color: var(--soft); text-align: center; margin-top: .2rem; }
.said { font-size: 1.05rem; font-weight: 600; margin: .3rem 0; }
.badge { font-size: .78rem; font-weight: 600; border: 1px solid currentColor; border-radius: 99px;
         padding: .05rem .6rem; margin-left: .3rem; white-space: nowrap; }
.badge.right { color: var(--right); } .badge.half { color: var(--half); } .badge.wrong { color: var(--wrong); }
.pair ul { margin: .3rem 0 0; padding-left: 1.1rem; color: var(--soft); font-size: .9rem; }
.notes li { margin: .2rem 0; }
"""

TEMPLATE = (
    MACRO
    + """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ captioner }} on {{ corpus }}</title>
<style>"""
    + STYLE
    + EXPLAINED_STYLE
    + """</style>
</head>
<body>
<main>
<h1>{{ captioner }} <span class="soft">on {{ corpus }}</span></h1>
<div class="soft">{{ pairs }} pairs of the test split; weights selected on the split {{ selection }}</div>

<div class="tiles">
{% for tile in tiles %}
<div class="tile"><span>{{ tile.label }}</span><b>{{ tile.value }}</b>
<span>{{ tile.bounds or "&nbsp;"|safe }}</span></div>
{% endfor %}
</div>
<p class="soft">Small print under a number, and in brackets: 95 % bootstrap bounds. {{ scale }}</p>

<div class="panels">
<section class="panel">
<h2>By change type</h2>
<table>
<tr><th>type</th><th class="number">pairs</th><th>right</th><th>CIDEr</th></tr>
{% for type in types %}
<tr><td>{{ type.name }}</td><td class="number">{{ type.count }}</td>
{% for bar in type.bars %}
<td class="bar"><div>
<span class="track"><i style="width: {{ bar.width }}%"></i></span><span>{{ bar.text }}</span></div></td>
{% endfor %}
</tr>
{% endfor %}
</table>
</section>
<section class="panel">
<h2>What changed, and what the sentence says</h2>
<table class="matrix">
<tr><th></th>{% for stated in confusion.stated %}<th class="stated">{{ stated }}</th>{% endfor %}</tr>
{% for row in confusion.rows %}
<tr><th>{{ row.name }}</th>
{% for cell in row.cells %}
<td class="{{ cell.look }}" style="background: rgba(var(--blue), {{ cell.shade }})">
{{- cell.number or "" }}</td>
{% endfor %}
</tr>
{% endfor %}
</table>
</section>
{% if referring %}
<section class="panel">
<h2>What it says of the object that changed</h2>
<table>
<tr><th></th><th class="number">sentences that say it</th><th>true</th></tr>
{% for part in referring %}
<tr><td>{{ part.name }}</td><td class="number">{{ part.count }}</td>
<td class="bar"><div>
<span class="track"><i style="width: {{ part.width }}%"></i></span><span>{{ part.text }}</span></div></td></tr>
{% endfor %}
</table>
</section>
{% endif %}
</div>
{% if skipped %}

<h2>Left out, or done in another way</h2>
<ul class="notes">
{% for name, reason in skipped %}
<li><b>{{ name }}</b>: {{ reason }}</li>
{% endfor %}
</ul>
{% endif %}
{% for gallery in galleries if gallery.cards %}

<h2>{{ gallery.name }}</h2>
<p class="soft">{{ gallery.about }}
{{- " Point at a word to see where the model looks to say it." if gallery.cards[0].view.looks }}</p>
<div class="pairs">
{% for one in gallery.cards %}
<article class="pair explained">
<header><span>{{ one.id }}</span><span>true change: <b>{{ one.actual }}</b></span></header>
{{ explained(one.view) }}
<div class="said">{{ sentence(one.view) }} <span class="badge {{ one.mark }}">{{ one.verdict }}</span></div>
<div class="soft">probability of this sentence {{ one.probability }}
{%- if one.change is not none %}, of any change {{ one.change }}{% endif %}; references:</div>
<ul>
{% for reference in one.references %}
<li>{{ reference }}</li>
{% endfor %}
</ul>
{{ slider(one.view) }}
{{ drafts(one.view) }}
</article>
{% endfor %}
</div>
{% endfor %}
</main>
</body>
</html>
"""
)
