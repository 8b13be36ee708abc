"""A newer model takes over while requests come in; one that does not work never does."""

import asyncio
import threading

import pytest

from flows.serving import champion as following
from flows.serving.champion import Champion
from flows.serving.service import make_app
from procap.errors import BadInput
from tests.serving import SMALL, Teller, form, running, web


class Registry:
    """An alias and what stands behind its versions."""

    def __init__(self) -> None:
        self.alias = "models:/old/1"
        self.models = {f"models:/{name}/1": Teller(name, seconds=0.005) for name in ("old", "new")}
        self.loaded: list[str] = []

    def find(self) -> str:
        if not self.alias:
            raise BadInput("no alias", where="a", expected="b", do="c")
        return self.alias

    def load(self, address: str) -> Teller:
        self.loaded.append(address)
        return self.models[address]

    def champion(self, every: float = 60.0, **told) -> Champion:
        return Champion(self.find, self.load, every, **told)


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_newer_model_is_tried_and_takes_over(registry):
    swapped = []
    champion = registry.champion(swapped=swapped.append)
    asyncio.run(champion.look())
    assert (champion.captioner.name, swapped) == ("old", [])
    registry.alias = "models:/new/1"
    asyncio.run(champion.look())
    assert (champion.captioner.name, champion.address) == ("new", "models:/new/1")
    assert champion.captioner.batches == [1], "it was asked for a caption before it took over"
    assert swapped == [champion.captioner]


@pytest.mark.parametrize("fault", ["cannot be loaded", "cannot caption"])
def test_a_newer_model_that_does_not_work_changes_nothing(registry, fault, monkeypatch):
    failures = []
    champion = registry.champion(failed=lambda: failures.append(1))
    registry.alias = "models:/new/1"
    if fault == "cannot be loaded":
        del registry.models["models:/new/1"]
    else:
        registry.models["models:/new/1"].error = RuntimeError("weights are odd")
    for _ in range(3):
        asyncio.run(champion.look())
    assert champion.captioner.name == "old"
    assert champion.problem.where == "models:/new/1"
    assert "models:/old/1 answers meanwhile" in champion.problem.do
    assert len(failures) == 1, "it is not tried at every look"
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.0)
    registry.models["models:/new/1"] = Teller("new")
    champion._until = 0.0
    asyncio.run(champion.look())
    assert (champion.captioner.name, champion.problem) == ("new", None)


def test_a_registry_that_is_away_changes_nothing(registry):
    champion = registry.champion()
    registry.alias = ""
    asyncio.run(champion.look())
    assert "cannot be looked up: no alias" in champion.problem.what
    registry.alias = "models:/old/1"
    asyncio.run(champion.look())
    assert champion.problem is None


def test_no_champion_at_the_start_is_said_at_once(registry):
    registry.alias = ""
    with pytest.raises(BadInput, match="no alias"):
        registry.champion()


def test_no_request_is_dropped_and_each_is_answered_by_one_model(registry):
    app = make_app(registry.champion(every=0.02), SMALL, follows="models:/procap@champion", patience=0.001)
    said: list[tuple[int, str, str]] = []
    done = threading.Event()

    def ask(address: str) -> None:
        while not done.is_set():
            answer = web().post(f"{address}/v1/caption", **form())
            body = answer.json()
            said.append((answer.status_code, body["captions"][0]["text"].split(":")[0], body["model"]["address"]))

    with running(app) as service:
        clients = [threading.Thread(target=ask, args=(service.address,)) for _ in range(4)]
        for client in clients:
            client.start()
        while len(said) < 20:
            done.wait(0.01)
        registry.alias = "models:/new/1"
        while not any(name == "new" for _, name, _ in said[-20:]):
            done.wait(0.01)
        done.set()
        for client in clients:
            client.join()
        ready = web().get(f"{service.address}/readyz").json()
        metrics = web().get(f"{service.address}/metrics").text
    assert {status for status, *_ in said} == {200}
    assert {(name, address) for _, name, address in said} == {("old", "models:/old/1"), ("new", "models:/new/1")}
    assert ready["model"]["address"] == "models:/new/1"
    assert ready["follows"] == "models:/procap@champion"
    assert 'procap_requests_total{path="/v1/caption",status="200"}' in metrics


def test_a_request_that_waits_is_answered_by_the_model_it_came_to(registry):
    old = registry.models["models:/old/1"]
    champion = registry.champion()
    old.gate = threading.Event()
    with running(make_app(champion, SMALL)) as service:
        answers = []
        client = threading.Thread(target=lambda: answers.append(web().post(f"{service.address}/v1/caption", **form())))
        client.start()
        while len(old.batches) < 2:
            client.join(0.01)
        registry.alias = "models:/new/1"
        asyncio.run(champion.look())
        later = web().get(f"{service.address}/v1/model").json()["address"]
        old.gate.set()
        client.join()
    assert later == "models:/new/1"
    assert answers[0].json()["model"]["address"] == "models:/old/1"


def test_ready_tells_what_hinders_a_newer_model(registry):
    champion = registry.champion()
    registry.alias = "models:/new/2"
    asyncio.run(champion.look())
    with running(make_app(champion, SMALL, follows="models:/procap@champion")) as service:
        answer = web().get(f"{service.address}/readyz")
    assert answer.status_code == 200
    assert answer.json()["ready"]
    assert answer.json()["problem"]["where"] == "models:/new/2"
