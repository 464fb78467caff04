"""`breakpoint()` and post-mortem debugging of workers, at the driver's terminal."""
