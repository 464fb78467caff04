"""From a score to a reward: scale, bounds, and the penalty for responses that are too long."""

from __future__ import annotations


def scaled(score: float, scale: float, least: float | None, greatest: float | None) -> float:
    """Return `scale * score`, not below `least` and not above `greatest`."""
    reward = scale * score
    if least is not None:
        reward = max(reward, least)
    if greatest is not None:
        reward = min(reward, greatest)
    return reward


def overlong_penalty(length: int, limit: int, buffer: int, penalty: float = 1.0) -> float:
    """Return the soft punishment of DAPO for long responses, eq. 13 of arXiv:2503.14476.

    With L = `limit`, C = `buffer` and |y| = `length`::

        0                            |y| <= L - C
        penalty (L - C - |y|) / C    L - C < |y| <= L
        -penalty                     L < |y|

    Args:
        length: Tokens of the response.
        limit: Most tokens a response may have.
        buffer: Last tokens of the limit over which the punishment grows; 0 is no punishment.
        penalty: Punishment at the limit.

    Raises:
        ValueError: The buffer does not fit into the limit.
    """
    if not 0 <= buffer <= limit:
        raise ValueError(
            f"the overlong buffer is {buffer} tokens; it must be at least 0 and at most the length "
            f"limit of a response, which is {limit}: set algorithm.overlong_buffer_length"
        )
    if buffer == 0:
        return 0.0
    over = min(max(length - (limit - buffer), 0), buffer)
    return -penalty * (over / buffer)
