"""A table of pairs is captioned shard by shard: what is done is kept, what is broken is said in its line."""

import json
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from procap.captioning.captioner import About, Caption, PictureCaptioner
from procap.errors import BadInput

pytest.importorskip("prefect")


class Words(PictureCaptioner):
    """A captioner that says how red the first picture is, and notes what it was asked."""

    asked: ClassVar[list] = []

    def caption(self, before, after, **_):
        self.asked.extend(before)
        return [Caption(f"red {picture[0, 0, 0]}", (), (), None, 0.5, None) for picture in before]


@pytest.fixture
def captioner(monkeypatch):
    from flows import batch

    words = object.__new__(Words)  # without a bundle
    object.__setattr__(words, "about", About("model", None, "d" * 64, "words", 16, None))
    words.asked.clear()
    monkeypatch.setattr(batch, "_captioner", lambda model, device: words)
    return words


@pytest.fixture
def table(tmp_path):
    lines = ["before,after"]
    for number in range(7):
        pixels = np.full((16, 16, 3), 10 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,0.png")
    (tmp_path / "5.png").write_bytes(b"no picture")
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def shard(table, start, stop):
    from flows.batch import caption_shard

    return caption_shard.fn(str(table), str(table.parent / "out"), start, stop, "model", "cpu", 2, 1)


def test_a_shard_has_a_line_per_pair_and_a_broken_picture_spoils_only_its_own(table, captioner):
    from flows.batch import part

    assert shard(table, 0, 4) == (4, 0)
    assert shard(table, 4, 7) == (3, 1)
    lines = [json.loads(line) for line in part(table.parent / "out", 4).read_text().splitlines()]
    assert [line["row"] for line in lines] == [5, 6, 7]
    assert [line.get("caption") for line in lines] == ["red 40", None, "red 60"]
    assert "5.png" in lines[1]["error"]["where"]


def test_a_finished_shard_is_not_captioned_again_and_half_of_one_does_not_count(table, captioner, monkeypatch):
    from flows import batch

    shard(table, 0, 4)
    shard(table, 0, 4)
    assert len(captioner.asked) == 4
    monkeypatch.setattr(Words, "caption", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone")))
    with pytest.raises(ConnectionError):
        shard(table, 4, 7)
    assert not batch.part(table.parent / "out", 4).exists()


def test_another_table_or_model_does_not_get_into_the_same_folder(tmp_path):
    from flows.batch import begin

    begin(tmp_path / "out", {"model": "models:/procap/1"})
    begin(tmp_path / "out", {"model": "models:/procap/1"})
    with pytest.raises(BadInput, match="another table, model or shard size"):
        begin(tmp_path / "out", {"model": "models:/procap/2"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(BadInput, match="something is there"):
        begin(tmp_path / "other", {})


def test_an_alias_is_pinned_when_the_work_begins(store):
    from flows.batch import pinned

    store.create_registered_model("procap")
    store.create_model_version("procap", "file:///nowhere")
    with pytest.raises(BadInput, match="does not give it"):
        pinned("models:/procap@champion")
    store.set_registered_model_alias("procap", "champion", "1")
    assert pinned("models:/procap@champion") == "models:/procap/1"
    assert pinned("data/caption/procap/bundle") == "data/caption/procap/bundle"


def test_only_what_may_pass_is_tried_again():
    from prefect.states import Failed

    from flows.batch import _may_help

    assert _may_help(None, None, Failed(data=ConnectionError("reset")))
    assert not _may_help(None, None, Failed(data=BadInput("no", where="", expected="", do="")))


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    import sys

    from flows.batch import runner

    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    with pytest.raises(BadInput, match=r"procap\[ray\]"):
        runner("ray", 1, None)
