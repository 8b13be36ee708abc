"""Data as they come: each kind is told in one form or taken in, and none leaves anything half-written."""

import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows import importing
from flows.importing import import_corpus
from procap.datasets import raw
from procap.datasets.birds_to_words import FILE as BIRDS
from procap.datasets.images import read_image
from procap.errors import BadInput
from tests import layouts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    return {name: make(folder / name) for name, make in layouts.LAYOUTS.items()}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A workspace; DVC itself is left out, which is asked for only when all is written."""
    (tmp_path / "root" / ".dvc").mkdir(parents=True)
    shutil.copy(ROOT / "params.yaml", tmp_path / "root")
    monkeypatch.setattr(importing, "_track", lambda *_, **__: None)
    return tmp_path / "root"


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(root: Path, name: str, folder: Path, complaint: str, **options: object) -> BadInput:
    """The import of a spoilt corpus says ``complaint``, in the one form, and changes nothing."""
    (root / "data" / "raw" / name).mkdir(parents=True)
    (root / "data" / "raw" / name / "earlier.txt").write_text("an earlier import")
    before = everything(root)
    with pytest.raises(BadInput, match=complaint) as caught:
        import_corpus(root, name, folder, **options)
    assert caught.value.where
    assert caught.value.expected
    assert caught.value.do
    assert everything(root) == before, "the earlier import is still there, whole, and nothing beside it"
    assert [path.name for path in (root / "data" / "raw").iterdir()] == [name]
    return caught.value


@pytest.fixture
def own(made, tmp_path):
    """A sound table to spoil."""
    return shutil.copytree(made["table"], tmp_path / "own")


def edit(folder: Path, old: str, new: str, file: str = "pairs.csv") -> None:
    text = (folder / file).read_bytes().decode()
    assert old in text
    (folder / file).write_bytes(text.replace(old, new, 1).encode())


ROW = "before/1.jpg,after/1.jpg,nothing has changed,train"

TABLES = {
    "no table": (lambda f: (f / "pairs.csv").unlink(), "0 tables are there: none"),
    "two tables": (lambda f: shutil.copy(f / "pairs.csv", f / "more.tsv"), "2 tables are there: more.tsv, pairs.csv"),
    "an empty file": (lambda f: layouts.write(f / "pairs.csv", ""), "no rows"),
    "a header alone": (lambda f: layouts.write(f / "pairs.csv", "before,after,caption\n"), "no rows"),
    "an unknown column": (lambda f: edit(f, "caption", "captoin"), "unknown column 'captoin'; did you mean 'caption'"),
    "a missing column": (lambda f: edit(f, "after,", "id,"), "no column after"),
    "no caption column": (lambda f: edit(f, "caption,", "mask,"), "has to be a caption"),
    "a column twice": (lambda f: edit(f, "split", "caption"), "column is there twice"),
    "a row too short": (lambda f: edit(f, ROW, "before/1.jpg,after/1.jpg"), "2 cells, the first line 4"),
    "a comma without quotes": (lambda f: edit(f, "nothing has", "nothing, has"), "5 cells"),
    "an open quote": (lambda f: edit(f, ROW, 'before/1.jpg,after/1.jpg,"nothing,train'), "no CSV"),
    "Latin-1": (lambda f: (f / "pairs.csv").write_bytes("before,after,café".encode("latin-1")), "not UTF-8"),
    "UTF-16": (lambda f: (f / "pairs.csv").write_bytes("before,after,caption".encode("utf-16")), "not UTF-8"),
    "zero bytes inside": (lambda f: edit(f, "before/1.jpg", "before/\0.jpg"), "NUL|no name of a file"),
    "an empty caption": (lambda f: edit(f, ROW, "before/1.jpg,after/1.jpg,  ,train"), "a caption is empty"),
    "a caption without a word": (
        lambda f: edit(f, ROW, ROW.replace("nothing has changed", "!!!")), "the caption '!!!' has no word",
    ),
    "an unknown split": (lambda f: edit(f, ",train", ",training"), "unknown split 'training'"),
    "a split in some rows only": (lambda f: edit(f, ROW, ROW.removesuffix("train")), "1 pairs have no split"),
    "a split that leaks": (lambda f: shutil.copy(f / "before" / "0.jpg", f / "after" / "5.jpg"), "in several splits"),
    "no name": (lambda f: edit(f, ROW, ROW.replace("after/1.jpg", "")), "'' is no name of a file"),
    "an absolute path": (lambda f: edit(f, "before/1.jpg", "/etc/1.jpg"), "leads out of the folder"),
    "a path of Windows": (lambda f: edit(f, "before/1.jpg", "C:\\1.jpg"), "leads out of the folder"),
    "a path that escapes": (lambda f: edit(f, "before/1.jpg", "before/../../1.jpg"), "leads out of the folder"),
    "a missing picture": (lambda f: (f / "after" / "1.jpg").unlink(), r"1 pictures are missing: after/1\.jpg"),
    "a folder for a picture": (lambda f: edit(f, "before/1.jpg", "before"), "1 pictures are missing: before"),
    "rows that disagree": (
        lambda f: edit(f, ROW, f"{ROW}\n{ROW.replace('train', 'val')}"), "another split: val, not train",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_a_spoilt_table_is_refused(own, root, kind):
    spoil, complaint = TABLES[kind]
    spoil(own)
    refused(root, "table", own, complaint)


JSONL = {
    "broken JSON": ('{"before": ', "no JSON: .*"),
    "a list": ("[1]", "a list"),
    "a caption that is a number": ('{"before": "a", "after": "b", "caption": 5}', "the caption is 5"),
    "no caption": ('{"before": "a", "after": "b", "caption": null}', "the caption is None"),
    "captions in a text of their own": ('{"before": "a", "after": "b", "captions": {"1": "x"}}', "the caption is {"),
    "a split that is no text": ('{"before": "a", "after": "b", "caption": "x", "split": [1]}', r"split is \[1\]"),
    "a change type of its own": (
        '{"before": "a", "after": "b", "caption": "x", "change_type": "grew"}', "unknown change type 'grew'"
    ),
    "ids twice": (
        "".join(f'{{"id": 7, "before": "{name}", "after": "b", "caption": "x"}}\n' for name in "ac"),
        "the id '7' is there twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", JSONL)
def test_a_spoilt_jsonl_is_refused(own, root, kind):
    (own / "pairs.csv").unlink()
    layouts.write(own / "pairs.jsonl", JSONL[kind][0] + "\n")
    assert "line " in refused(root, "table", own, JSONL[kind][1]).where


def test_a_file_that_only_calls_itself_parquet_is_refused(own, root):
    (own / "pairs.csv").rename(own / "pairs.parquet")
    refused(root, "table", own, "no parquet file")


def bomb(path: Path) -> None:
    """A PNG of a few hundred bytes whose header promises 10,000 x 10,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def cut_png(path: Path) -> None:
    path.write_bytes(layouts.picture(path, 1, format="PNG").read_bytes()[:400])


