"""One caption with its reasons: an HTML page that needs no other file, or a short film of how it came about."""

from pathlib import Path
from typing import Any

import numpy as np

from procap.captioning.captioner import LONGEST_SIDE, About, Caption
from procap.datasets.images import outlined
from procap.evaluation.explained import explained
from procap.evaluation.explained_template import MACRO, STYLE
from procap.evaluation.page_template import STYLE as PAGE_STYLE
from procap.shapes import UInt8

FRAME_SECONDS, DRAFT_SECONDS, END_SECONDS = 0.5, 0.4, 1.2
"""How long a film shows an imagined frame, a draft of the sentence, and before and after."""
FILM_SIDE = 320

Pixels = UInt8[np.ndarray, "h w 3"]

TEMPLATE = (
    MACRO
    + """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ caption.text or "(no words)" }}</title>
<style>"""
    + PAGE_STYLE
    + STYLE
    + """
main { max-width: 1240px; --picture: 380px; }
.said { font-size: 1.6rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 1.4rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 640px) { .strip { flex-wrap: wrap; } figure { flex-basis: 40%; } .said { font-size: 1.3rem; } }
</style>
</head>
<body>
<main class="explained">
<h1 class="said">{{ sentence(view) }}</h1>
{% if view.looks %}
<p class="soft">Point at a word, tap it or reach it with the Tab key: yellow to red is where the model looks to say it.
{{- " The line under a word is its probability." if view.known }}</p>
{% endif %}
{{ drafts(view) }}
{{ explained(view) }}
{{ slider(view) }}
<dl>
{% for name, value in facts %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
</main>
</body>
</html>
"""
)


def explanation_page(about: About, before: Pixels, after: Pixels, caption: Caption) -> str:
    """HTML: before, what is imagined, after; words to point at; a map of the change to fade in."""
    from jinja2 import Environment, StrictUndefined

    first, last = (_small(picture, caption.change_mask) for picture in (before, after))
    view = explained(first, last, caption.words, caption.word_probabilities, caption.explanation)
    facts = [("sentence", f"probability {caption.probability:.3g}")]
    if caption.reasoning is not None:
        line = caption.reasoning
        facts.insert(0, ("reasoning", ", ".join(filter(None, (line.change, line.object, line.where)))))
        facts.append(("outline", "white" if caption.change_mask is not None else "nothing that could be outlined"))
    if caption.change_probability is not None:
        facts.append(("any change", f"probability {caption.change_probability:.3g}"))
    facts += [
        ("pictures", f"{before.shape[1]} x {before.shape[0]}, seen as {about.image_size} x {about.image_size} pixels"),
        ("captioner", about.captioner + (f", version {about.version}" if about.version else "")),
        ("model", f"{about.address}, {about.digest[:12]}"),
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(caption=caption, view=view, facts=facts)


def write_film(path: Path, caption: Caption) -> None:
    """An animated GIF of before, what is imagined, the drafts of the sentence, and after, the sentence below; loops."""
    assert caption.explanation is not None
    frames, drafts = caption.explanation.frames, caption.explanation.drafts
    first = drafts[0].text if drafts else caption.text
    shown = [(frames[0], "before", first, END_SECONDS)]
    shown += [(frame, f"imagined {n}", first, FRAME_SECONDS) for n, frame in enumerate(frames[1:-1], 1)]
    shown += [
        (frames[-1], f"after, step {n} of {len(drafts)}", draft.text, DRAFT_SECONDS)
        for n, draft in enumerate(drafts[:-1], 1)
    ]
    shown.append((frames[-1], "after", caption.text, END_SECONDS))
    pictures = [_card(pixels, name, text) for pixels, name, text, _ in shown]
    times = [1000 * seconds for *_, seconds in shown]
    partial = path.with_name(f"{path.name}.partial")
    pictures[0].save(
        partial, "GIF", save_all=True, append_images=pictures[1:], duration=[round(time) for time in times], loop=0
    )
    partial.replace(path)


def _small(pixels: Pixels, mask: np.ndarray | None) -> Pixels:
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return np.array(outlined(picture, None if mask is None else mask.astype(np.uint8) * 255))


def _card(pixels: Pixels, name: str, text: str) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    card = Image.new("RGB", (FILM_SIDE, FILM_SIDE + 64), "white")
    card.paste(Image.fromarray(pixels).resize((FILM_SIDE, FILM_SIDE), Image.Resampling.BICUBIC))
    draw, font = ImageDraw.Draw(card), ImageFont.load_default(14)
    draw.text((8, FILM_SIDE + 4), name, fill="#5d6779", font=font)
    draw.multiline_text((8, FILM_SIDE + 22), _wrapped(text, draw, font), fill="#1d2433", font=font, spacing=3)
    return card


def _wrapped(text: str, draw: Any, font: Any) -> str:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font=font) > FILM_SIDE - 16:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)
