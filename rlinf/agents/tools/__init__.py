"""Tools: what a model may call, how it writes that, and what it reads then."""
