"""What the service answers, to whom, and what it tells of itself."""

import base64
import io
import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from flows.serving import serve as serving
from flows.serving.limits import Limits
from flows.serving.watch import LOG, Lines
from procap.errors import BadInput
from tests.serving import SIDE, Teller, form, running, told, web

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def service():
    with running(told(), head_seconds=5) as service:
        yield service


def opened(text: str) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(base64.b64decode(text))))


def test_a_caption_says_how_sure_it_is_and_who_says_it(service):
    answer = web().post(f"{service.address}/v1/caption", **form()).json()
    (caption,) = answer["captions"]
    assert caption["text"] == "teller: 200 30 30 to 30 30 200"
    assert caption["words"] == caption["text"].split()
    assert caption["word_probabilities"] == [1.0] * len(caption["words"])
    assert (caption["probability"], caption["change_probability"]) == (0.5, 0.75)
    mask = opened(caption["change_mask"])
    assert set(np.unique(mask)) == {0, 255}
    assert answer["model"] == {
        "address": "models:/teller/1", "version": "1", "digest": "teller" * 8, "captioner": "procap",
        "image_size": SIDE, "card": True,
    }  # fmt: skip
    spent = answer["milliseconds"]
    assert 0 <= spent["model"] <= spent["total"]
    assert "explanation" not in caption


def test_an_explanation_brings_maps_and_frames(service):
    (caption,) = web().post(f"{service.address}/v1/explain", **form()).json()["captions"]
    why = caption["explanation"]
    count = len(caption["words"])
    assert len(why["attention_before"]) == len(why["attention_after"]) == len(why["attention_frames"]) == count
    first, last = opened(why["attention_before"][0]), opened(why["attention_after"][-1])
    assert first.shape == (SIDE, SIDE)
    assert first[0, 0] == 0
    assert last[-1, -1] == 0
    assert opened(why["change_map"])[-1, -1] == 255
    frames = [opened(frame) for frame in why["frames"]]
    assert [tuple(frame[0, 0]) for frame in frames] == [(200, 30, 30)] * 2 + [(30, 30, 200)] * 2


def test_beams_reach_the_model(service):
    answer = web().post(f"{service.address}/v1/caption", **form(), data={"beams": "4"}).json()
    assert answer["captions"][0]["word_probabilities"][0] == 0.25


def test_a_model_that_only_decodes_greedily_says_so():
    teller = Teller()
    with running(told(teller)) as service:
        teller.error = ValueError("the reference's decoding is greedy")
        answer = web().post(f"{service.address}/v1/caption", **form(), data={"beams": "4"})
        assert (answer.status_code, answer.json()["where"]) == (422, "beams")


