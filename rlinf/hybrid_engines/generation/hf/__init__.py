"""Our own generation engine, over models of transformers."""
