"""The rollout worker of language models: prompts in, groups of responses out, as they are done."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from typing import Any

import torch

from rlinf.data.hashing import seed_of
from rlinf.data.reasoning import GroupRequest, Sample, SampleGroup
from rlinf.data.tokenizer import stops_of, tokenizer_of_run
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    build_engine,
)
from rlinf.hybrid_engines.generation.adapters import ReceivedAdapters, keeps_adapters
from rlinf.hybrid_engines.generation.settings import PRECISIONS
from rlinf.hybrid_engines.initial_weights import load_weights
from rlinf.hybrid_engines.weight_sync.policy_receiver import PolicyReceiver
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.deferred import DeferredWeights, without_weights
from rlinf.models.evaluated import evaluated_model
from rlinf.models.settings import complete, rollout_section
from rlinf.scheduler import UNTIL_CLOSED, Channel, ChannelClosed, Worker
from rlinf.workers.agreement import Evidence, checksums_of
from rlinf.workers.cpu_threads import use_cores
from rlinf.workers.reasoning_agreement import SeenResponses
from rlinf.workers.rollout.engine_calls import EngineCalls


class GenerationWorker(Worker):
    """Holds one engine and serves requests until their channel is closed.

    `rollout` goes on through the whole run, beside other calls: a weight update takes place between
    two tokens. Responses in the making are carried on under the new weights; on policy there are
    none, because all groups of a step are complete before the weights change. While the engine
    sleeps, or evaluates, the responses of training are set aside, and carried on afterwards.

    Args:
        cfg: checked configuration.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        self._complete: list[SampleGroup] = []
        self._came = asyncio.Event()
        self._asleep = self._evaluating = self._loading = False
        self._kept: tuple[int, dict[str, torch.Tensor]] | None = None
        # Those of a step, and those of all steps that are in the making meanwhile.
        self._seen = SeenResponses(cfg.algorithm.max_policy_age + 2)
        self._notes = cfg.runner.agreement.interval >= 0

    async def init_worker(self) -> None:
        """Build the engine; its weights come from the actor, or from what is evaluated."""
        cfg = self.cfg
        own = cfg.rollout.rollout_backend == "hf"
        use_cores(cfg, torch.device(self.torch_device_type))
        evaluated = evaluated_model(cfg) if cfg.runner.task_type == "reasoning_eval" else None
        network = complete(rollout_section(cfg) if evaluated is None else evaluated.network, None)
        model = None
        self._weights: PolicyReceiver | None = None
        self._adapters: ReceivedAdapters | None = None
        adapters = evaluated is None and cfg.weight_syncer.lora == "adapters"
        if adapters and keeps_adapters(cfg):
            self._adapters = ReceivedAdapters(network)
        elif own or adapters:
            # An engine of another project has its weights elsewhere, and adapters are merged here.
            from rlinf.models.causal_lm.load import load_causal_lm

            def build(deferral: DeferredWeights | None) -> torch.nn.Module:
                return load_causal_lm(network, torch.float32, deferral)

            # Adapters are merged into weights that have to be there.
            model = build(None) if adapters else without_weights(build)
        if model is not None and evaluated is None:
            self._weights = PolicyReceiver(self, cfg, model)
        settings = EngineSettings.from_config(cfg, model if own else None, network, self._rank)
        if self._adapters is not None:
            settings = replace(settings, lora_rank=self._adapters.config.r)
        self._format = getattr(torch, PRECISIONS[settings.precision])
        tokenizer = tokenizer_of_run(cfg)
        self._ends, self._texts = stops_of(tokenizer, self._stop_texts(tokenizer))
        with tempfile.TemporaryDirectory(prefix="rlinf-tokenizer-") as folder:
            if self._texts or self._turns_name_stops:
                tokenizer.save_pretrained(folder)
                settings = replace(settings, tokenizer_path=folder)
            self.engine = build_engine(cfg.rollout.rollout_backend, settings)
        if evaluated is not None and evaluated.weights is not None:
            policy = get_model(network, dtype=torch.float32)
            load_weights(policy, evaluated.weights)
            self.engine.update_weights(policy.policy_tensors(lambda t: t), evaluated.step)
        self._calls = EngineCalls(self.engine)
        self._seed = cfg.runner.seed if cfg.rollout.seed is None else cfg.rollout.seed

    _turns_name_stops = False
    """Whether a request may name texts that end it, so that the engine needs the tokenizer."""

    def _stop_texts(self, tokenizer: Any) -> tuple[str, ...]:
        """Return the texts that end a response."""
        return tuple(self.cfg.algorithm.sampling_params.stop)

    # -- generating -----------------------------------------------------------------------------

    async def rollout(self, input_channel: Channel, output_channel: Channel) -> dict[str, float]:
        """Serve requests until the input channel is closed.

        Args:
            input_channel: lists of `GroupRequest`s, under the rank of the worker that serves them.
                What comes in one list is generated in the same batches whenever it is, so that a
                run can be repeated.
            output_channel: gets a `SampleGroup` as soon as its last response is complete.

        Returns:
            Counters of the engine.
        """
        feeding = asyncio.ensure_future(self._feed(input_channel))
        try:
            while True:
                if self.engine.unfinished:
                    with self.worker_timer("generate"):
                        self._calls.step()
                await self._hand_out(output_channel)
                # Weights that came meanwhile may have completed a group.
                if self.engine.unfinished or self._complete:
                    continue
                if feeding.done():
                    feeding.result()
                    if not self._plays:
                        return self.engine.stats()
                await _either(self._came, feeding)
                self._came.clear()
        finally:
            feeding.cancel()

    @property
    def _plays(self) -> bool:
        """Whether something is under way that the engine will hear of."""
        return False

    async def _feed(self, channel: Channel) -> None:
        """Take requests as they come; the engine keeps those in line that it has no room for."""
        while True:
            try:
                requests = await channel.get(key=self._rank, async_op=True, timeout=UNTIL_CLOSED)
            except ChannelClosed:
                return
            for request in requests:
                self._submit(request)
            self._came.set()

    def _submit(self, request: GroupRequest) -> None:
        prompt = request.prompt
        name = name_of(request)
        work = GenerationRequest(name, prompt.token_ids, self._params(request), request.group_size)

        def complete(results: list[GenerationResult]) -> None:
            self._complete.append(_group_of(request, results))

        self._calls.submit(work, complete, hold=self._holds(request))

    def _holds(self, request: GroupRequest) -> bool:
        """Return whether the engine is to do something else before this."""
        return self._asleep or self._loading or (self._evaluating and not request.validation)

    def _params(self, request: GroupRequest) -> SamplingParams:
        """Return how the responses to a request are drawn."""
        purpose = "validation" if request.validation else "training"
        further: dict[str, Any] = {
            "seed": seed_of(self._seed, purpose, request.prompt.index),
            "stop_token_ids": self._ends,
            "stop": self._texts,
        }
        section = self.cfg.algorithm.sampling_params
        if request.validation and self.cfg.algorithm.val_sampling_params is not None:
            section = self.cfg.algorithm.val_sampling_params
        elif request.greedy:
            further["temperature"] = 0.0
        return SamplingParams.from_config(section, **further)

    async def _hand_out(self, channel: Channel) -> None:
        """Put what is complete, and let other calls have their turn."""
        complete, self._complete = self._complete, []
        for group in complete:
            if self._notes and not group.validation:
                self._seen.note(group)
            await channel.put(group, async_op=True)
        await asyncio.sleep(0)

    # -- weights --------------------------------------------------------------------------------

    async def sync_model_from_actor(self) -> int:
        """Receive the actor's weights or adapters; return their version."""
        if self._asleep:
            # Keys and values come last: the room for what arrives may be theirs.
            self.engine.wake(weights_only=True)
        self._suspend()
        # A load that fails leaves a part of the weights: nothing is computed with these.
        self._loading = True
        version = self._load()
        self._loading = False
        self._wake()
        self._carry_on()
        return version

    def _suspend(self) -> None:
        """Take unfinished responses out of the engine and hold them."""
        self._calls.suspend()
        # The engine may have nothing left to do, but groups that are complete now.
        self._came.set()

    def _carry_on(self) -> None:
        """Give the engine what was held, unless it is to do something else first."""
        if not self._evaluating:
            self._calls.carry_on()
        self._came.set()

    def _wake(self) -> None:
        if self._asleep:
            self.engine.wake()
            self._asleep = False

    def _load(self) -> int:
        """Bring the engine to the next version of the weights; return its number."""
        if self._adapters is not None:
            version = WeightReceiver(self, self.cfg).receive(self._adapters)
            adapters = self._adapters
            self.engine.update_adapters(adapters.state_dict(), adapters.config, version)
            return version
        if self._weights is None:
            named, version = WeightReceiver(self, self.cfg).collect()
            self.engine.update_weights(named, version)
            return version
        version = self._weights.receive()
        if self._model is None:
            self.engine.update_weights(self._weights.tensors(), version)
        else:
            self.engine.weights_changed(version)
        return version

    async def offload_engine(self) -> None:
        """Leave the device to others, until the next weights come or `onload_engine`."""
        if not self._asleep:
            self._suspend()
            self.engine.sleep("offload")
            self._asleep = True

    async def onload_engine(self) -> None:
        """Take the device back and carry on with the same weights."""
        self._wake()
        self._carry_on()

    # -- evaluation -----------------------------------------------------------------------------

    async def begin_evaluation(self, keep_weights: bool) -> None:
        """Set training aside, until `end_evaluation`.

        Args:
            keep_weights: whether training goes on with the weights that the engine has now,
                whatever comes in between.
        """
        self._wake()
        self._suspend()
        self._evaluating = True
        if keep_weights:
            if self._weights is None:
                raise RuntimeError(
                    f"rollout_backend {self.cfg.rollout.rollout_backend} cannot give back the "
                    "weights of before: let runner.val_check_interval be a multiple of "
                    "runner.weight_sync_interval"
                )
            tensors = self._weights.tensors()
            kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}
            self._kept = self.engine.version, kept

    async def end_evaluation(self) -> None:
        """Go on with training: its weights, its unfinished responses."""
        self._evaluating = False
        if self._kept is not None:
            (version, tensors), self._kept = self._kept, None
            self.engine.update_weights(tensors, version)
            self._weights.forget()
        self._carry_on()

    # -- agreement ------------------------------------------------------------------------------

    async def number_format(self) -> torch.dtype:
        """Return the format that the engine computes in."""
        model = self._model
        return self._format if model is None else next(model.parameters()).dtype

    async def evidence(self) -> Evidence:
        """Return what the engine computed with, and what came of it lately, as checksums."""
        name, seen = f"{self.group_name}:{self._rank}", self._seen.table()
        model = self._model
        if model is None:
            return Evidence(
                worker=name,
                version=self.engine.version,
                tensors={},
                inputs=seen,
                hidden=f"rollout_backend {self.cfg.rollout.rollout_backend} keeps its weights to "
                f"itself: those of {name} were not compared",
                stated=frozenset({self._format}),
            )
        if self._asleep:
            self.engine.wake()
        tensors = checksums_of(self._weights.tensors())
        if self._asleep:
            self.engine.sleep("offload")
        return Evidence(name, self.engine.version, tensors, inputs=seen)

    @property
    def _model(self) -> torch.nn.Module | None:
        """The module whose parameters the engine computes with; None if nobody can look at it."""
        return getattr(self.engine, "model", None)

    def on_shutdown(self) -> None:
        """End what the engine started."""
        if hasattr(self, "engine"):
            self.engine.close()


def name_of(request: GroupRequest) -> tuple[int | str, int]:
    """Return what the engine knows a request by."""
    return request.key, request.prompt.index


def _group_of(request: GroupRequest, results: list[GenerationResult]) -> SampleGroup:
    prompt = request.prompt
    samples = [
        Sample(
            prompt_index=prompt.index,
            sample_index=result.sample_index,
            prompt_ids=list(prompt.token_ids),
            response_ids=result.token_ids,
            logprobs=result.logprobs,
            versions=result.versions,
            finish_reason=result.finish_reason,
        )
        for result in results
    ]
    return SampleGroup(prompt, samples, request.key, request.validation, shown=request.shown)


async def _either(event: asyncio.Event, future: asyncio.Future) -> None:
    """Wait for an event or, unless that has come already, for a future."""
    waiting = asyncio.ensure_future(event.wait())
    futures = {waiting} if future.done() else {waiting, future}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
