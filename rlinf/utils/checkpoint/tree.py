"""Nested plain data with tensors and arrays, saved as JSON beside a safetensors file.

Loading runs no code of the file: there is nothing to unpickle.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

_TENSOR, _ARRAY, _TUPLE, _ITEMS, _BYTES = "$tensor", "$array", "$tuple", "$items", "$bytes"
_MARKS = (_TENSOR, _ARRAY, _TUPLE, _ITEMS, _BYTES)


def save_tree(path: Path, tree: Any) -> None:
    """Write `<path>.json` and, if the tree has tensors or arrays, `<path>.safetensors`.

    Args:
        path: where, without a suffix.
        tree: dicts, lists, tuples, strings, numbers, bytes, None, tensors and arrays.

    Raises:
        TypeError: the tree has something else in it; says where.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = _pack(tree, "", tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path.with_name(path.name + ".json"), json.dumps(plain).encode())
    if tensors:
        write_durably(path.with_name(path.name + ".safetensors"), save(tensors))


def load_tree(path: Path) -> Any:
    """Read what `save_tree` wrote; tensors are on the CPU."""
    plain = json.loads(path.with_name(path.name + ".json").read_text())
    beside = path.with_name(path.name + ".safetensors")
    return _unpack(plain, load_file(beside) if beside.exists() else {})


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _pack(node: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if node is None or isinstance(node, str | bool | int | float):
        return node
    if isinstance(node, torch.Tensor):
        return {_TENSOR: _keep(node.detach().cpu(), place, tensors)}
    if isinstance(node, np.ndarray):
        # Types that torch lacks travel as bytes.
        raw = torch.from_numpy(np.frombuffer(node.tobytes(), np.uint8).copy())
        name = _keep(raw, place, tensors)
        return {_ARRAY: [name, node.dtype.str, list(node.shape)]}
    if isinstance(node, np.generic):
        return _pack(np.asarray(node), place, tensors)
    if isinstance(node, bytes):
        return {_BYTES: node.hex()}
    if isinstance(node, dict):
        if all(isinstance(key, str) and key not in _MARKS for key in node):
            return {key: _pack(value, f"{place}/{key}", tensors) for key, value in node.items()}
        pairs = enumerate(node.items())
        return {_ITEMS: [_pack(list(pair), f"{place}/{i}", tensors) for i, pair in pairs]}
    if isinstance(node, list | tuple):
        parts = [_pack(value, f"{place}/{i}", tensors) for i, value in enumerate(node)]
        return {_TUPLE: parts} if isinstance(node, tuple) else parts
    raise TypeError(f"{place or 'the root'} is a {type(node).__name__}, which cannot be saved")


def _keep(tensor: torch.Tensor, place: str, tensors: dict[str, torch.Tensor]) -> str:
    name = place or "/"
    tensors[name] = tensor.contiguous()
    return name


def _unpack(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_unpack(value, tensors) for value in node]
    if not isinstance(node, dict):
        return node
    if _TENSOR in node:
        return tensors[node[_TENSOR]]
    if _ARRAY in node:
        name, dtype, shape = node[_ARRAY]
        return np.frombuffer(tensors[name].numpy().tobytes(), dtype).reshape(shape).copy()
    if _BYTES in node:
        return bytes.fromhex(node[_BYTES])
    if _TUPLE in node:
        return tuple(_unpack(value, tensors) for value in node[_TUPLE])
    if _ITEMS in node:
        return dict(tuple(_unpack(pair, tensors)) for pair in node[_ITEMS])
    return {key: _unpack(value, tensors) for key, value in node.items()}
