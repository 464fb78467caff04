"""Who is in the run: groups, addresses, ports and locks, and who has died.

The registry is a small server inside the driver. Each process of the run holds one connection to
it, its lifeline: when the connection ends, the process is gone, and whoever waits for it is told at
once.
"""
