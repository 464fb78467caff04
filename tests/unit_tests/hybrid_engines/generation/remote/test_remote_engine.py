"""Engines that are reached by URL, against a small server with a real engine behind it."""

import json
import threading

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation import (
    EngineSettings,
    build_engine,
)
from rlinf.hybrid_engines.generation.remote.http import EngineServerError
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from tests.unit_tests.hybrid_engines.generation.remote.agreement import agree, requests
from tests.unit_tests.hybrid_engines.generation.remote.serving import (
    ALPHABET,
    Behaviour,
    SmallServer,
)
from tests.unit_tests.hybrid_engines.generation.tiny import EOS, logprobs, tiny

KINDS = ("vllm_server", "sglang_server")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny().save_pretrained(place)
    return str(place)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def serve(folder):
    """Starts servers, and engines on them, which end with the test."""
    opened = []

    def start(kind=None, max_running=16, weights=None, behaviour=None, **options):
        server = SmallServer(folder, behaviour or Behaviour())
        opened.append(server)
        if kind is None:
            return server
        engine = connect(kind, folder, server.url, max_running, weights, **options)
        opened.append(engine)
        return server, engine

    yield start
    for each in reversed(opened):
        each.close()


def connect(kind, folder, url, max_running=16, weights=None, max_length=64, **options):
    options = {"url": url, "weights_folder": weights, **options}
    return build_engine(
        kind,
        EngineSettings(
            max_length=max_length, model_path=folder, max_running=max_running, options=options
        ),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_tokens_and_logprobs_are_exact(serve, kind, temperature):
    _, engine = serve(kind)
    asked = requests(temperature=temperature)
    results = engine.generate(asked)
    assert [(r.request_id, r.sample_index) for r in results] == [
        (i, s) for i in range(3) for s in range(2)
    ]
    assert {(len(r.token_ids), r.finish_reason) for r in results} == {(12, "length")}
    agree(results, asked, tiny(), temperature)


def test_ends(serve, kind):
    _, engine = serve(kind)
    results = engine.generate(requests(6, max_new_tokens=40, ignore_eos=False))
    assert {r.finish_reason for r in results} == {"stop", "length"}
    for result in results:
        assert (result.token_ids[-1] == EOS) == (result.finish_reason == "stop")


def test_texts_of_several_tokens_end_a_response(serve, kind):
    _, engine = serve(kind)
    assert engine.takes_stop_texts
    (free,) = engine.generate(requests(1, n=1, temperature=0.0))
    text = "".join(ALPHABET[token - 2] for token in free.token_ids[2:5])
    (ended,) = engine.generate(requests(1, n=1, temperature=0.0, stop=(text,)))
    assert ended.token_ids == free.token_ids[:5] and ended.finish_reason == "stop"
    assert len(ended.logprobs) == 5


def test_what_is_aborted_is_carried_on_under_new_weights(serve, kind, tmp_path):
    server, engine = serve(kind, weights=str(tmp_path))
    new, asked = tiny(seed=4), requests(max_new_tokens=50)
    engine.submit(asked)
    for _ in range(len(asked) * 2):
        server.came.acquire()
    aborted = engine.abort()
    assert engine.unfinished == 0 and len(aborted) == 6
    made = {(r.request_id, r.sample_index): r for r in aborted if r.finish_reason == "abort"}
    assert made, "all of them were done at once"
    engine.update_weights(new.state_dict(), version=3)
    carried = [carried for request in asked if (carried := request.carry_on(aborted))]
    for result in engine.generate(carried):
        before = made[result.request_id, result.sample_index]
        count = len(before.token_ids)
        assert result.token_ids[:count] == before.token_ids and len(result.token_ids) == 50
        assert result.versions == [0] * count + [3] * (50 - count)
        prompt = asked[result.request_id].prompt_ids
        exact = [
            *logprobs(tiny(), prompt, result.token_ids)[:count],
            *logprobs(new, prompt, result.token_ids)[count:],
        ]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


def test_one_request_is_aborted_and_others_go_on(serve, kind):
    server, engine = serve(kind, behaviour=Behaviour(holds=True))
    asked = requests(12, n=1)
    engine.submit(asked)
    for _ in asked:
        server.came.acquire()
    # The name of the first one begins those of others: only itself may end.
    (aborted,) = engine.abort([0])
    server.released.set()
    assert aborted.request_id == 0 and aborted.finish_reason == "abort"
    results = []
    while engine.unfinished:
        results += engine.step()
    assert {r.request_id for r in results} == set(range(1, 12))
    agree(results, asked, tiny())


def test_new_weights_take_effect_and_leave_one_folder(serve, kind, tmp_path):
    _, engine = serve(kind, weights=str(tmp_path))
    asked = requests()
    for version in (1, 2):
        engine.update_weights(tiny(seed=version).state_dict(), version)
        results = engine.generate(asked)
        agree(results, asked, tiny(seed=version))
        assert results[0].versions == [version] * 12
        assert len(list(tmp_path.iterdir())) == 1
    # Equal weights change no answer, so that they are proved to arrive once more.
    sent = engine._updates
    engine.update_weights(tiny(seed=2).state_dict(), 3)
    assert engine._updates > sent + 2
    agree(engine.generate(asked), asked, tiny(seed=2))
    engine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stuck", "named"), [("norm", "vectors"), ("proj", "matrices"), ("lm_head", "the last layer")]
)
def test_weights_without_effect_are_an_error(serve, kind, tmp_path, stuck, named):
    _, engine = serve(kind, weights=str(tmp_path), behaviour=Behaviour(stuck=stuck))
    with pytest.raises(WeightMismatch, match=f"took new values of {named} .*without effect"):
        engine.update_weights(tiny(seed=1).state_dict(), 1)
    with pytest.raises(ValueError, match="not all replaced by an update that failed"):
        engine.step()


