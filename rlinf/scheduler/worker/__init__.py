"""Workers, groups of workers, and the handles of calls on them."""
