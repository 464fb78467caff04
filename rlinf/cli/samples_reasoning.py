"""One prompt with a response: its text, its tokens, which of them count, and its reward."""

from __future__ import annotations

import asyncio
import copy
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from rlinf.cli.sample_parts import NoSample, rounded

_LOOKED_AT = 1000
"""Records among which one is looked for that is short enough."""
_MOST_TOKENS, _LAST_TOKENS, _MOST_LINES = 96, 24, 30
_WIDTH = 100


def reasoning_sample(cfg: Any) -> dict[str, Any]:
    """Take the first prompt that is short enough, and a response with the right answer.

    The response is the worked solution of the data. Without one it is the reference answer, in the
    form for which the reward gives most.

    Args:
        cfg: What `validate_cfg` returned, of a task type of language models.

    Raises:
        NoSample: Tokenizer or data cannot be loaded here.
    """
    from rlinf.data.datasets import make_dataset
    from rlinf.data.encoders import encoders_of_run
    from rlinf.data.tokenizer import tokenizer_of_run

    data, split = cfg.data, "val" if cfg.runner.task_type == "reasoning_eval" else "train"
    seed = cfg.runner.seed if data.seed is None else data.seed
    try:
        tokenizer = tokenizer_of_run(cfg)
        encoder, solutions = encoders_of_run(cfg, tokenizer)
        dataset = make_dataset(data, split, seed)
    except (ValueError, OSError) as error:
        raise NoSample(str(error)) from error
    try:
        place, too_long, text, ids = _first_short(dataset, encoder, data.max_prompt_length)
        record = dataset[place]
    except ValueError as error:
        raise NoSample(str(error)) from error
    finally:
        dataset.close()
    responses = list(_encoded(_responses(record, cfg), solutions, record.prompt))
    empty = _Response("an empty response", "", [], [])
    scored = _scores(cfg, tokenizer, record, text, [*responses, empty])
    rewards, best = scored["rewards"], 0
    if responses and rewards:
        best = max(range(len(responses)), key=lambda i: rewards[i]["score"])
        rewards = [rewards[best], rewards[-1]]
    sample: dict[str, Any] = {
        "kind": "reasoning",
        "split": split,
        "record": place,
        "task": record.task,
        "prompt": record.prompt,
        "text": text,
        "tokens": _tokens(tokenizer, ids),
        "answer": record.answer,
        "response": None,
        "reward_type": cfg.reward.reward_type,
        "reward_runs": scored["where"],
        "rewards": rewards,
        "notes": [],
    }
    if too_long:
        sample["notes"].append(
            f"records before it that have more than data.max_prompt_length="
            f"{data.max_prompt_length} tokens: {too_long}"
        )
    if data.apply_chat_template:
        sample["notes"] += _rewrites(cfg, tokenizer)
    if responses:
        sample["response"] = _shown(tokenizer, ids, responses[best])
        sample["notes"] += _complaints(cfg, sample, len(ids), len(responses[best].ids))
    return sample


def _rewrites(cfg: Any, tokenizer: Any) -> list[str]:
    """Say what a chat template makes of earlier turns, where conversations go on."""
    from rlinf.agents.templates import ChatFormat, TemplateRewrites, check_template

    # Clients go on with what users say, agents with what tools do.
    live = cfg.runner.task_type == "coding_online_rl"
    if not live and cfg.get("agentloop") is None:
        return []
    then = ". Of clients with such conversations each request is a sequence of its own"
    chat = ChatFormat(tokenizer)
    for thinks in (False, True):
        try:
            check_template(chat.render, thinks=thinks, roles=("user",) if live else ("tool",))
        except TemplateRewrites as error:
            return [f"{'answers that think: ' if thinks else ''}{error}{then if live else ''}"]
    return []


def _first_short(dataset: Any, encoder: Any, limit: int) -> tuple[int, int, str, list[int]]:
    """Return the place of the first prompt that fits, how many did not, its text and tokens."""
    count = min(len(dataset), _LOOKED_AT)
    for place in range(count):
        text, ids = encoder.encode(dataset[place].prompt)
        if len(ids) <= limit:
            return place, place, text, ids
    raise ValueError(
        f"none of the first {count} prompts has at most data.max_prompt_length={limit} tokens; the "
        f"last of them has {len(ids)}: raise it"
    )


