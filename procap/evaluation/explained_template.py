"""The part of a page that shows what ``explained`` made, for jinja2 with escaping on. Runs without scripts."""

MOST_WORDS = 64
"""Of a sentence, that can be pointed at."""

STYLE = """
figure { max-width: var(--picture, 190px); }
.explained figcaption { min-height: 2.4em; }
.stack { position: relative; }
figure .stack img { aspect-ratio: var(--aspect, 1); object-fit: fill; }
figure.imagined .stack img { outline: 2px dashed rgba(var(--blue), .7); outline-offset: -2px; }
figure .stack img + img { position: absolute; inset: 0; height: 100%; opacity: 0; pointer-events: none; }
figure .stack img.changes { opacity: var(--changes, 0); }
figcaption span { display: none; }
.said { line-height: 1.9; }
.word { font: inherit; color: inherit; background: none; border: 0; border-radius: 4px; padding: .1rem .2rem .15rem;
        cursor: pointer; position: relative; }
.word i { position: absolute; left: .2rem; right: .2rem; bottom: 0; height: 3px; background: var(--line); }
.word i b { display: block; height: 100%; background: rgba(var(--blue), .85); }
.word:hover, .word:focus { background: rgba(var(--blue), .15); outline: none; }
.word:focus-visible { outline: 2px solid rgba(var(--blue), 1); }
.slider { font-size: .85rem; color: var(--soft); display: flex; gap: .6rem; align-items: center; flex-wrap: wrap; }
.slider input { accent-color: rgb(140, 50, 210); }
.drafts { font-size: .85rem; color: var(--soft); margin: .4rem 0; }
.drafts ol { display: grid; margin: .2rem 0 0; padding: 0; list-style: none; }
.drafts li { grid-area: 1 / 1; opacity: 0; animation: var(--name) var(--cycle) step-end infinite;
             animation-delay: calc(var(--number) * .4s); }
.drafts:is(:hover, :focus) ol { display: block; }
.drafts:is(:hover, :focus) li { opacity: 1; animation: none; }
@media (prefers-reduced-motion: reduce) { .drafts ol { display: block; } .drafts li { opacity: 1; animation: none; } }
""" + "".join(
    f".explained:has(.s{i}:is(:hover, :focus)) .stack img.l{i} {{ opacity: 1; }}\n"
    f".explained:has(.s{i}:is(:hover, :focus)) .f{i} {{ display: block; }}\n"
    for i in range(MOST_WORDS)
)

MACRO = """
{% macro explained(view) %}
<div class="strip" style="--aspect: {{ view.aspect }}">
{% for frame in view.frames %}
<figure{{ "" if frame.real else ' class="imagined"'|safe }}>
<div class="stack"><img alt="{{ frame.name }}" src="{{ frame.src }}">
{% for look in frame.looks %}
<img class="l{{ loop.index0 }}" alt="" src="{{ look }}">
{% endfor %}
{% if view.changes and frame.real %}
<img class="changes" alt="" src="{{ view.changes }}">
{% endif %}
</div>
<figcaption>{{ frame.name }}
{% for share in frame.shares %}
<span class="f{{ loop.index0 }}">{{ share }} of the look</span>
{% endfor %}
</figcaption>
</figure>
{% endfor %}
</div>
{% endmacro %}
{% macro sentence(view) %}
{% for word in view.words %}
<button type="button" class="word s{{ loop.index0 }}"
{%- if view.known %} title="{{ word.chance }} likely here" aria-label="{{ word.text }}, {{ word.chance }}"{% endif %}>
{{- word.text }}<i><b style="width: {{ word.width }}%"></b></i></button>
{%- else %}(no words){% endfor %}
{% endmacro %}
{% macro drafts(view) %}
{% set steps = view.drafts|length %}
{% if steps %}
{% set cycle = 0.4 * steps + 2 %}
<style>
@keyframes draft-{{ steps }} { 0% { opacity: 1; } {{ "%.2f"|format(40 / cycle) }}% { opacity: 0; } }
@keyframes said-{{ steps }} { 0% { opacity: 1; } {{ "%.2f"|format(240 / cycle) }}% { opacity: 0; } }
</style>
<div class="drafts" tabindex="0" style="--cycle: {{ "%.1f"|format(cycle) }}s">out of noise in {{ steps }} steps
(point here to see all):
<ol>
{% for draft in view.drafts %}
<li style="--number: {{ loop.index0 }}; --name: {{ "said" if loop.last else "draft" }}-{{ steps }}">
{{- loop.index }}. {{ draft.text }} ({{ draft.chance }})</li>
{% endfor %}
</ol>
</div>
{% endif %}
{% endmacro %}
{% macro slider(view) %}
{% if view.changes %}
<label class="slider">where it sees a change
<input type="range" min="0" max="1" step="0.05" value="0"
 oninput="this.closest('.explained').style.setProperty('--changes', this.value)"></label>
{% endif %}
{% endmacro %}
"""
