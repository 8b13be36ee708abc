"""``procap caption`` and ``procap show``: a pair, a table that may be broken and is continued, and why."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from procap.captioners import CAPTIONERS
from procap.captioning.captioner import load_captioner
from procap.captioning.table import caption_rows, read_rows, resumed
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.training.bundle import write_bundle
from tests.layouts import picture
from tests.small import captioner_config, shaken, small_captioner, small_vqgan


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A bundle, two pictures, and a table in which rows 2 and 4 cannot be captioned."""
    folder = tmp_path_factory.mktemp("own")
    network = shaken(small_captioner("procap"), 0.3)
    vocabulary = Vocabulary(tuple(f"<w{number}>" for number in range(12)), 7)
    write_bundle(
        folder / "bundle", "procap", network, captioner_config("procap"), small_vqgan(), vocabulary,
        {"no_change": ["<w1> <w2>"], "dataset": "toys", "selected_on": "val", "selection_CIDEr": 12.5},
    )  # fmt: skip
    for number in range(4):
        picture(folder / "pictures" / f"{number}.png", number)
    picture(folder / "pictures" / "odd.png", 9, (20, 17))
    (folder / "pictures" / "text.png").write_text("no picture")
    rows = ["before,after,note", "0,1,x", "1,text,y", "2,3,z", "0,odd,", "3,0,", "1,2,3,4", "1,3,"]
    named = [
        ",".join(f"pictures/{cell}.png" if place < 2 and number else cell for place, cell in enumerate(row.split(",")))
        for number, row in enumerate(rows)
    ]
    (folder / "pairs.csv").write_text("\n".join(named) + "\n")
    return folder


BAD = {2: "whatever its name says", 4: "different sizes", 6: "4 cells"}


@pytest.fixture(scope="module")
def model(folder):
    return load_captioner(folder / "bundle", "cpu")


def run(folder: Path, *words: object):
    return CliRunner().invoke(app, ["caption", *map(str, words), "--model", str(folder / "bundle")])


def ends(folder: Path) -> list[Path]:
    return [folder / "pictures" / "0.png", folder / "pictures" / "1.png"]


def test_a_pair_is_captioned_for_people_and_for_programs(folder, model):
    said = model.caption(*ends(folder))
    assert run(folder, *ends(folder)).stdout == f"{said.text}  ({said.probability:.2f})\n"
    line = json.loads(run(folder, *ends(folder), "--json").stdout)
    assert (line["caption"], line["words"]) == (said.text, list(said.words))
    assert line["word_probabilities"] == pytest.approx(said.word_probabilities, abs=1e-6)
    assert line["model"] == model.about.digest


def test_why_is_one_file_that_shows_everything(folder, tmp_path):
    out = tmp_path / "why.html"
    done = run(folder, *ends(folder), "--explain", out)
    assert done.exit_code == 0, done.output
    page, said = out.read_text(encoding="utf-8"), json.loads(run(folder, *ends(folder), "--json").stdout)
    assert page.count('class="word ') == len(said["words"]) > 1
    assert page.count("<figure") == 4
    assert page.count('class="l') == 2 * len(said["words"])
    assert said["words"][0] not in page, "words are text, not HTML"
    assert "&lt;w" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_film_shows_before_what_is_imagined_and_after(folder, tmp_path, model):
    out = tmp_path / "film.gif"
    assert run(folder, *ends(folder), "--explain", out).exit_code == 0
    frames = model.caption(*ends(folder), explain=True).explanation.frames
    with Image.open(out) as film:
        assert film.n_frames == len(frames) == 4
        times = []
        for number, frame in enumerate(frames):
            film.seek(number)
            times.append(film.info["duration"])
            shown = np.array(film.convert("RGB").crop((0, 0, 320, 320)).resize((32, 32), Image.Resampling.BOX))
            assert np.abs(shown.astype(int) - frame).mean() < 25
        assert times[0] == times[-1] > times[1]
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--explain", "why.pdf"], "ends in .html or .gif"),
        (["--table", "pairs.csv"], "do not go with --table"),
        (["--out", "lines.jsonl"], "--out goes with --table"),
    ],
)
def test_what_makes_no_sense_is_refused(folder, words, what):
    done = run(folder, *ends(folder), *words)
    assert isinstance(done.exception, BadInput)
    assert what in str(done.exception)


def lines_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_bad_row_stops_nothing_and_is_named(folder, model):
    done = run(folder, "--table", folder / "pairs.csv", "--batch", 2)
    assert done.exit_code == 1
    lines = lines_of(done.stdout)
    assert [line["row"] for line in lines] == list(range(1, 8))
    for line in lines:
        if what := BAD.get(line["row"]):
            assert what in line["error"]["what"]
            assert what in done.stderr
            assert "caption" not in line
        else:
            said = model.caption(folder / line["before"], folder / line["after"])
            assert line["caption"] == said.text
            assert line["probability"] == pytest.approx(said.probability, abs=1e-5)
    assert "3 rows could not be captioned" in done.stderr


def test_all_is_well_where_all_rows_are(folder, tmp_path):
    rows = (folder / "pairs.csv").read_text().splitlines()
    table = folder / "good.csv"
    table.write_text("\n".join(rows[number] for number in (0, 1, 3, 5)))
    out = tmp_path / "lines.jsonl"
    assert run(folder, "--table", table, "--out", out).exit_code == 0
    assert len(lines_of(out.read_text())) == 3
    table.unlink()


