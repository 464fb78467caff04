"""The roles of a run: actor, rollout, env."""
