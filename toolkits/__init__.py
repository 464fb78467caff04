"""Tools beside training, run as `python -m toolkits.<name>`."""
