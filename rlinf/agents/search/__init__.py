"""Search over a corpus: a text index, a dense index, and both behind HTTP."""
