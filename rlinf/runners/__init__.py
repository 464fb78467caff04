"""Training loops: they run in the driver and only command."""
