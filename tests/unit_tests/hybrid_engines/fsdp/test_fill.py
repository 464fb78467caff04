"""Ranks that have only their shards of a model have, together, the model that one rank has."""

import copy

import pytest
import torch

from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.models import get_model
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.tensor_files import SafetensorsFiles
from rlinf.utils.shards import own_part
from tests.unit_tests.workers.actor.reasoning import MODEL, make_cfg, make_model
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

UNTIED = copy.deepcopy(MODEL)
UNTIED["hf_config"]["tie_word_embeddings"] = False
KINDS = {
    "tied": MODEL,
    "untied, with a head": {**UNTIED, "add_value_head": True},
    "adapters": {**MODEL, "is_lora": True, "lora_rank": 4},
    "a folder": {"model_type": "qwen3"},
    "a folder and adapters": {"model_type": "qwen3", "is_lora": True, "lora_rank": 4},
}
CASES = [(kind, "full_shard") for kind in KINDS] + [("a folder", "no_shard")]
CPU = torch.device("cpu")
SEQUENCES = Sequences(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([2]), torch.tensor([3]))


def section_of(kind, folder):
    section = KINDS[kind]
    return {**section, "model_path": str(folder)} if "folder" in kind else section


def engine_of(kind, folder, strategy="full_shard", ranks=1, deferred=True, **options):
    cfg = make_cfg({"actor.fsdp_config.sharding_strategy": strategy})
    torch.manual_seed(5)
    model = get_model(section_of(kind, folder), dtype=torch.float32, deferred=deferred)
    return TrainEngine(model, cfg.actor, CPU, ranks, 10, keep_reference=True, **options)


def facts(engine):
    """Weights, those of the reference, and what an optimiser step makes of them."""
    from rlinf.hybrid_engines.fsdp.sharding import whole

    before = {name: tensor.clone() for name, tensor in engine.full_tensors()}
    reference = {n: whole(t).clone() for n, t in engine.reference.state_dict().items()}
    asked = engine.infer(sequences=SEQUENCES, reference=True)["logprobs"]
    engine.backward(engine.forward(sequences=SEQUENCES)["logprobs"].sum(), last=True)
    engine.step()
    after = {name: tensor.clone() for name, tensor in engine.full_tensors()}
    return before, reference, asked, after, torch.get_rng_state()


def asked_in_place(engine):
    """What a model says at first, later, later as its own reference, and then again."""

    def ask(**kwargs):
        return engine.infer(sequences=SEQUENCES, **kwargs)["logprobs"]

    first = ask()
    engine.backward(engine.forward(sequences=SEQUENCES)["logprobs"].sum(), last=True)
    engine.step()
    later = ask()
    with engine.reference_at_hand():
        reference = ask(reference=True)
    kept = sum(own_part(tensor).nbytes for tensor in engine.initial.state_dict().values())
    return first, later, reference, ask(), kept


def run_rank(rank, folder):
    torch.set_num_threads(1)
    found = {}
    for kind, strategy in CASES:
        engine = engine_of(kind, folder, strategy, 2)
        local = sum(own_part(p).nbytes for p in engine.model.parameters())
        found[kind, strategy] = facts(engine), local
    found["in place"] = asked_in_place(engine_of("adapters", folder, ranks=2, shares_frozen=True))
    return found


class Rank:
    """A function of the rank that can be sent to a process."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, rank):
        return run_rank(rank, self._folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = make_model(MODEL, seed=2)
    model.save_folder(folder, dict(model.policy_tensors(lambda tensor: tensor)))
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, folder):
    return run_two_ranks(Rank(folder), tmp_path_factory.mktemp("ranks"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "strategy"), CASES)
def test_two_ranks_have_what_one_has(ranks, folder, kind, strategy):
    torch.set_num_threads(1)
    engine = engine_of(kind, folder, deferred=False)
    size = sum(p.nbytes for p in engine.model.parameters())
    before, reference, asked, after, random = facts(engine)
    for rank in ranks:
        (own, own_reference, own_asked, own_after, own_random), local = rank[kind, strategy]
        assert all(torch.equal(own[name], before[name]) for name in before)
        assert all(torch.equal(own_reference[name], reference[name]) for name in reference)
        torch.testing.assert_close(own_asked, asked)
        for name in after:
            # Gradients of two ranks with the same batch are added up.
            assert (own_after[name] - before[name]).abs().max() < 0.1
        assert torch.equal(own_random, random)
        if strategy == "full_shard":
            assert local < 0.6 * size
        else:
            assert local == size
    first, second = (rank[kind, strategy][0][3] for rank in ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.timeout(240)
def test_a_model_with_frozen_weights_is_its_own_reference(ranks, folder):
    torch.set_num_threads(1)
    alone = asked_in_place(engine_of("adapters", folder, shares_frozen=True))
    whole = engine_of("adapters", folder, deferred=False)
    size = sum(tensor.nbytes for tensor in whole.reference.state_dict().values())
    for first, later, reference, again, kept in (alone, *(rank["in place"] for rank in ranks)):
        assert torch.equal(reference, first) and torch.equal(again, later)
        assert not torch.equal(first, later)
        assert kept < 0.5 * size
        torch.testing.assert_close(reference, alone[2])


def test_only_the_rows_that_are_wanted_are_read(folder):
    files = SafetensorsFiles([folder / "model.safetensors"])
    name = "model.embed_tokens.weight"
    rows, width = files.shape(name)
    whole = files.read(name)
    assert files.bytes_read == rows * width * 4
    assert torch.equal(files.read(name, (3, 5)), whole[3:5])
    assert files.bytes_read == (rows + 2) * width * 4
    none = files.read(name, (rows, rows))
    assert none.shape == (0, width) and none.dtype == torch.float32
