"""Workers that act with the policy."""
