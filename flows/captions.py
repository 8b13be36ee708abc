"""What ``procap caption`` does: one pair, or a table of pairs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from procap.errors import BadInput

EXPLAINED = (".html", ".gif")


def caption_pair(
    before: Path, after: Path, model: str, device: str, beams: int, as_json: bool, explain: Path | None
) -> None:
    """Print the caption of a pair, and write why where that is wanted. Raises BadInput before anything is loaded."""
    from procap.captioning.pairs import read_pair

    if explain is not None and explain.suffix.lower() not in EXPLAINED:
        raise BadInput(
            f"an explanation ends in {' or '.join(EXPLAINED)}",
            where=f"--explain {explain}",
            expected="out.html (all of it) or out.gif (what is imagined)",
            do="name one of them",
        )
    pair = read_pair(before, after)
    from procap.captioners import Decoding
    from procap.captioning.captioner import load_captioner

    captioner = load_captioner(model, device)
    said = captioner.caption(*pair, explain=explain is not None, decoding=Decoding(beams))
    if explain is not None:
        from procap.captioning.page import explanation_page, write_film
        from procap.files import write_text

        if said.explanation is None:
            raise BadInput(
                f"the captioner {captioner.about.captioner} cannot say why",
                where=model,
                expected="one that writes word by word",
                do="leave --explain out, or name another model",
            )
        if explain.suffix.lower() == ".html":
            write_text(explain, explanation_page(captioner.about, *pair, said))
        else:
            write_film(explain, said)
    if as_json:
        from procap.captioning.table import record

        about = captioner.about
        line = {"before": str(before), "after": str(after), "model": about.digest, "address": about.address}
        print(json.dumps(line | {"version": about.version} | record(said), ensure_ascii=False))
        return
    print(f"{said.text}  ({said.probability:.2f})")
    if explain is not None:
        print(f"written: {explain}", file=sys.stderr)


def caption_table(
    table: Path, model: str, device: str, beams: int, batch: int, out: Path | None, say: Callable[[str], None]
) -> int:
    """Caption every row of a table, a JSON line each to ``out`` (which may be continued) or stdout.

    Returns how many rows could not be captioned.
    """
    from procap.captioning.table import read_rows

    rows = read_rows(table)
    from flows.console import Terminal
    from procap.captioners import Decoding
    from procap.captioning.captioner import load_captioner
    from procap.captioning.table import caption_rows, resumed

    captioner = load_captioner(model, device)
    bad = 0

    def write(file, todo, finished: int = 0) -> None:
        nonlocal bad
        lines = caption_rows(captioner, table.parent, todo, batch=batch, decoding=Decoding(beams))
        for line in Terminal("caption", sys.stderr).progress(lines, "pairs", len(rows), finished):
            if "error" in line:
                bad += 1
                say(f"{line['error']['where']}: {line['error']['what']}")
            print(json.dumps(line, ensure_ascii=False), file=file, flush=True)

    if out is None:
        write(sys.stdout, rows)
    else:
        with resumed(out, rows, captioner.about.digest) as (file, done):
            write(file, [row for row in rows if row.number not in done], len(done))
    return bad
