"""Advantages and losses step by step, in plain Python: what the fast ones are held to."""

import math

import torch

LENGTH = 11
"""The constant of seq-mean-token-sum-norm."""


def clip(x, low, high):
    return max(low, min(high, x))


def surrogate(logp, old, advantage, low=0.2, high=0.2, dual=None):
    """PPO's clipped term of one entry."""
    ratio = math.exp(logp - old)
    term = max(-advantage * ratio, -advantage * clip(ratio, 1 - low, 1 + high))
    return term if dual is None else min(term, dual * abs(advantage))


def sequence_ratio(logps, olds):
    """GSPO's ratio of one sequence."""
    return math.exp(sum(a - b for a, b in zip(logps, olds, strict=True)) / len(logps))


def huber(error, delta):
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - 0.5 * delta)


def value_term(value, target, old, eps, delta):
    """The clipped value loss of one entry."""
    clipped = old + clip(value - old, -eps, eps)
    return max(huber(target - value, delta), huber(target - clipped, delta))


def aggregate(rows, mode):
    """Aggregates a list of rows, each the list of its valid terms."""
    full = [row for row in rows if row]
    if not full:
        return 0.0
    if mode == "token-mean":
        return sum(map(sum, full)) / sum(map(len, full))
    if mode == "seq-mean-token-sum":
        return sum(map(sum, full)) / len(full)
    if mode == "seq-mean-token-sum-norm":
        return sum(map(sum, full)) / len(full) / LENGTH
    return sum(sum(row) / len(row) for row in full) / len(full)


def rows_of(mask, term):
    """Calls `term(*index)` at every valid entry of a mask of two dimensions."""
    rows, columns = mask.shape
    return [[term(b, t) for t in range(columns) if mask[b, t]] for b in range(rows)]


def loop_gae(rewards, values, dones, terms, boots, mask, gamma, lam):
    """Cuts each env's valid steps into episodes; then the textbook sum over each."""
    n, envs = rewards.shape
    advantages = torch.zeros(n, envs, dtype=torch.float64)
    for env in range(envs):
        episode = []
        for t in range(n):
            if mask[t][env]:
                episode.append(t)
            if dones[t][env] or t == n - 1:
                if not dones[t][env]:
                    after = values[n][env]
                else:
                    after = 0.0 if terms[t][env] else boots[t][env]
                for i, start in enumerate(episode):
                    total = 0.0
                    for k, step in enumerate(episode[i:]):
                        last = i + k == len(episode) - 1
                        following = after if last else values[episode[i + k + 1]][env]
                        delta = rewards[step][env] + gamma * following - values[step][env]
                        total += (gamma * lam) ** k * delta
                    advantages[start][env] = total
                episode = []
    return advantages
