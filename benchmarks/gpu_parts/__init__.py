"""The parts of `benchmarks.gpu_reasoning`, one module each."""