def moving(path: Path) -> None:
    frames = [Image.new("L", (20, 16), shade) for shade in (0, 255)]
    frames[0].save(path, format="GIF", save_all=True, append_images=frames[1:])


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


PICTURES = {
    "a zero-byte file": (lambda path: path.write_bytes(b""), "0 bytes"),
    "text": (lambda path: path.write_text("<html>not found</html>"), "whatever its name says"),
    "a truncated PNG": (cut_png, "cut short"),
    "a truncated JPEG": (lambda path: path.write_bytes(path.read_bytes()[:500]), "cut short"),
    "a bomb": (bomb, "10000 x 10000 pixels is too large"),
    "a moving picture": (moving, "a moving picture of 2 frames"),
    "another size": (lambda path: layouts.picture(path, 1, (16, 20)), "differ in size: 20 x 16 and 16 x 20"),
    "a link to itself": (loop, "1 pictures are missing"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PICTURES)
def test_a_spoilt_picture_is_refused_by_name(own, root, kind):
    spoil, complaint = PICTURES[kind]
    spoil(own / "after" / "1.jpg")
    assert "1.jpg" in str(refused(root, "table", own, complaint))


def test_all_spoilt_pictures_are_named_at_once(own, root):
    for number in (0, 2, 4):
        (own / "after" / f"{number}.jpg").write_bytes(b"")
    assert "3 pairs cannot be used: '000000'" in str(refused(root, "table", own, "3 pairs"))


@pytest.mark.parametrize("size", [(8, 8), (16, 20)])
def test_a_mask_of_another_size_is_refused(made, root, tmp_path, size):
    folder = shutil.copytree(made["levir_mci"], tmp_path / "mci")
    layouts.picture(folder / "images" / "val" / "label" / "val_000004.png", 0, size)
    refused(root, "levir_mci", folder, "mask and the pictures of pair 'val_000004' differ in size")


STRANGE = {
    "CMYK": (lambda picture, path: picture.convert("CMYK").save(path, "JPEG", quality=95), 60),
    "gray": (lambda picture, path: picture.convert("L").save(path, "PNG"), 255),
    "16 bits": (lambda picture, path: Image.fromarray(np.full((16, 20), 51_400, np.uint16)).save(path, "PNG"), 255),
    "transparent": (lambda picture, path: picture.convert("RGBA").save(path, "PNG"), 0),
    "a palette": (lambda picture, path: picture.convert("P").save(path, "PNG"), 255),
    "a still GIF": (lambda picture, path: picture.save(path, "GIF"), 255),
    "lying on its side": (
        lambda picture, path: picture.transpose(Image.Transpose.ROTATE_90).save(path, "PNG", exif=_on_its_side()), 0,
    ),
}  # fmt: skip


def _on_its_side() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("kind", STRANGE)
def test_pictures_of_other_kinds_are_taken_in_as_upright_rgb(own, root, kind):
    spoil, apart = STRANGE[kind]
    with Image.open(own / "after" / "1.jpg") as picture:
        picture.load()
    spoil(picture, own / "after" / "1.jpg")
    import_corpus(root, "table", own)
    found = read_image(raw.read(root / "data" / "raw" / "table").pairs[1].after)
    assert found.shape == (16, 20, 3)
    assert np.abs(found.astype(int) - np.array(picture).astype(int)).mean() <= apart


def test_a_folder_that_is_linked_and_names_with_accents_are_taken_in(own, root, tmp_path):
    (own / "before").rename(tmp_path / "elsewhere")
    (own / "before").symlink_to(tmp_path / "elsewhere")
    (own / "after" / "1.jpg").rename(own / "after" / "日本 ü.jpg")
    edit(own, "after/1.jpg", "after/日本 ü.jpg")
    import_corpus(root, "table", own, link=True)
    pairs = raw.read(root / "data" / "raw" / "table").pairs
    assert pairs[1].after.name == "日本 ü.jpg"
    assert pairs[0].before.stat().st_ino == (tmp_path / "elsewhere" / "0.jpg").stat().st_ino


def change(file: str, content: object):
    return lambda folder: layouts.write(folder / file, content)


PUBLISHED = [
    ("clevr_change", change("splits.json", '{"train": ['), "not JSON"),
    ("clevr_change", change("change_captions.json", {"CLEVR_default_000000.png": [""]}), "have no caption|no captions"),
    ("clevr_dc", change("captions.json", {"zero": ["x"]}), "'zero' is no number"),
    ("clevr_dc", change("captions.json", {"1": ["x"], "01.png": ["y"]}), "scene 1 is there twice"),
    ("clevr_dc", change("captions.json", {"1": "x"}), "no list of sentences"),
    ("clevr_dc", change("captions.json", {"77": ["x"]}), "in no split: 77"),
    (
        "clevr_dc",
        change("captions.json", {str(number): ["it moved", "?!"] for number in range(layouts.PAIRS)}),
        "6 pairs have no caption, or one without a word",
    ),
    ("clevr_dc", change("type_mapping.json", {"grown": []}), "'grown' is no change type"),
    ("clevr_dc", lambda folder: shutil.rmtree(folder / "aft"), "no aft and no sc_images"),
    ("spot_the_diff", change("annotations/val.json", {}), "a dict at the top"),
    ("spot_the_diff", change("annotations/val.json", [1]), "entry 1 is a int"),
    ("spot_the_diff", change("annotations/val.json", [{"img_id": "4", "sentences": [3]}]), "no list of sentences"),
    ("spot_the_diff", change("annotations/val.json", [{"sentences": ["x y"]}]), "None as 'img_id'"),
    ("spot_the_diff", change("annotations/val.json", [{"img_id": "0", "sentences": ["x"]}]), "in 'train' and in 'val'"),
    ("spot_the_diff", change("annotations/val.json", [{"img_id": "../4", "sentences": ["all left"]}]), "leads out"),
    ("spot_the_diff", lambda folder: (folder / "annotations" / "test.json").unlink(), "the file is not there"),
    ("spot_the_diff", lambda folder: (folder / "resized_images" / "4_2.png").unlink(), "resized_images/4_2.png"),
    ("image_editing_request", change("valid.json", "\xff\xfe"), "not JSON"),
    ("image_editing_request", lambda folder: (folder / "valid.json").unlink(), r"no valid\.json and no val\.json"),
    (
        "image_editing_request",
        change("valid.json", [{"uid": "u0", "img0": "a", "img1": "b", "sents": ["x"]}]),
        "uid 'u0' is there twice",
    ),
    ("birds_to_words", lambda folder: edit(folder, "\tsplit", "\tfold", BIRDS), "no column split"),
    ("birds_to_words", lambda folder: edit(folder, "\ttrain\t", "\tdev\t", BIRDS), "line 2 has the split 'dev'"),
    ("birds_to_words", lambda folder: edit(folder, "/photos/100/", "/faces/", BIRDS), "names no photograph"),
    ("birds_to_words", lambda folder: edit(folder, "\ttrain\t1\tAnimal", "", BIRDS), "line 2 is cut short"),
    ("birds_to_words", lambda folder: (folder / BIRDS).write_bytes(b"\xff\xfe\0"), "not UTF-8"),
    ("levir_cc", change("LevirCCcaptions.json", {"images": {}}), "no list 'images'"),
    ("levir_cc", change("LevirCCcaptions.json", {"images": [{"filename": "best_1.png"}]}), "the split 'best'"),
    ("levir_cc", change("LevirCCcaptions.json", {"images": [{"filename": "val_1.png"}]}), "no list of sentences"),
    (
        "levir_cc",
        change("LevirCCcaptions.json", {"images": [{"filename": "val_1.png", "sentences": [{"raw": 1}]}]}),
        "no list of sentences",
    ),
    ("levir_mci", lambda folder: shutil.rmtree(folder / "images" / "val" / "label"), "missing: images/val/label/"),
]


@pytest.mark.parametrize(("name", "spoil", "complaint"), PUBLISHED, ids=range(len(PUBLISHED)))
def test_a_spoilt_published_corpus_is_refused(made, root, tmp_path, name, spoil, complaint):
    folder = shutil.copytree(made[name], tmp_path / "spoilt")
    spoil(folder)
    refused(root, name, folder, complaint)


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_an_empty_folder_and_one_that_is_not_there_are_told_apart(root, tmp_path, name):
    (tmp_path / "empty").mkdir()
    for folder, complaint in ((tmp_path / "empty", "there is no|0 tables"), (tmp_path / "absent", "no such folder")):
        with pytest.raises(BadInput, match=complaint):
            import_corpus(root, name, folder)
    assert not (root / "data" / "raw").exists() or not list((root / "data" / "raw").iterdir())


def test_an_import_needs_a_workspace_and_a_folder_outside_its_target(own, root):
    shutil.copytree(own, root / "data" / "raw" / "table")
    for folder in (root / "data" / "raw" / "table", root / "data", root / "data" / "raw" / "table" / "before"):
        with pytest.raises(BadInput, match="lies where it would be written"):
            import_corpus(root, "table", folder)
    (root / ".dvc").rmdir()
    with pytest.raises(BadInput, match="no DVC here"):
        import_corpus(root, "table", own)


def test_parameters_that_the_corpus_does_not_fit_undo_the_import(own, root):
    text = (root / "params.yaml").read_text().replace("method: rife", "method: truth")
    (root / "params.yaml").write_text(text.replace("truth: false", "truth: true"))
    before = everything(root)
    with pytest.raises(BadInput, match=r"'truth' needs dataset\.name: rendered"):
        import_corpus(root, "table", own)
    assert everything(root) == before


def test_a_full_disk_leaves_what_was_there(own, root, monkeypatch):
    import_corpus(root, "table", own)
    before = everything(root)
    monkeypatch.setattr(importing.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        import_corpus(root, "table", own)
    assert everything(root) == before


def test_a_spoilt_import_is_named_when_it_is_read(own, root):
    import_corpus(root, "table", own)
    path = root / "data" / "raw" / "table" / raw.TABLE
    lines = path.read_text().splitlines()
    for spoilt in ("{", "[]", json.dumps({**json.loads(lines[0]), "split": "dev"})):
        path.write_text("\n".join([lines[0], spoilt]))
        with pytest.raises(BadInput, match=r"not JSON|line 2") as caught:
            raw.read(path.parent)
        assert raw.TABLE in caught.value.where


def test_links_and_copies_hold_the_same(own, root, monkeypatch):
    import_corpus(root, "table", own)
    copied = everything(root / "data" / "raw" / "table")
    import_corpus(root, "table", own, link=True)
    assert everything(root / "data" / "raw" / "table") == copied
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(18, "Invalid cross-device link")))
    import_corpus(root, "table", own, link=True)
    assert everything(root / "data" / "raw" / "table") == copied
    assert (root / "data" / "raw" / "table" / "pictures" / "before" / "0.jpg").is_symlink()
