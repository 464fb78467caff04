"""The model that `rlinf chat` talks to: that of the checkpoint, asked as it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rlinf.cli.chat_model import ChatModel, Wishes, _GrowingText, load_chat_model
from rlinf.config import build_config, to_plain, validate_cfg
from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.hybrid_engines.generation.hf.streaming import StreamingEngine
from rlinf.utils.checkpoint import CheckpointStore
from tests.unit_tests.workers.actor.reasoning import (
    MODEL,
    learn,
    make_cfg,
    make_groups,
    make_learner,
)

ALPHABET = "characters:0123456789+"
LORA = {"actor.model": {**MODEL, "is_lora": True, "lora_rank": 2}}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save_run(folder: Path, changes: dict[str, Any] | None = None) -> Any:
    """A run with one checkpoint; returns its learner."""
    cfg = make_cfg({"actor.tokenizer": {"tokenizer_model": ALPHABET}, **(changes or {})})
    learner = make_learner(cfg)
    learn(learner, make_groups(learner.engine.model))
    store, tensors = CheckpointStore(folder / "checkpoints"), EngineCheckpoint(learner.engine)
    part = store.begin(4)
    tensors.write(tensors.snapshot(), part / "actor" / "tensors")
    store.commit(4, {"versions": {"rlinf": "0"}, "config": to_plain(cfg)})
    return learner


def save_model(folder: Path, chat_template: str | None = TEMPLATE, **generation: Any) -> Path:
    """A model folder with a tokenizer of characters."""
    tokenizer = character_tokenizer()
    config = transformers.Qwen3Config(
        **{**MODEL["hf_config"], "vocab_size": len(tokenizer), "max_position_embeddings": 160}
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(**generation)
    tokenizer.chat_template = chat_template
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


def asked(monkeypatch: pytest.MonkeyPatch, model: ChatModel) -> list[str]:
    """The texts that the engine is asked with, from now on."""
    texts: list[str] = []
    stream = StreamingEngine.stream

    def note(self: StreamingEngine, request: Any, *args: Any) -> Any:
        texts.append(model._tokenizer.decode(request.prompt_ids))
        return stream(self, request, *args)

    monkeypatch.setattr(StreamingEngine, "stream", note)
    return texts


@pytest.mark.parametrize("changes", [{}, LORA], ids=["plain", "adapters"])
def test_the_answer_is_that_of_the_checkpoint(tmp_path: Path, changes: dict[str, Any]) -> None:
    learner = save_run(tmp_path, changes)
    model = load_chat_model(str(tmp_path), Wishes(greedy=True, max_new_tokens=12))
    pieces: list[str] = []
    answer = model.answer([], "12+3", pieces.append)

    tokenizer, plain = model._tokenizer, learner.engine.model.lm.eval()
    tokens = tokenizer.encode("12+3")
    for _ in range(12):
        logits = plain(input_ids=torch.tensor([tokens])).logits[0, -1]
        tokens.append(int(logits.argmax()))
        if tokens[-1] == tokenizer.eos_token_id:
            break
    expected = tokenizer.decode(tokens[4:], skip_special_tokens=True)
    assert answer.text == "".join(pieces) == expected
    assert len(pieces) > 1, "it comes in pieces"
    assert "global step 4" in model.name and not model.has_turns


def test_the_run_says_how_to_draw_and_the_user_otherwise(tmp_path: Path) -> None:
    save_run(tmp_path)
    own = load_chat_model(str(tmp_path / "checkpoints" / "global_step_4"), Wishes()).params
    assert own.temperature == 0.8 and own.max_new_tokens is None
    mine = load_chat_model(str(tmp_path), Wishes(temperature=0.3, max_new_tokens=5)).params
    assert mine.temperature == 0.3 and mine.max_new_tokens == 5
    assert mine.stop_token_ids == own.stop_token_ids != ()


def test_the_same_seed_gives_the_same_answers(tmp_path: Path) -> None:
    save_run(tmp_path)

    def answers(seed: int) -> list[str]:
        model = load_chat_model(str(tmp_path), Wishes(temperature=2.0, max_new_tokens=8, seed=seed))
        return [model.answer([], "1+2", lambda text: None).text for _ in range(4)]

    first = answers(1)
    assert first == answers(1) and first != answers(2)
    assert len(set(first)) > 1, "each time anew"


def test_prompts_are_those_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"data": {"prompt_template": "0{prompt}+", "train_data_paths": ["none"]}}
    changes["data"] |= {"max_prompt_length": 8, "rollout_batch_size": 4}
    save_run(tmp_path, changes)
    model = load_chat_model(str(tmp_path), Wishes())
    texts = asked(monkeypatch, model)
    model.answer([], "12", lambda text: None)
    assert texts == ["012+"]
    with pytest.raises(ValueError, match=r"cannot encode.*it knows '0123456789\+'"):
        model.answer([], "what?", lambda text: None)


def test_a_model_with_a_template_remembers_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_chat_model(str(save_model(tmp_path)), Wishes(max_new_tokens=4))
    assert model.has_turns and model.params.greedy
    texts = asked(monkeypatch, model)
    first = model.answer([], "one", lambda text: None)
    said = [model.message("one"), {"role": "assistant", "content": first.text}]
    model.answer(said, "two", lambda text: None)
    assert texts[0] == "[user]one\n[assistant]"
    assert texts[1] == f"[user]one\n[assistant]{first.text}\n[user]two\n[assistant]"


def test_a_conversation_ends_where_the_model_does(tmp_path: Path) -> None:
    model = load_chat_model(str(save_model(tmp_path)), Wishes(max_new_tokens=500))
    cut = model.answer([], "x" * 100, lambda text: None)
    assert cut.reason == "length" and cut.tokens <= 160 - 100
    said = [model.message("x" * 70)]
    with pytest.raises(ValueError, match=r"with all that was said before.*/new"):
        model.answer(said, "x" * 70, lambda text: None)
    with pytest.raises(ValueError, match="shorten it"):
        model.answer([], "x" * 170, lambda text: None)


def test_a_folder_says_how_to_draw(tmp_path: Path) -> None:
    folder = save_model(tmp_path, None, do_sample=True, temperature=0.6, top_k=20, top_p=0.9)
    model = load_chat_model(str(folder), Wishes())
    params = model.params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.9)
    assert not model.has_turns


def test_an_embodied_run_is_not_to_talk_to(tmp_path: Path, embodied: Path) -> None:
    store = CheckpointStore(tmp_path / "runs" / "checkpoints")
    store.begin(1)
    config = to_plain(validate_cfg(build_config(str(embodied))))
    store.commit(1, {"versions": {}, "config": config})
    with pytest.raises(ValueError, match=r"chat is for language models.*rlinf eval .*runs"):
        load_chat_model(str(tmp_path / "runs"), Wishes())
    (tmp_path / "config.json").write_text('{"model_type": "rlinf_policy"}')
    with pytest.raises(ValueError, match="chat is for language models"):
        load_chat_model(str(tmp_path), Wishes())


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs" / "mine" / "one" / "checkpoints").mkdir(parents=True)
    with pytest.raises(
        ValueError, match=r"no run at mine; did you mean logs/mine\? Give the folder"
    ):
        load_chat_model("mine", Wishes())
    with pytest.raises(ValueError, match=r"no run at other; .*one\. Give the.*global_step_<N>"):
        load_chat_model("other", Wishes())
    with pytest.raises(ValueError, match="is not a checkpoint"):
        load_chat_model("logs", Wishes())


def test_a_checkpoint_that_is_not_there_or_not_of_a_run(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.begin(3)
    store.commit(3, {"versions": {}})
    with pytest.raises(ValueError, match="there is: global_step_3"):
        load_chat_model(str(tmp_path / "checkpoints" / "global_step_9"), Wishes())
    with pytest.raises(ValueError, match="does not say of which model it is"):
        load_chat_model(str(tmp_path), Wishes())


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"seed": -1}, "--seed is -1"),
    ],
)
def test_wrong_wishes(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Wishes(**wishes)


class Bytes:
    """A tokenizer with a token per byte."""

    @staticmethod
    def decode(tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


def test_a_character_of_several_tokens_is_shown_whole() -> None:
    pieces: list[str] = []
    text = _GrowingText(Bytes(), pieces.append)
    for token in "aé→".encode():
        text.add(token)
    text.add(0xC3)
    assert pieces == ["a", "é", "→"]
    text.finish()
    assert text.shown == "aé→\ufffd"
