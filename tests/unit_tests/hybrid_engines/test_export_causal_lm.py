"""`rlinf export` of a language model: a folder that transformers loads, with its tokenizer."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlinf.cli import main
from rlinf.config import to_plain
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.models.causal_lm.layout import Sequences
from rlinf.utils.checkpoint import CheckpointStore
from tests.unit_tests.workers.actor.reasoning import (
    MODEL,
    VOCABULARY,
    learn,
    make_cfg,
    make_groups,
    make_learner,
)

ALPHABET = "characters:0123456789+"
LORA = {"actor.model": {**MODEL, "is_lora": True, "lora_rank": 2}}


@pytest.mark.parametrize("changes", [{}, LORA], ids=["plain", "adapters"])
def test_a_checkpoint_becomes_a_model_of_transformers(tmp_path, capsys, changes):
    cfg = make_cfg({**changes, "actor.tokenizer": {"tokenizer_model": ALPHABET}})
    learner = make_learner(cfg)
    learn(learner, make_groups(learner.engine.model))
    store = CheckpointStore(tmp_path / "checkpoints")
    part, tensors = store.begin(4), EngineCheckpoint(learner.engine)
    tensors.write(tensors.snapshot(), part / "actor" / "tensors")
    store.commit(4, {"versions": {"rlinf": "0"}, "config": to_plain(cfg)})

    assert main(["export", str(tmp_path), "--to", "hf"]) == 0
    out = tmp_path / "export" / "global_step_4-hf"
    assert str(out) in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.randint(0, VOCABULARY, (7,))
    read = Sequences(tokens, prompts=torch.tensor([1]), responses=torch.tensor([6]))
    ours = learner.engine.model(read)["logprobs"]
    logits = model(tokens[None]).logits[0, :-1].log_softmax(-1)
    theirs = logits.gather(1, tokens[1:, None])[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer.encode("12+3")) == "12+3"

    assert main(["export", str(tmp_path), "--to", "hf"]) == 1
    assert "is not an empty folder" in capsys.readouterr().err
