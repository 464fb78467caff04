"""Authenticated, framed sockets and the one thread per process that serves them."""