class _Response(NamedTuple):
    """A response that ought to be right.

    Attributes:
        name: what it is.
        text: of all of it.
        ids: its tokens.
        learnt: which of them count.
        judged: text that the reward judges; None is what the tokens give.
    """

    name: str
    text: str
    ids: list[int]
    learnt: list[bool]
    judged: str | None = None


def _responses(record: Any, cfg: Any) -> Iterator[tuple[str, str | list[dict[str, Any]]]]:
    """Yield names and texts, or messages, of responses that ought to be right."""
    if record.solution is not None:
        yield "the worked solution of the data", record.solution
        return
    answer = record.answer
    if isinstance(answer, Mapping):
        answer = answer.get("target")
    if isinstance(answer, list | tuple) and answer:
        answer = answer[0]
    if isinstance(answer, str | int | float):
        tag = cfg.reward.get("answer_tag") or "answer"
        yield "the reference answer", str(answer)
        yield f"the reference answer in <{tag}>", f"<{tag}>{answer}</{tag}>"
        yield "the reference answer in \\boxed{}", f"\\boxed{{{answer}}}"


def _encoded(
    responses: Iterator[tuple[str, str | list[dict[str, Any]]]], solutions: Any, prompt: Any
) -> Iterator[_Response]:
    """Add the tokens; leave out what the tokenizer cannot write."""
    for name, said in responses:
        try:
            ids, learnt = solutions.encode(said, prompt)
            texts = [message["content"] for message in solutions.written(said)]
        except ValueError:
            continue
        if isinstance(said, str):
            yield _Response(name, said, ids, learnt)
        else:
            yield _Response(name, "".join(texts), ids, learnt, judged=texts[-1])


def _scores(
    cfg: Any, tokenizer: Any, record: Any, text: str, responses: Sequence[_Response]
) -> dict[str, Any]:
    """Score responses where a run would: in this process, or in one that is confined."""
    from rlinf.algorithms.rewards.shaping import scaled
    from rlinf.data.reasoning import Prompt
    from rlinf.data.tokenizer import load_tokenizer
    from rlinf.workers.reward.scorer import Scorer

    section = copy.deepcopy(cfg.reward)
    OmegaConf.set_readonly(section, False)
    section.num_processes = 1
    prompt = Prompt(0, [], text, record.answer, record.task, record.metadata)
    try:
        own = section.tokenizer
        reads = load_tokenizer(own) if own.tokenizer_model else tokenizer
        scorer = Scorer(section)
        where = scorer.wait_ready()
    except ValueError as error:
        return {"where": f"elsewhere, as it cannot be computed here: {error}", "rewards": []}
    # What the reward sees is what comes back of the tokens.
    texts = [
        reads.decode(each.ids, skip_special_tokens=True) if each.judged is None else each.judged
        for each in responses
    ]

    async def score() -> list[Any]:
        return await asyncio.gather(*(scorer.score(text, prompt) for text in texts))

    try:
        outcomes = asyncio.run(score())
    finally:
        scorer.close()
    bounds = section.reward_scale, section.reward_min_val, section.reward_max_val
    found = []
    for each, outcome in zip(responses, outcomes, strict=True):
        good = outcome.status == "ok"
        value = outcome.value["score"] if good else 0.0
        found.append(
            {
                "response": each.name,
                "score": value,
                "reward": scaled(value, *bounds),
                "numbers": outcome.value["info"] if good else {},
                "failure": None if good else f"{outcome.status}: {outcome.message}",
            }
        )
    return {"where": where, "rewards": found}


def _shown(tokenizer: Any, prompt_ids: list[int], response: _Response) -> dict[str, Any]:
    from rlinf.data.token_batch import TokenBatch

    example = prompt_ids, response.ids, response.learnt
    mask = TokenBatch.of_examples([example]).loss_mask.tolist()
    tokens = _tokens(tokenizer, response.ids)
    for token, counts in zip(tokens, mask, strict=True):
        token["counts"] = counts
    return {"is": response.name, "text": response.text, "tokens": tokens}


