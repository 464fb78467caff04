"""Plain data with tensors comes back as it was, and nothing is unpickled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.utils.checkpoint import load_tree, save_tree

_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=8),
)
_keys = st.one_of(st.text(max_size=4), st.integers(0, 3), st.sampled_from(["$tensor", "$items"]))
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(_keys, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(_trees)
def test_plain_data(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "state"
    save_tree(path, tree)
    back = load_tree(path)
    assert back == tree and repr(back) == repr(tree)


def test_tensors_and_arrays_keep_type_shape_and_bits(tmp_path):
    tree = {
        "weights": [
            torch.randn(3, 4),
            torch.randn(4, 3).t(),
            torch.tensor(1.5, dtype=torch.float64),
        ],
        "small": torch.zeros(0, 2, dtype=torch.bfloat16),
        "rng": torch.Generator().manual_seed(3).get_state(),
        "nan": torch.tensor([float("nan"), -0.0]),
        ("a", 1): np.arange(6, dtype=np.uint32).reshape(2, 3)[:, ::2],
        "words": np.array(["reach", "push"]),
        "scalar": np.float64(0.1),
    }
    save_tree(tmp_path / "state", tree)
    back = load_tree(tmp_path / "state")
    for one, two in zip(tree["weights"], back["weights"], strict=True):
        assert one.dtype == two.dtype and torch.equal(one, two)
    assert back["small"].shape == (0, 2) and back["small"].dtype == torch.bfloat16
    assert torch.equal(back["rng"], tree["rng"])
    assert back["nan"].numpy().tobytes() == tree["nan"].numpy().tobytes()
    assert np.array_equal(back["a", 1], tree["a", 1]) and back["a", 1].dtype == np.uint32
    assert back["words"].tolist() == ["reach", "push"]
    assert back["scalar"] == np.float64(0.1)


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match="/env/policy is a function"):
        save_tree(tmp_path / "state", {"env": {"policy": lambda: None}})
