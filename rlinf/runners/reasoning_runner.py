"""The training loop of language models: prompts, responses, rewards, update."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlinf.algorithms.dynamic_sampling import DynamicSampler
from rlinf.config.arithmetic import reasoning_minibatches
from rlinf.data.prompts import PromptSet, PromptStream, training_prompts, validation_prompts
from rlinf.data.reasoning import GroupRequest, Prompt, Verdict
from rlinf.data.shown_groups import choose_shown, mark_shown
from rlinf.data.tokenizer import tokenizer_of_run
from rlinf.runners.agreement import ReasoningGate
from rlinf.runners.base_runner import BaseRunner
from rlinf.runners.farewell import before_training, next_step, places
from rlinf.runners.reasoning_helpers import Helpers
from rlinf.runners.reasoning_metrics import of_validation, of_verdicts, sentence
from rlinf.runners.reasoning_services import ReasoningServices, channel_factory
from rlinf.runners.sample_file import append_samples, drop_after, write_evaluated
from rlinf.scheduler import WorkerGroup, wait_all, wait_beside
from rlinf.utils.phases import phases
from rlinf.workers.reasoning_agreement import TooFarApart

_SUPERVISED_STEPS = 10
"""Steps of supervised training per call."""


class ReasoningRunner(BaseRunner):
    """Drives rollout, reward and actor groups through training.

    Rollout and reward workers serve through the whole run. Responses come out of the rollout as
    they are complete, get their reward, and wait for the actor under the number of the step that
    trains on them. The runner sees of them what the reward worker tells, their verdicts. On policy
    (`algorithm.max_policy_age: 0`) the requests of a step are made when the weights of that step
    have arrived. With an age of k, those of k further steps are in the making meanwhile, and what
    is unfinished is carried on under newer weights; no token is older than k updates when it is
    trained on.

    Args:
        cfg: checked configuration.
        actor: group of `ReasoningActor`.
        rollout: group of `GenerationWorker`.
        reward: group of `RewardWorker`.
        **helpers: groups that only some runs have; see `rlinf.runners.reasoning_helpers`.
    """

    def __init__(
        self,
        cfg: Any,
        actor: WorkerGroup,
        rollout: WorkerGroup,
        reward: WorkerGroup,
        **helpers: WorkerGroup,
    ):
        self.helpers = Helpers(cfg, actor, **helpers)
        super().__init__(cfg, [actor, *self.helpers.saved], ("eval/pass@1", "rollout/score"))
        self.actor = actor
        self.rollout = rollout
        self.reward = reward
        self.agreement = ReasoningGate(cfg, actor, rollout)
        tokenizer = tokenizer_of_run(cfg)
        self.prompts: PromptStream = training_prompts(cfg, tokenizer)
        runner = cfg.runner
        wanted = runner.only_eval or runner.val_check_interval > 0 or runner.eval_at_start
        self._validation: PromptSet | None = validation_prompts(cfg, tokenizer) if wanted else None
        self._batch: int = cfg.data.rollout_batch_size
        self._ahead: int = cfg.algorithm.max_policy_age
        self._began_at: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._requested = 0
        self._sampler: DynamicSampler[Verdict] | None = None
        if cfg.algorithm.dynamic_sampling:
            budget = cfg.algorithm.max_num_gen_batches
            self._sampler = DynamicSampler(self._batch, max_batches=budget)
        self.services = ReasoningServices(cfg, rollout, reward)
        self._samples_seen = 0
        self._samples_trained = 0
        self.max_steps = self._step_limit()

    def _step_limit(self) -> int:
        runner, prompts = self.cfg.runner, len(self.prompts.prompts)
        if runner.only_eval:
            return 0
        limits = [runner.max_steps] if runner.max_steps > 0 else []
        if runner.max_epochs > 0:
            limits.append(runner.max_epochs * prompts // self._batch)
        if not limits or min(limits) < 1:
            raise ValueError(
                f"the run has no step: runner.max_steps is {runner.max_steps}, runner.max_epochs "
                f"{runner.max_epochs}, and an epoch has {prompts} prompts of which a step takes "
                f"{self._batch}"
            )
        return min(limits)

    # -- setting up -----------------------------------------------------------------------------

    def build_workers(self) -> None:
        """Build engines, rewards and the policy, and let the services begin."""
        algorithm = self.cfg.algorithm
        steps = self.max_steps * algorithm.update_epoch * reasoning_minibatches(self.cfg)
        wait_all(
            self.rollout.init_worker(),
            self.reward.init_worker(),
            self.actor.init_worker(steps),
            *self.helpers.init_workers(steps),
        )
        create = channel_factory()
        self.helpers.connect(create)
        self.services.start(create)

    def init_workers(self) -> None:
        """Build the workers, or bring them back; drop responses of steps yet to be made."""
        super().init_workers()
        if not self.cfg.runner.only_eval:
            drop_after(self.folder, self.global_step)
        runner = self.cfg.runner
        if self.global_step % runner.weight_sync_interval and not runner.only_eval:
            # The weights of the last update are gone; without any, the engine would make its own.
            self.update_rollout_weights()
            print(
                f"  not restored: the rollout's weights between two updates, since step "
                f"{self.global_step} is no multiple of runner.weight_sync_interval "
                f"{runner.weight_sync_interval}; it goes on with the newest",
                flush=True,
            )

    def prepare_training(self) -> None:
        """Learn from worked solutions, if there are any; what comes of it is the reference."""
        if self.cfg.actor.supervised.steps:
            with phases.phase("supervised", live=False):
                self._supervise()
        self.helpers.sync_reference(self.services.calls)

    def _supervise(self) -> None:
        """Learn worked solutions first, if the config says so."""
        settings = self.cfg.actor.supervised
        stream = PromptStream(self.prompts.prompts)
        for first in range(0, settings.steps, _SUPERVISED_STEPS):
            steps = min(_SUPERVISED_STEPS, settings.steps - first)
            examples = stream.take_supervised(steps * settings.batch_size)
            parts = [(each.prompt_ids, each.response_ids, each.learnt) for each in examples]
            metrics = wait_beside(self.actor.run_supervised(parts), self.services.calls)[0]
            if self.cfg.runner.progress != "off":
                loss = metrics.get("actor/supervised_loss", metrics.get("actor/loss"))
                print(
                    f"supervised step {first + steps}/{settings.steps}"
                    + (f"  loss {loss:.3f}" if loss is not None else ""),
                    file=sys.stderr,
                    flush=True,
                )

    # -- a step ---------------------------------------------------------------------------------

    def train_step(self) -> dict[str, float]:
        """Sync weights, asks for responses, trains on those of this step."""
        begin = time.perf_counter()
        if self.global_step % self.cfg.runner.weight_sync_interval == 0:
            self.update_rollout_weights()
        elif self.cfg.rollout.enable_offload:
            wait_beside(self.rollout.onload_engine(), self.services.calls)
        self.helpers.sync_inference(self.services.calls)
        synced = time.perf_counter()
        self._request_steps(self.global_step + 1 + self._ahead)
        training = self._start_training(self._batch) if self._streams_groups else None
        verdicts = self._await_groups(self.global_step)
        if self.cfg.rollout.enable_offload:
            wait_beside(self.rollout.offload_engine(), self.services.calls)
        generated = time.perf_counter()
        if training is None:
            training = self._start_training(*self._groups_of_step(len(verdicts)))
        of_batch, of_update = self._finish_training(training)
        of_helpers, times = self.helpers.finish(self.services.calls)
        end = time.perf_counter()
        self._began_at.pop(self.global_step, None)
        self._write_samples(verdicts)
        metrics = of_verdicts(verdicts, end - begin)
        self._samples_seen += int(metrics["rollout/samples"])
        metrics |= {f"rollout/{name}": value for name, value in of_batch.items()}
        metrics |= {f"train/{name}": value for name, value in (of_update | of_helpers).items()}
        metrics |= {
            "time/sync_weights": synced - begin,
            "time/generate": generated - synced,
            "time/training": end - generated,
            "rollout/samples_per_second": metrics["rollout/samples"] / (end - begin),
        }
        if self._sampler is not None:
            metrics |= {f"rollout/{k}": v for k, v in self._sampler.metrics().items()}
        for tag, seconds in training.consume_durations().items():
            metrics[f"time/actor/{tag}"] = seconds
        return metrics | {f"time/{name}": seconds for name, seconds in times.items()}

    @property
    def _streams_groups(self) -> bool:
        """Whether the actor gets groups as they come, which it can on a device of its own."""
        return not self.cfg.rollout.enable_offload and self._sampler is None

    def update_rollout_weights(self) -> int:
        """Bring the actor's weights to the rollout workers, between two of their tokens.

        Returns:
            Their version.
        """
        rollout = self.rollout.sync_model_from_actor()
        actor = self.actor.sync_model_to_rollout()
        wait_beside(actor, [rollout, *self.services.calls])
        return wait_beside(rollout, self.services.calls)[0]

    def _start_training(self, groups: int, chosen: list[int] | None = None) -> Any:
        """Begin the update of a step.

        Args:
            groups: how many wait to be trained on.
            chosen: numbers of the prompts whose groups are; None is all.
        """
        trained = groups if chosen is None else len(chosen)
        self._samples_trained += trained * self.cfg.algorithm.group_size
        source, further = self.helpers.begin(self.services.rewarded, groups, self.global_step)
        if chosen is not None:
            further["chosen"] = chosen
        return self.actor.run_training(
            source,
            num_groups=groups,
            key=self.global_step,
            tolerance=self.agreement.tolerance(self.global_step),
            **further,
        )

    def _finish_training(self, training: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Wait for the update of a step; return metrics of its batch and of itself.

        Raises:
            PolicyDisagreement: the actor has refused it; names what differs from the engines.
        """
        try:
            beside = [*self.services.calls, *self.helpers.calls]
            of_batch, of_update = wait_beside(training, beside)[0]
        except TooFarApart as error:
            raise self.agreement.disagreement(self.global_step, error.too_far) from error
        return of_batch, self.agreement.passed(self.global_step, of_update)

    def _request_steps(self, until: int) -> None:
        """Ask for the responses of all steps before `until` that were not asked for."""
        self._requested = max(self._requested, self.global_step)
        while self._requested < min(until, self.max_steps):
            step = self._requested
            if step in self._began_at:
                prompts = self.prompts.again(self._began_at[step], self._batch)
            else:
                self._began_at[step] = self.prompts.next_number
                prompts = self.prompts.take(self._batch)
            self._request(prompts, step)
            self._asked[step] = self._batch
            self._requested += 1

    def _request(self, prompts: Sequence[Prompt], step: int) -> None:
        size = self.cfg.algorithm.group_size
        requests = [GroupRequest(prompt, size, step) for prompt in prompts]
        self.services.request(mark_shown(requests, chosen_later=self._sampler is not None))

    def _await_groups(self, step: int) -> list[Verdict]:
        """Wait until the groups of a step have their rewards; draw more if the config says so."""
        found: list[Verdict] = []
        missing = self._asked.pop(step)
        if self._sampler is not None:
            self._sampler.begin(drawn=missing)
        while missing:
            found.append(self.services.next_verdict(step))
            missing -= 1
            if self._sampler is not None:
                self._sampler.offer(found[-1:])
                if not missing and (more := self._sampler.wanted()):
                    self._request(self.prompts.take(more), step)
                    missing = more
        return found

    def _groups_of_step(self, generated: int) -> tuple[int, list[int] | None]:
        """Return how many groups wait for the actor, and the prompts of those to train on."""
        if self._sampler is None:
            return generated, None
        chosen = [verdict.index for verdict in self._sampler.take()]
        if not chosen:
            raise RuntimeError(
                f"none of {generated} groups of step {self.global_step} has unequal scores: the "
                "policy solves all prompts, or none; use other prompts, raise "
                "algorithm.max_num_gen_batches or switch algorithm.dynamic_sampling off"
            )
        return self._sampler.with_signal, chosen

    def _write_samples(self, verdicts: Sequence[Verdict]) -> None:
        if self._sampler is not None:
            # The others were drawn in vain.
            verdicts = self._sampler.take()
        append_samples(self.folder, choose_shown(verdicts), self.global_step + 1)

    # -- evaluation -----------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Score responses to the validation prompts."""
        if self._validation is None:
            return {}
        with phases.phase("evaluation"), self._training_aside():
            self.update_rollout_weights()
            shown, key = self.cfg.runner.only_eval, f"validation {self.global_step}"
            verdicts = self.services.validate(self._validation, key, shown=shown)
            if shown:
                write_evaluated(self.folder, verdicts)
            return self._of_validation(verdicts)

    def _of_validation(self, verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Return the metrics of a validation, while the engines have time for it."""
        return of_validation(verdicts)

    def evaluation_cost(self) -> float | None:
        """Responses of an evaluation, by those of the training."""
        if self._validation is None:
            return None
        evaluated = len(self._validation) * self.cfg.data.val_group_size
        return evaluated / (self.max_steps * self._batch * self.cfg.algorithm.group_size)

    @contextmanager
    def _training_aside(self) -> Iterator[None]:
        """Let the engines do something else; training goes on with the weights that it had.

        Where the next step brings new weights anyway, those of the evaluation are these.
        """
        goes_on = self.global_step < self.max_steps
        keep = goes_on and self.global_step % self.cfg.runner.weight_sync_interval != 0
        wait_beside(self.rollout.begin_evaluation(keep), self.services.calls)
        yield
        wait_beside(self.rollout.end_evaluation(), self.services.calls)

    # -- counting -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return where the data is, and what was asked for ahead, which is asked for again."""
        ahead = [[step, first] for step, first in self._began_at.items()]
        return {"data": self.prompts.state_dict(), "ahead": ahead, "samples": self._samples_seen}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the data where it was."""
        self.prompts.load_state_dict(state["data"])
        self._began_at = {step: first for step, first in state["ahead"]}
        self._samples_seen = state["samples"]

    def in_flight(self) -> list[str]:
        """Responses of steps ahead, which have tokens of weights that a resumed run lacks."""
        ahead = self._requested - self.global_step
        if ahead <= 0:
            return []
        return [
            f"the responses of {ahead} step(s) after step {self.global_step} that were under way; "
            "they are asked for anew"
        ]

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """Score, length, speed, and the last validation."""
        facts = {}
        # Without them nothing of the step counts.
        if "rollout/score" in metrics:
            facts["score"] = f"{metrics['rollout/score']:.2f}"
            facts["length"] = f"{metrics['rollout/response_length']:.0f}"
        facts["speed"] = f"{metrics['rollout/samples_per_second']:,.0f} samples/s"
        if "eval/pass@1" in self._scores:
            facts["pass@1"] = f"{self._scores['eval/pass@1']:.0%}"
        return facts

    def end_services(self) -> None:
        """Let rollout and reward workers come to their end."""
        self.services.end()
        self.prompts.close()

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Speed of this run, without the steps before it was resumed."""
        return {"samples_per_second": round(self._samples_trained / training_seconds, 1)}

    def findings(self, final: dict[str, float]) -> list[str]:
        """Return what an evaluation found, in sentences."""
        return [sentence(final)]

    def farewell(self, final: dict[str, float]) -> None:
        """What came out, and where everything is."""
        if final:
            print("\n".join(self.findings(final)))
        if (before := before_training(self.summary.facts)) is not None:
            print(before)
        print(places(self.cfg, self.folder))
        if not self.cfg.runner.only_eval:
            print(next_step(self.cfg, self.folder, self.summary.facts))
