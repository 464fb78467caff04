"""Loading a language model leaves torch as it was, also if it is the first thing a process does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch
from rlinf.models.causal_lm.load import transformers_module

transformers = transformers_module()
config = transformers.LlamaConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
)
transformers.AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
with torch.device("meta"):
    print(torch.linspace(0, 1, 3).device)
"""


def test_functions_obey_a_device_context_after_a_model_was_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "meta", done.stderr