def test_weights_that_stop_to_arrive_are_noticed_later(serve, kind, tmp_path):
    server, engine = serve(kind, weights=str(tmp_path))
    engine.update_weights(tiny(seed=1).state_dict(), 1)
    server.behaviour.stuck = ""
    server.load = lambda folder: None
    with pytest.raises(WeightMismatch, match="without effect"):
        engine.update_weights(tiny(seed=2).state_dict(), 2)


def test_weights_need_a_folder_that_the_server_sees(serve, kind, tmp_path):
    _, engine = serve(kind)
    with pytest.raises(ValueError, match="set rollout.server.weights_folder"):
        engine.update_weights(tiny().state_dict(), 1)
    server, engine = serve(kind, weights=str(tmp_path / "new"))
    load = server.load
    server.load = lambda folder: load(f"/elsewhere{folder}")
    with pytest.raises(WeightMismatch, match="under the same path"):
        engine.update_weights(tiny().state_dict(), 1)


def test_weights_that_do_not_fit_are_named(serve, kind, tmp_path):
    _, engine = serve(kind, weights=str(tmp_path))
    weights = dict(tiny().state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(WeightMismatch, match="missing .'model.norm.weight'"):
        engine.update_weights(weights, 1)


def test_vllm_must_be_started_for_new_weights(serve, tmp_path):
    with pytest.raises(EngineServerError, match="404.*VLLM_SERVER_DEV_MODE=1"):
        serve("vllm_server", weights=str(tmp_path), behaviour=Behaviour(development=False))
    serve("vllm_server", behaviour=Behaviour(development=False))


def test_somebody_elses_weights_are_noticed(serve):
    server, engine = serve("sglang_server")
    server.weights = "stranger"
    with pytest.raises(EngineServerError, match="'stranger' and should be of 'default'"):
        engine.generate(requests(1))


def test_a_server_that_starts_late_is_waited_for(folder, serve, kind):
    first = serve()
    port = int(first.url.rpartition(":")[2])
    first.close()
    late = []
    timer = threading.Timer(0.3, lambda: late.append(SmallServer(folder, port=port)))
    timer.start()
    engine = connect(kind, folder, first.url, start_timeout=60)
    assert len(engine.generate(requests(1))) == 2
    engine.close()
    late[0].close()


def test_a_server_that_loads_its_model_is_waited_for(folder, serve, kind, monkeypatch):
    server, answers = serve(), [503, 503]
    handler = server._http.RequestHandlerClass
    plain = handler.do_GET

    def busy(self):
        self._answer(answers.pop(), None) if answers else plain(self)

    monkeypatch.setattr(handler, "do_GET", busy)
    connect(kind, folder, server.url).close()
    assert not answers
    answers += [503] * 100
    with pytest.raises(EngineServerError, match="GET /health: 503"):
        connect(kind, folder, server.url, start_timeout=0.2)


def test_nobody_at_the_url_is_told(folder, serve, kind):
    server = serve()
    server.close()
    with pytest.raises(EngineServerError, match=f"{server.url}, connect: Conn.*is the server runn"):
        connect(kind, folder, server.url, start_timeout=0.2)
    with pytest.raises(ValueError, match="'localhost:8000' is not the URL of a server"):
        connect(kind, folder, "localhost:8000")


def test_another_kind_of_server_is_told(serve, kind, monkeypatch):
    server = serve()
    monkeypatch.setattr(server._http.RequestHandlerClass, "do_GET", _only_health)
    with pytest.raises(EngineServerError, match=r"404.*does not answer as \w+ does: check rollout"):
        connect(kind, server.folder, server.url)


def _only_health(handler):
    handler._answer(200 if handler.path == "/health" else 404, {})


def test_shorter_sequences_are_told(serve, kind):
    with pytest.raises(ValueError, match="seq_length is 64.*32 tokens at most"):
        serve(kind, behaviour=Behaviour(max_length=32))


def test_a_broken_answer_is_an_error(serve, kind):
    _, engine = serve(kind, behaviour=Behaviour(breaks_after=1))
    with pytest.raises(EngineServerError, match="engine at http://127.0.0.1:.*POST /"):
        engine.generate(requests(1))


def test_a_silent_server_is_told(serve, kind):
    server, engine = serve(kind, behaviour=Behaviour(holds=True), answer_timeout=0.3)
    with pytest.raises(EngineServerError, match="timed out for 0.3 s .rollout.server.answer_tim"):
        engine.generate(requests(1, n=1))
    server.released.set()


def test_no_more_requests_than_allowed_at_a_time(serve, kind):
    server, engine = serve(kind, max_running=3, behaviour=Behaviour(holds=True))
    engine.submit(requests(5))
    for _ in range(3):
        server.came.acquire()
    assert server.at_once == 3
    server.released.set()
    results = []
    while engine.unfinished:
        results += engine.step()
    assert len(results) == 10 and server.at_once == 3


def test_logprobs_of_another_distribution_are_refused(serve, kind):
    _, engine = serve(kind, behaviour=Behaviour(with_temperature=False))
    with pytest.raises(ValueError, match="log-probabilities without the temperature.*0.6"):
        engine.generate(requests(temperature=0.6))
    asked = requests()
    agree(engine.generate(asked), asked, tiny())
    _, engine = serve(kind, behaviour=Behaviour(after_cut=True))
    with pytest.raises(ValueError, match="top_k 3 and top_p 1 leave"):
        engine.generate(requests(top_k=3))
    assert engine.generate(requests(1))


def test_the_key_is_shown(serve, kind, monkeypatch):
    with pytest.raises(EngineServerError, match="401.*RLINF_ENGINE_API_KEY"):
        serve(kind, behaviour=Behaviour(key="secret"))
    monkeypatch.setenv("RLINF_ENGINE_API_KEY", "secret")
    _, engine = serve(kind, behaviour=Behaviour(key="secret"))
    assert engine.generate(requests(1))


def test_prefixes_of_other_weights_are_kept_apart(serve, kind, tmp_path):
    server, engine = serve(kind, weights=str(tmp_path))
    engine.generate(requests(1))
    key = "cache_salt" if kind == "vllm_server" else "extra_key"
    before = {body[key] for body in server.asked}
    engine.update_weights(tiny(seed=1).state_dict(), 1)
    count = len(server.asked)
    engine.generate(requests(1))
    after = {body[key] for body in server.asked[count:]}
    assert len(before) == len(after) == 1 and before != after


def test_large_weights_are_several_files(tmp_path, folder):
    from safetensors.torch import load_file

    from rlinf.hybrid_engines.generation.remote.folder import WeightFolder

    writer = WeightFolder(str(tmp_path), "x", folder, torch.bfloat16, file_bytes=10_000)
    weights = tiny(seed=3).state_dict()
    place = writer.write(weights, "1")
    read = {}
    files = sorted((tmp_path / "x-1").glob("*.safetensors"))
    for file in files:
        read |= load_file(file)
    assert len(files) > 2 and read.keys() == weights.keys()
    assert all(torch.equal(read[name], t.to(torch.bfloat16)) for name, t in weights.items())
    assert json.loads((tmp_path / "x-1" / "config.json").read_text())["vocab_size"] == 48
    assert place == str(tmp_path / "x-1")