def _tokens(tokenizer: Any, ids: Sequence[int]) -> list[dict[str, Any]]:
    return [{"id": number, "piece": _piece(tokenizer, number)} for number in ids]


def _piece(tokenizer: Any, number: int) -> str:
    piece = tokenizer.decode([number])
    # Part of a character has no text of its own.
    return piece if "\ufffd" not in piece else str(tokenizer.convert_ids_to_tokens(number))


def _complaints(cfg: Any, sample: Mapping[str, Any], prompt: int, response: int) -> list[str]:
    found = []
    sampling = cfg.algorithm.sampling_params if cfg.algorithm is not None else None
    limit = None if sampling is None else sampling.max_new_tokens
    if cfg.get("agentloop") is not None:
        # An episode has several responses.
        total = cfg.agentloop.max_total_tokens
        limit = None if total is None else total - prompt
    if limit is None and cfg.runner.seq_length is not None:
        limit = cfg.runner.seq_length - prompt
    if limit is not None and response > limit:
        found.append(f"a response may have {limit} tokens: one like this would be cut")
    rewards = sample["rewards"]
    if rewards and rewards[0]["score"] <= rewards[-1]["score"]:
        found.append(
            "the right answer earns no more than an empty response: reward and data do not fit, "
            "or the answer is not itself a response, as the tests of a program are not"
        )
    return found


def reasoning_lines(sample: Mapping[str, Any]) -> list[str]:
    """Return what `reasoning_sample` found, in words."""
    kind = {"train": "training", "val": "validation"}[sample["split"]]
    lines = [f"a {kind} prompt: record {sample['record']}, task {sample['task']}"]
    prompt = sample["prompt"]
    if prompt != sample["text"]:
        own = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        lines += ["  in the data", *_block(own)]
    lines += ["  as the model sees it", *_block(sample["text"])]
    lines += [f"  {len(sample['tokens'])} tokens, of which none counts in the loss"]
    lines += _token_lines(sample["tokens"])
    response = sample["response"]
    if response is None:
        lines.append("  the data has no text that could be a response")
    else:
        tokens = response["tokens"]
        counting = sum(token["counts"] for token in tokens)
        lines += [f"  a response: {response['is']}", *_block(response["text"])]
        lines += [f"  {len(tokens)} tokens, of which {counting} count in the loss, marked *"]
        lines += _token_lines(tokens)
    lines += ["  reference answer", *_block(str(sample["answer"]))]
    lines.append(
        f"  reward '{sample['reward_type']}', which a run computes {sample['reward_runs']}"
    )
    lines += [f"    {_reward(found)}" for found in sample["rewards"]]
    return [*lines, *(f"  note: {note}" for note in sample["notes"])]


def _reward(found: Mapping[str, Any]) -> str:
    said = f"{rounded(found['reward'])} for {found['response']}"
    facts = [f"{name} {rounded(value)}" for name, value in found["numbers"].items()]
    if found["reward"] != found["score"]:
        facts.insert(0, f"score {rounded(found['score'])}")
    if found["failure"]:
        facts.append(found["failure"])
    return said + (f" ({', '.join(facts)})" if facts else "")


def _block(text: str) -> list[str]:
    """Return a text, indented, wrapped, and cut if it is long."""
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, _WIDTH - 4, replace_whitespace=False) or [""]
    ]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines"]
    return [f"    {line}".rstrip() for line in lines]


def _token_lines(tokens: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return ids with their pieces, some in each line."""
    words = [
        f"{token['id']} {token['piece']!r}{'*' if token.get('counts') else ''}" for token in tokens
    ]
    if len(words) > _MOST_TOKENS:
        more = f"... {len(words) - _MOST_TOKENS} more ..."
        words = [*words[: _MOST_TOKENS - _LAST_TOKENS], more, *words[-_LAST_TOKENS:]]
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 2 > _WIDTH - 4:
            lines.append("")
        lines[-1] += f"  {word}" if lines[-1] else word
    return [f"    {line}" for line in lines]