def test_every_example_of_the_description_works(service):
    description = web().get(f"{service.address}/openapi.json").json()
    for path in ("/v1/caption", "/v1/explain"):
        asked = description["paths"][path]["post"]
        examples = asked["requestBody"]["content"]["application/json"]["examples"]
        assert len(examples) == 2
        for example in examples.values():
            answer = web().post(service.address + path, json=example["value"])
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["captions"]) == len(example["value"]["pairs"])
        assert {"401", "408", "413", "415", "422", "429", "503", "504"} <= set(asked["responses"])
        assert asked["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("Complaint")


def test_the_page_loads_nothing_from_elsewhere(service):
    answer = web().get(f"{service.address}/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    for path in (ROOT / "flows/serving/page").rglob("*.*"):
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text, path
            assert "https://" not in text, path
            assert 'style="' not in text, f"{path}: the policy forbids it"
            assert " onclick" not in text, path


def test_every_file_of_the_page_is_there(service):
    import re

    page = web().get(f"{service.address}/").text
    for path in re.findall(r'(?:src|href)="(page/[^"]+)"', page):
        assert web().get(f"{service.address}/{path}").status_code == 200, path
    for example in web().get(f"{service.address}/page/examples/examples.json").json():
        for end in ("before", "after"):
            picture = web().get(f"{service.address}/page/examples/{example[end]}")
            assert picture.headers["Content-Type"] == "image/png"


def test_the_card_is_told(service):
    assert web().get(f"{service.address}/v1/card").text == "# teller"


def test_with_a_token_only_the_page_and_health_are_open():
    with running(told(token=TOKEN)) as service:
        for path, status in {"/": 200, "/healthz": 200, "/readyz": 200, "/openapi.json": 200, "/page/page.js": 200,
                             "/metrics": 401, "/v1/model": 401, "/v1/card": 401, "/nowhere": 401}.items():  # fmt: skip
            assert web().get(service.address + path).status_code == status, path
        for given in ("", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            answer = web().post(f"{service.address}/v1/caption", **form(), headers={"Authorization": given})
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert TOKEN not in answer.text
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert web().post(f"{service.address}/v1/caption", **form(), headers=right).status_code == 200


def test_the_log_has_a_line_for_each_request_and_nothing_of_its_content(service):
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(Lines().format(record))
    LOG.addHandler(handler)
    LOG.setLevel("INFO")
    try:
        number = {"X-Request-Id": "mine-1"}
        caption = web().post(f"{service.address}/v1/caption", **form(), headers=number).json()["captions"][0]["text"]
        web().post(f"{service.address}/v1/caption", headers={"X-Request-Id": "bad\tnumber"})
    finally:
        LOG.removeHandler(handler)
    good, bad = map(json.loads, lines)
    assert {key: good[key] for key in ("event", "request", "path", "status", "pairs")} == {
        "event": "request", "request": "mine-1", "path": "/v1/caption", "status": 200, "pairs": 1,
    }  # fmt: skip
    assert bad["status"] == 415
    assert bad["request"] != "bad\tnumber"
    assert caption not in "".join(lines)
    assert max(map(len, lines)) < 500


def test_the_measures_count(service):
    def counted() -> dict[str, float]:
        lines = web().get(f"{service.address}/metrics").text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    before = counted()
    web().post(f"{service.address}/v1/caption", **form())
    web().post(f"{service.address}/v1/caption")
    after = counted()
    for name in ('{path="/v1/caption",status="200"}', '{path="/v1/caption",status="415"}'):
        key = f"procap_requests_total{name}"
        assert after[key] == before.get(key, 0) + 1
    assert after["procap_batch_pairs_count"] == before["procap_batch_pairs_count"] + 1
    assert after['procap_model_info{captioner="procap",digest="teller' + "teller" * 7 + '",version="1"}'] == 1
    assert after["process_resident_memory_bytes"] > 0


def test_a_model_that_fails_is_told_without_a_trace():
    teller = Teller()
    with running(told(teller)) as service:
        teller.error = RuntimeError("/home/secret/weights")
        answer = web().post(f"{service.address}/v1/caption", **form())
        assert (answer.status_code, answer.json()["what"]) == (500, "the service failed (RuntimeError)")
        assert "secret" not in answer.text
        teller.error = None
        assert web().post(f"{service.address}/v1/caption", **form()).status_code == 200


def test_an_answer_that_takes_too_long_is_given_up():
    teller = Teller()
    with running(told(teller, limits=Limits(answer=0.2))) as service:
        teller.gate = threading.Event()
        answer = web().post(f"{service.address}/v1/caption", **form())
        teller.gate.set()
        assert answer.status_code == 504
        assert answer.headers["Retry-After"] == "2"
        teller.gate = None
        assert web().post(f"{service.address}/v1/caption", **form()).status_code == 200


def held(service, teller: Teller, count: int) -> list[threading.Thread]:
    """So many requests that wait for the model."""
    teller.gate, already = threading.Event(), len(teller.batches)
    clients = [
        threading.Thread(target=web().post, args=(f"{service.address}/v1/caption",), kwargs=form())
        for _ in range(count)
    ]
    for client in clients:
        client.start()
    while len(teller.batches) == already or len(service.app.state.service.batcher.waiting) < count - 1:
        clients[0].join(0.01)
    return clients


@pytest.mark.parametrize(
    ("limits", "what"),
    [(Limits(queue=2, answer=10), "2 pairs wait"), (Limits(requests=3, answer=10), "3 requests")],
    ids=["the queue is full", "too many requests"],
)
def test_too_many_at_once_are_asked_to_come_again(limits, what):
    teller = Teller()
    with running(told(teller, limits=limits, batch=1)) as service:
        clients = held(service, teller, 3)
        answer = web().post(f"{service.address}/v1/caption", **form())
        teller.gate.set()
        for client in clients:
            client.join()
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert what in answer.json()["what"]
        assert web().post(f"{service.address}/v1/caption", **form()).status_code == 200


def test_a_client_that_goes_away_leaves_the_queue():
    teller = Teller()
    with running(told(teller, limits=Limits(answer=10), batch=1)) as service:
        clients = held(service, teller, 1)
        with pytest.raises(httpx.ReadTimeout):
            web().post(f"{service.address}/v1/caption", **form(), timeout=0.3)
        waiting = service.app.state.service.batcher.waiting
        for _ in range(200):
            if all(job.done.cancelled() for job in waiting):
                break
            clients[0].join(0.01)
        teller.gate.set()
        clients[0].join()
        assert web().post(f"{service.address}/v1/caption", **form()).status_code == 200
        assert teller.batches == [1, 1, 1], "at the start, the first and the last: not the one that left"


def test_ending_finishes_what_was_begun():
    teller = Teller()
    answers = []
    with running(told(teller, limits=Limits(answer=10))) as service:
        teller.gate = threading.Event()
        client = threading.Thread(
            target=lambda: answers.append(web().post(f"{service.address}/v1/caption", **form(), timeout=20))
        )
        client.start()
        while len(teller.batches) < 2:
            client.join(0.01)
        threading.Timer(0.5, teller.gate.set).start()
    client.join()
    assert answers[0].status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_others_are_not_let_in_without_a_token(host):
    with pytest.raises(BadInput, match="anybody who reaches this machine"):
        serving.check_exposure(host, None)
    serving.check_exposure(host, TOKEN)


def test_who_may_come_in():
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        serving.check_exposure(host, None)
    with pytest.raises(BadInput, match="can be guessed"):
        serving.check_exposure("127.0.0.1", "short")


def test_a_port_that_is_taken_is_said():
    taken = serving.listen("127.0.0.1", 0)
    with taken, pytest.raises(BadInput, match="nothing can listen there"):
        serving.listen("127.0.0.1", taken.getsockname()[1])


def test_an_alias_is_looked_up_anew_each_time(monkeypatch):
    versions = {"champion": 3}
    client = SimpleNamespace(get_model_version_by_alias=lambda name, alias: SimpleNamespace(version=versions[alias]))
    monkeypatch.setattr("flows.store.connect", lambda root: client)
    find, follows = serving.address_finder(Path(), "models:/procap@champion")
    assert (find(), follows) == ("models:/procap/3", "models:/procap@champion")
    versions["champion"] = 4
    assert find() == "models:/procap/4"
    for address in ("models:/procap/4", "data/caption/procap/bundle"):
        find, follows = serving.address_finder(Path(), address)
        assert (find(), follows) == (address, None)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--host", "0.0.0.0"], "anybody who reaches this machine"),
        (["--port", "0"], "not a bundle"),
        (["--queue", "5"], "a whole request would not fit"),
    ],
)
def test_the_command_refuses_before_it_listens(words, what, tmp_path, monkeypatch):
    monkeypatch.delenv(serving.TOKEN, raising=False)
    done = CliRunner().invoke(app, ["serve", "--model", str(tmp_path), *words])
    assert isinstance(done.exception, BadInput)
    assert what in str(done.exception)
