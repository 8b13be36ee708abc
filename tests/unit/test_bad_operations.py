"""What a careless or unlucky user gives the commands that keep models: each is a complaint, and nothing half done."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import promotion, stage
from flows.doctor import _dvc_remotes, _mlflow, _pipeline
from flows.lineage import read_yaml
from flows.presets import apply_overrides, nested
from flows.process import mark_process
from flows.promotion import Standing, move, read_log
from flows.results import read_scores, read_versions
from flows.store import check_server, connect, show_uri
from procap.errors import BadInput
from procap.evaluation.promotion import judge
from tests.unit.test_promotion import candidate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "overrides",
    [
        {"seed": 1, "seed.x": 2},
        {"seed.x": 2, "seed": 1},
        {"captioners": ["procap"], "captioners.0": "static"},
        {"caption": 3, "caption.steps": 3},
        {"caption.steps": 2, "caption": {"stepz": 3}},
        {"caption": {"steps": "many"}},
        {"caption.steps.x": 2},
        {"": 3},
        {"caption..steps": 3},
        {"captioners": ["procop"]},
        {"ccrc.heads": 7},
    ],
)
def test_overrides_that_make_no_parameters_are_refused_and_nothing_is_written(tmp_path, overrides):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    before = (tmp_path / "params.yaml").read_bytes(), (tmp_path / "dvc.yaml").read_bytes()
    with pytest.raises(BadInput) as caught:
        apply_overrides(tmp_path / "params.yaml", overrides)
    assert caught.value.where
    assert ((tmp_path / "params.yaml").read_bytes(), (tmp_path / "dvc.yaml").read_bytes()) == before


def test_a_section_and_a_key_of_it_may_both_be_given():
    section = {"steps": 2}
    assert nested({"caption": section, "caption.batch": 3}) == {"caption": {"steps": 2, "batch": 3}}
    assert nested({"caption.batch": 3, "caption": section}) == {"caption": {"steps": 2, "batch": 3}}
    assert section == {"steps": 2}


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:hid@den@127.0.0.1:9/x",
        "http://me:hid/den@127.0.0.1:9",
        "http://me:hid#den@127.0.0.1:9",
        "https://:hidden@127.0.0.1:9",
        "http://hidden@127.0.0.1:9",
        "postgresql://me:hid/den@127.0.0.1:9/runs",
        "postgresql://me:hidden@127.0.0.1:9/runs",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://",
        "http://" + 70 * "x",
        "sqlite:///no/such/folder/runs.db",
        "sqlite://",
        "ftp://127.0.0.1",
    ],
)
def test_an_address_of_no_store_is_refused_at_once_and_no_password_is_told(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        connect(tmp_path)
    assert not any(part in str(caught.value) for part in ("hid", "den"))


def test_signs_in_a_password_are_explained_and_an_address_without_one_stays():
    with pytest.raises(BadInput, match="%40"):
        check_server("http://me:a/b@127.0.0.1:9", "MLflow", "start it")
    assert show_uri("https://example.org:5000/at") == "https://example.org:5000/at"
    assert show_uri("models:/procap@champion") == "models:/procap@champion"


@pytest.mark.parametrize("kind", ["a folder", "something else"])
def test_what_is_no_database_is_refused_at_once(tmp_path, monkeypatch, kind):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = tmp_path / "mlflow.db"
    path.mkdir() if kind == "a folder" else path.write_bytes(b"no database at all" * 200)
    with pytest.raises(BadInput, match=r"folder is where|not a database"):
        connect(tmp_path)
    assert not {finding.what: finding for finding in _mlflow(tmp_path, False)}["mlflow store"].well


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), float("-inf")])
def test_a_margin_that_is_no_number_is_refused(margin):
    with pytest.raises(BadInput, match="margin"):
        judge(candidate(), None, metric="CIDEr", margin=margin)


def test_a_log_that_cannot_be_written_stops_a_move_before_it_asks_the_registry(tmp_path):
    (tmp_path / promotion.LOG).mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        move(None, tmp_path, "procap", Standing(None, None), Standing("1", None), {"action": "promote"})


def test_a_log_cut_off_inside_a_letter_or_with_other_things_in_it_is_read(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / promotion.LOG).write_bytes('{"id": "a"}\n3\nnull\n{"by": "caf\xe9"}\n'.encode() + b'{"by": "caf\xc3')
    assert read_log(tmp_path) == [{"id": "a"}, {"by": "café"}]


@pytest.mark.parametrize("text", ["stages:\n  a: [\n", "stages:\n  a: 'x", "3"])
def test_a_torn_file_of_dvc_is_named(tmp_path, text):
    (tmp_path / "dvc.yaml").write_text(text)
    with pytest.raises(BadInput, match="not YAML") as caught:
        read_yaml(tmp_path / "dvc.yaml")
    assert "git checkout dvc.yaml" in caught.value.do
    assert not _pipeline(tmp_path).well


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[core\nx", "dvc remote"),
        ("['remote \"near\"']\n    url = https://me:sho/wn@example.org/x\n", "dvc secrets"),
    ],
)
def test_a_configuration_of_dvc_that_is_torn_or_tells_a_password_with_a_slash_is_named(tmp_path, text, what):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text(text)
    found = {finding.what: finding for finding in _dvc_remotes(tmp_path, False)}
    assert not found[what].well
    assert "wn@" not in str(found)


def test_a_server_that_asks_for_a_password_is_no_database_to_upgrade(tmp_path, monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(BadInput, match="401") as caught:
            connect(tmp_path)
        server.shutdown()
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.do


def test_a_server_that_is_no_prefect_is_named_by_deploy(tmp_path, monkeypatch):
    from flows import deployment

    def refusing():
        raise ValueError("Expecting value: line 1\nmore")

    monkeypatch.setenv("PREFECT_API_URL", "http://me:hidden@127.0.0.1:9/api")
    monkeypatch.setattr(deployment, "check_server", lambda *_: None)
    monkeypatch.setattr(deployment, "_make_pool", refusing)
    with pytest.raises(BadInput, match="refuses: Expecting value") as caught:
        deployment.deploy(tmp_path)
    assert caught.value.where == "PREFECT_API_URL=http://127.0.0.1:9/api"


def test_a_server_that_takes_no_labels_costs_a_run_one_line(monkeypatch):
    import prefect.client.orchestration
    import prefect.logging.loggers

    def refusing(**_):
        raise RuntimeError("404 Not Found\nmore")

    said = []
    logger = SimpleNamespace(warning=lambda text, *values: said.append(text % values))
    monkeypatch.setattr(prefect.client.orchestration, "get_client", refusing)
    monkeypatch.setattr(prefect.logging.loggers, "flow_run_logger", lambda *_: logger)
    mark_process(None, SimpleNamespace(id="1"), None)
    (line,) = said
    assert line.endswith("404 Not Found")


def test_torn_results_are_named(tmp_path):
    for path in ("data/evaluate/procap/metrics.json", "data/register/versions.json"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text('{"CIDEr": ')
    for read in (read_scores, read_versions):
        with pytest.raises(BadInput, match="cannot be read"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 10000000000000 bytes"), 2),
        (RuntimeError("CUDA out of memory. Tried to allocate 99 GiB"), 2),
        (MemoryError(), 2),
        (RuntimeError("sizes do not fit"), None),
    ],
)
def test_sizes_that_need_more_memory_than_there_is_are_bad_input(tmp_path, monkeypatch, capsys, error, status):
    def run_step(*_):
        raise error

    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(stage, "run_step", run_step)
    monkeypatch.setattr(stage, "listen_to_signals", lambda: None)
    if status is None:
        with pytest.raises(RuntimeError, match="sizes do not fit"):
            stage.main(["tokenize"])
    else:
        assert stage.main(["tokenize"]) == status
        assert "not enough memory" in capsys.readouterr().err
