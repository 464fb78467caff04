"""Prints, joins, cuts and converts saved replay buffers; `python -m toolkits.replay_buffer -h`."""
