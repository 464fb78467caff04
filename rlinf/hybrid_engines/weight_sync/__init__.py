"""How weights get from the actor to the rollout."""