def test_a_file_is_continued_where_it_was_cut(folder, tmp_path):
    out = tmp_path / "lines.jsonl"
    run(folder, "--table", folder / "pairs.csv", "--out", out)
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    marked = lines[4].replace('"probability"', '"kept": true, "probability"')  # row 5 must not be done again
    out.write_text(lines[0] + lines[1] + marked + lines[2][:40])
    done = run(folder, "--table", folder / "pairs.csv", "--out", out)
    assert done.exit_code == 1
    lines[4] = marked
    assert out.read_text() == "".join(lines)


def test_a_stopped_run_keeps_whole_lines_in_order(folder, tmp_path, model):
    rows, out = read_rows(folder / "pairs.csv"), tmp_path / "lines.jsonl"

    def stopped() -> None:
        with resumed(out, rows, model.about.digest) as (file, done):
            assert done == set()
            for line in list(caption_rows(model, folder, rows))[2::-1]:
                file.write(json.dumps(line) + "\n")
            file.write('{"row": 4, "bef')
            file.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [line["row"] for line in lines_of(out.read_text())] == [1, 2, 3]


def test_lines_of_another_table_or_model_are_not_mixed_in(folder, tmp_path, model):
    rows, out = read_rows(folder / "pairs.csv"), tmp_path / "lines.jsonl"
    line = next(caption_rows(model, folder, rows))
    for change, what in (({"before": "x"}, "another table"), ({"model": "x"}, "another model"), ({"row": 99}, "table")):
        out.write_text(json.dumps(line | change) + "\n")
        with pytest.raises(BadInput, match=what), resumed(out, rows, model.about.digest):
            pass
        assert json.loads(out.read_text()) == line | change, "the file is as it was"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("no.csv", None, "no such table"),
        ("t.txt", "before,after\na,b\n", "kind '.txt'"),
        ("t.csv", "before,behind\na,b\n", "no column after"),
        ("t.csv", "before,after\n", "no rows"),
        ("t.csv", b"before,after\n\xff\xfe,b\n", "not UTF-8"),
    ],
)
def test_a_table_that_is_none_is_refused(folder, tmp_path, name, text, what):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run(folder, "--table", tmp_path / name)
    assert isinstance(done.exception, BadInput)
    assert what in str(done.exception)
    assert done.stdout == ""


def test_an_empty_cell_is_named(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"before": "a.png", "after": ""}\n{"before": "a.png", "after": "b.png"}\n[1]\n')
    rows = read_rows(tmp_path / "t.jsonl")
    assert [row.problem is None for row in rows] == [False, True, False]
    assert rows[0].problem.where.endswith("line 1")


def test_show_says_what_a_bundle_is(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["show", str(folder / "bundle")])
    assert done.exit_code == 0, done.output
    for fact in ("procap", "32 x 32 pixels", "4, of which 2 imagined", "on val, CIDEr 12.5", "toys", "<w1> <w2>"):
        assert fact in done.stdout
    weights = sum(weight.numel() for weight in small_captioner("procap").state_dict().values())
    assert f"{weights:,}" in done.stdout
    refused = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert isinstance(refused.exception, BadInput)


@pytest.mark.parametrize("name", sorted(CAPTIONERS))
def test_show_knows_the_parts_of_every_captioner(name, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    vocabulary, folder = Vocabulary(tuple(f"<w{number}>" for number in range(12)), 7), tmp_path / "bundle"
    trained = {"params": {name: {"steps": 7}, "caption": {"steps": 3}}}
    write_bundle(folder, name, small_captioner(name), captioner_config(name), small_vqgan(), vocabulary, trained)
    done = CliRunner().invoke(app, ["show", str(folder)])
    assert done.exit_code == 0, done.output
    assert re.search(rf"captioner +{name}", done.stdout)
    assert "layers of width" in done.stdout
    assert re.search(r"updates +7\b", done.stdout), "its own number goes before that of all"


def test_show_has_the_scores_and_examples_of_that_very_bundle(folder, monkeypatch, tmp_path):
    import shutil

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(folder / "bundle", tmp_path / "data" / "caption" / "procap" / "bundle")
    told = {"sentence": "the cube is gone", "references": ["no cube"], "type_right": True, "change_type": "drop"}
    for name, numbers in (("procap", 77.5), ("static", 11.5)):
        evaluation = tmp_path / "data" / "evaluate" / name
        evaluation.mkdir(parents=True)
        (evaluation / "metrics.json").write_text(json.dumps({"CIDEr": numbers}))
        (evaluation / "predictions.json").write_text(json.dumps({"a": told}))
    done = CliRunner().invoke(app, ["show", "data/caption/procap/bundle"])
    assert "77.50" in done.stdout
    assert "11.50" not in done.stdout
    assert "the cube is gone" in done.stdout


def test_the_shell_completes_models(folder, monkeypatch, tmp_path):
    import os
    import subprocess
    import sys

    (tmp_path / "data" / "caption" / "static" / "bundle").mkdir(parents=True)
    (tmp_path / "data" / "caption" / "static" / "bundle" / "manifest.json").write_text("{}")
    asked = {"_FLOWS.CLI_COMPLETE": "", "_PROCAP_COMPLETE": "complete_bash"}
    asked |= {"COMP_WORDS": "procap caption a b --model d", "COMP_CWORD": "5"}
    command = [sys.executable, "-c", "from flows.cli import app; app(prog_name='procap')"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **asked, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["data/caption/static/bundle"], done.stderr
