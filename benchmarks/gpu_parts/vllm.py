"""vLLM as an engine on one GPU: does each thing it promises, and how long it takes."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.settings import TINY, Row, Settings, random_model
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationEngine,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    build_engine,
)

SMALLEST_LIMIT = 1e-3
"""Mean difference of log-probabilities that is allowed in fp32."""
SHORT, LONG = 16, 400
"""Tokens of a response after whose end the others are interrupted, and of those."""
MARKER = "last"
"""The request for the former."""
ROUNDING = 2.0
"""How often the difference between a forward in bf16 and one in fp32 is allowed."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row per check; one that fails does not keep others from running."""
    yield from Checks(settings).run()


class Checks:
    """An engine, and models that it must agree with.

    Args:
        settings: What all parts are told.
        further: Settings of the engine besides those that all checks need.

    Attributes:
        backend: Name of the engine, and of the module that it is made of.
        title: What it is called.
    """

    backend, title = "vllm", "vLLM"

    def __init__(self, settings: Settings, **further: Any):
        self.settings = settings
        self.shape = TINY if settings.tiny else settings.sizes[0]
        self.models = [self._model(seed) for seed in (0, 1)]
        self._further = further
        self.engine: GenerationEngine

    def all(self) -> list[Callable[[], str]]:
        """Return the checks, in order of importance."""
        return [
            self.new_weights,
            self.logprobs,
            self.cuts,
            self.update_in_the_middle,
            self.aborted_and_carried_on,
            self.sleep_and_wake,
            self.sleep_without_weights,
            self.speed,
        ]

    def run(self) -> Iterator[Row]:
        """Start the engine and check."""
        with tempfile.TemporaryDirectory() as folder:
            self.models[0].save_pretrained(folder)
            begin = time.monotonic()
            self.engine = build_engine(
                self.backend,
                EngineSettings(
                    max_length=1024,
                    model_path=folder,
                    precision="fp32" if self.settings.tiny else "bf16",
                    max_running=256,
                    gpu_memory_utilization=0.1 if self.settings.tiny else 0.5,
                    **self._further,
                ),
            )
            yield _row("start", True, f"{self.title} {self._version()}, {self.shape}", begin)
            try:
                for check in self.all():
                    begin = time.monotonic()
                    name = check.__name__.replace("_", " ")
                    try:
                        yield _row(name, True, check(), begin)
                    except Exception as error:
                        yield _row(name, False, f"{type(error).__name__}: {error}"[:400], begin)
                        self._mend()
            finally:
                self.engine.close()

    def _mend(self) -> None:
        """Bring the engine back to where the next check can begin, if it can be."""
        try:
            self.engine.abort()
            if self.engine._asleep:
                self.engine.wake()
            self.engine.update_weights(self.weights(0), 0)
        except Exception as error:
            print(f"the engine cannot be mended: {error!r}", flush=True)

    def _version(self) -> str:
        return importlib.import_module(self.backend).__version__

    # -- checks ------------------------------------------------------------------------------------

    def new_weights(self) -> str:
        """Replace all weights several times; each time responses must be of the new ones."""
        begin = time.perf_counter()
        self.engine.update_weights(self.weights(0), 0)
        first = time.perf_counter() - begin
        times = []
        for version in range(1, 6):
            begin = time.perf_counter()
            self.engine.update_weights(self.weights(version % 2), version)
            times.append(time.perf_counter() - begin)
        results = self.generate(requests(16, new=48))
        right, wrong = (self.differ(results, model) for model in (self.models[1], self.models[0]))
        if not right < self.limit(results, self.models[1]) < wrong:
            raise AssertionError(f"differs by {right:.4f} from the new model, {wrong:.4f} the old")
        size = sum(t.numel() * t.element_size() for t in self.weights(0).values()) / 1e9
        middle = statistics.median(times)
        return (
            f"{size:.2f} GB in {1e3 * middle:.0f} ms, {size / middle:.1f} GB/s (first, with its "
            f"proof, {first:.1f} s); mean difference {right:.5f}, from the old model {wrong:.3f}"
        )

    def logprobs(self) -> str:
        """Compare log-probabilities at several temperatures with transformers."""
        self.engine.update_weights(self.weights(0), 0)
        said = []
        for temperature in (1.0, 0.7, 0.0):
            results = self.generate(requests(32, n=2, temperature=temperature))
            said.append(f"T {temperature:g}: {self.agree(results, temperature=temperature):.5f}")
        return "mean differences " + ", ".join(said)

    def cuts(self) -> str:
        """Compare log-probabilities under top-k and top-p, which must be of all tokens."""
        said = []
        for cut in ({"top_p": 0.7, "temperature": 0.8}, {"top_k": 20}):
            results = self.generate(requests(32, n=2, **cut))
            found = self.agree(results, temperature=cut.get("temperature", 1.0))
            said.append(f"{cut}: {found:.5f}")
        return "mean differences " + ", ".join(said)

    def update_in_the_middle(self) -> str:
        """Replace weights while responses are made."""
        self.engine.update_weights(self.weights(0), 0)
        done = self._begin()
        begin = time.perf_counter()
        self.engine.update_weights(self.weights(1), 1, recompute=True)
        took = time.perf_counter() - begin
        while self.engine.unfinished:
            done += self.engine.step()
        results = [result for result in done if result.request_id != MARKER]
        old = [result.versions.count(0) for result in results]
        assert all(0 < count < LONG for count in old), f"tokens of the old weights: {old}"
        assert all(r.versions == sorted(r.versions) and len(r.versions) == LONG for r in results)
        before = [_part(result, 0, count) for result, count in zip(results, old, strict=True)]
        first = self.agree(before)
        second = self.agree(results, self.models[1], skip=old)
        return f"{1e3 * took:.0f} ms; mean differences {first:.5f} before, {second:.5f} after"

    def aborted_and_carried_on(self) -> str:
        """Abort all requests, and carry on from what there was.

        One that has come to its end is complete. None waits for its turn any more, so what was
        made of the others must be there.
        """
        self.engine.update_weights(self.weights(0), 0)
        done = self._begin()
        asked = list(self.asked.values())
        stopped = self.engine.abort()
        assert self.engine.unfinished == 0, f"{self.engine.unfinished} are left"
        done += [result for result in stopped if result.finish_reason != "abort"]
        aborted = [result for result in stopped if result.finish_reason == "abort"]
        assert len(done) + len(aborted) == len(asked), f"{len(done)} ended, {len(aborted)} aborted"
        for result in done:
            assert len(result.token_ids) == self.asked[result.request_id].params.max_new_tokens
        lengths = [len(result.token_ids) for result in aborted]
        assert aborted and all(0 < length < LONG for length in lengths), (
            f"lengths when aborted: {lengths}; {len(done)} had ended"
        )
        carried = [request.carry_on(aborted) for request in asked]
        results = self.engine.generate([request for request in carried if request])
        assert len(results) == len(aborted), f"{len(results)} of {len(aborted)} were carried on"
        so_far = {result.request_id: result.token_ids for result in aborted}
        for result in results:
            assert len(result.token_ids) == LONG
            assert result.token_ids[: len(so_far[result.request_id])] == so_far[result.request_id]
        return (
            f"{len(done)} had ended, {len(aborted)} had {min(lengths)} to {max(lengths)} of {LONG} "
            f"tokens; mean difference {self.agree([*done, *results]):.5f}"
        )

    def sleep_and_wake(self) -> str:
        """Give all memory away and take it back in two steps, with the same weights."""
        asked = requests(16, temperature=0.0)
        before = self.generate(asked)
        free = [_free()]
        times = [time.perf_counter()]
        self.engine.sleep("offload")
        free.append(_free())
        times.append(time.perf_counter())
        self.engine.wake(weights_only=True)
        free.append(_free())
        self.engine.wake()
        free.append(_free())
        times.append(time.perf_counter())
        after = self.generate(asked)
        self.agree(after, temperature=0.0)
        same = sum(a.token_ids == b.token_ids for a, b in zip(before, after, strict=True))
        shown = " -> ".join(f"{each:.1f}" for each in free)
        return (
            f"free GB: {shown}; sleep {times[1] - times[0]:.2f} s, wake {times[2] - times[1]:.2f} "
            f"s; {same} of {len(before)} greedy responses equal"
        )

    def sleep_without_weights(self) -> str:
        """Sleep without keeping weights, and replace them before keys and values come back."""
        self.engine.sleep("discard")
        free = _free()
        self.engine.wake(weights_only=True)
        self.engine.update_weights(self.weights(1), 1)
        self.engine.wake()
        results = self.generate(requests(16, new=48))
        found = self.agree(results, self.models[1])
        return f"{free:.1f} GB free asleep; mean difference {found:.5f}"

    def speed(self) -> str:
        """Time 256 responses of 128 + 384 tokens."""
        for round_ in range(2):
            asked = requests(32, n=8, prompt=128, new=384, seed=round_)
            begin = time.perf_counter()
            results = self.engine.generate(asked)
            seconds = time.perf_counter() - begin
        made = sum(len(result.token_ids) for result in results)
        return f"{made / seconds:,.0f} tokens/s"

    # -- helpers -----------------------------------------------------------------------------------

    def _begin(self) -> list[GenerationResult]:
        """Ask for long responses and a short one, which begins last; return what has ended with it.

        By then the others have begun, however fast the GPU is, and none is near its end.
        """
        (short,) = requests(1, new=SHORT, seed=1)
        asked = [*requests(32, new=LONG), dataclasses.replace(short, request_id=MARKER)]
        self.asked = {request.request_id: request for request in asked}
        self.engine.submit(asked)
        done: list[GenerationResult] = []
        while not done:
            done += self.engine.step()
        return done

    def _model(self, seed: int) -> Any:
        model = random_model(self.shape, self.settings.device, seed)
        with torch.no_grad():
            # Distributions that are neither flat nor sharp.
            model.model.norm.weight.mul_(5)
        return model

    def weights(self, which: int) -> dict[str, Tensor]:
        """Return the weights of one of the models; what is tied comes once."""
        model = self.models[which]
        tied = model.config.tie_word_embeddings
        return {n: t for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}

    def generate(self, asked: list[GenerationRequest]) -> list[GenerationResult]:
        """Serve requests, and remember them."""
        self.asked = {request.request_id: request for request in asked}
        return self.engine.generate(asked)

    def agree(
        self,
        results: list[GenerationResult],
        model: Any = None,
        temperature: float = 1.0,
        skip: Sequence[int] = (),
    ) -> float:
        """Return by how much log-probabilities differ from a plain forward, on average."""
        model = model or self.models[0]
        found = self.differ(results, model, temperature, skip)
        limit = self.limit(results, model, temperature)
        if not found < limit:
            raise AssertionError(f"log-probabilities differ by {found:.4f}, more than {limit:.4f}")
        return found

    @torch.no_grad()
    def limit(self, results: list[GenerationResult], model: Any, temperature: float = 1.0) -> float:
        """Return the difference that rounding explains, as a forward in fp32 shows."""
        exact = copy.deepcopy(model).float()
        total, count = 0.0, 0
        for result in results:
            pair = [self._score(result, one, temperature) for one in (model, exact)]
            some = (pair[0] - pair[1]).abs()
            total, count = total + float(some.sum()), count + len(some)
        return max(SMALLEST_LIMIT, ROUNDING * total / count)

    def _score(self, result: GenerationResult, model: Any, temperature: float) -> Tensor:
        """Return the log-probabilities of a response by a plain forward."""
        prompt = self.asked[result.request_id].prompt_ids
        ids = torch.tensor([[*prompt, *result.token_ids]], device=self.settings.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        scores = (logits / (temperature or 1.0)).log_softmax(-1)
        return scores.gather(1, ids[0, len(prompt) :, None])[:, 0]

    @torch.no_grad()
    def differ(
        self,
        results: list[GenerationResult],
        model: Any,
        temperature: float = 1.0,
        skip: Sequence[int] = (),
    ) -> float:
        """As `agree`, without a limit."""
        total, count = 0.0, 0
        for place, result in enumerate(results):
            exact = self._score(result, model, temperature)
            made = torch.tensor(result.logprobs, device=exact.device)
            some = (made - exact).abs()[skip[place] if skip else 0 :]
            total, count = total + float(some.sum()), count + len(some)
        return total / count


def requests(
    count: int, n: int = 1, new: int = 64, prompt: int = 24, seed: int = 0, **params: Any
) -> list[GenerationRequest]:
    """Random prompts of a vocabulary that all shapes have."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(3, 32, (count, prompt), generator=generator).tolist()
    return [
        GenerationRequest(
            i, ids, SamplingParams(max_new_tokens=new, seed=i, ignore_eos=True, **params), n
        )
        for i, ids in enumerate(prompts)
    ]


def _part(result: GenerationResult, begin: int, end: int) -> GenerationResult:
    return GenerationResult(
        result.request_id,
        result.sample_index,
        result.token_ids[begin:end],
        result.logprobs[begin:end],
        result.versions[begin:end],
        result.finish_reason,
    )


def _row(what: str, fine: bool, value: str, begin: float) -> Row:
    took = round(time.monotonic() - begin, 1)
    return {"check": what, "result": "ok" if fine else "FAILED", "seconds": took, "found": value}


def _free() -> float:
    """Memory of the GPU that nobody has, in GB."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 1e9
