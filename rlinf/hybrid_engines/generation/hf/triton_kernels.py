"""Kernels of a decoding step on CUDA, in Triton: all that lies between the matrix products.

Numbers are added in float32, whatever the format of the weights. Loops and blocks depend on sizes
of the model alone, so that one CUDA graph serves all lengths of rows.

Keys and values lie in rows, `[slots, kv_heads, capacity, D]`, or in blocks, `[blocks, kv_heads,
block, D]`, that a table of each row names. Both are added in the same order: results are equal.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_KEYS = 64
"""Keys that a program looks at a time."""

UNIT = 16
"""Tables of blocks tell how far each is from the first one, in so many numbers.

So a block may lie anywhere on the device, and the compiler knows that its address is even enough to
be read in whole vectors.
"""

_TOKENS = 2048
"""Tokens of the vocabulary that a program adds up."""


# -- norms and gates -------------------------------------------------------------------------------


@triton.jit
def _rms_norm(x, weight, out, width, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < width
    values = tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + epsilon)
    factors = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + place, values * scale * factors, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / rms(x) * weight, of `[B, H]`."""
    out = torch.empty_like(x)
    width = x.shape[1]
    _rms_norm[(x.shape[0],)](x, weight, out, width, epsilon, triton.next_power_of_2(width))
    return out


@triton.jit
def _swiglu(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    begin = gate_up + row * 2 * width + place
    gate = tl.load(begin, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(begin + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + place, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, of the halves of `[B, 2 * H]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu[(rows, triton.cdiv(width, block))](gate_up, out, width, block)
    return out


# -- queries, keys and values ----------------------------------------------------------------------


@triton.jit
def _turned(x, norm, cosine, sine, epsilon, heads, NORM: tl.constexpr, HALF: tl.constexpr,
            HEADS: tl.constexpr):  # fmt: skip
    """Halve of heads `[HEADS, HALF]`, normed if the model does so, and turned."""
    head, place = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = head < heads
    begin = x + head * 2 * HALF + place
    first = tl.load(begin, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(begin + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(squares / (2 * HALF) + epsilon)[:, None]
        first *= scale * tl.load(norm + place).to(tl.float32)
        second *= scale * tl.load(norm + HALF + place).to(tl.float32)
    left, right = tl.load(cosine + place).to(tl.float32), tl.load(cosine + HALF + place)
    down, up = tl.load(sine + place).to(tl.float32), tl.load(sine + HALF + place)
    return first * left + second * down, second * right.to(tl.float32) + first * up.to(tl.float32)


@triton.jit
def _turn_and_keep(qkv, cosine, sine, positions, q_norm, k_norm, queries, keys, values, table,
                   capacity, blocks, heads, kv_heads, epsilon, NORM: tl.constexpr,
                   HALF: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
                   BLOCK: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    cosine += position * 2 * HALF
    sine += position * 2 * HALF
    x = qkv + row * (heads + 2 * kv_heads) * 2 * HALF
    place = tl.arange(0, HALF)[None, :]

    first, second = _turned(x, q_norm, cosine, sine, epsilon, heads, NORM, HALF, HEADS)
    head = tl.arange(0, HEADS)[:, None]
    target = queries + (row * heads + head) * 2 * HALF + place
    tl.store(target, first, mask=head < heads)
    tl.store(target + HALF, second, mask=head < heads)

    x += heads * 2 * HALF
    first, second = _turned(x, k_norm, cosine, sine, epsilon, kv_heads, NORM, HALF, KV_HEADS)
    head = tl.arange(0, KV_HEADS)[:, None]
    inside = head < kv_heads
    if BLOCK:
        block = tl.load(table + row * blocks + position // BLOCK) * STEP
        kept = block + (head * BLOCK + position % BLOCK) * 2 * HALF + place
    else:
        kept = ((row * kv_heads + head) * capacity + position) * 2 * HALF + place
    tl.store(keys + kept, first, mask=inside)
    tl.store(keys + kept + HALF, second, mask=inside)

    source = x + (kv_heads + head) * 2 * HALF + place
    tl.store(values + kept, tl.load(source, mask=inside, other=0.0), mask=inside)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    tl.store(values + kept + HALF, second, mask=inside)


def turn_and_keep(
    qkv: Tensor,
    cosine: Tensor,
    sine: Tensor,
    positions: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    table: Tensor | None = None,
) -> Tensor:
    """Turn queries and keys by their positions, and keep keys and values.

    Args:
        qkv: `[B, (heads + 2 * kv_heads) * D]`.
        cosine: `[capacity, D]`.
        sine: `[capacity, D]`, the first half negated.
        positions: `[B]` int64.
        norms: Weights of the norms of queries and keys, `[D]` each, if the model has them.
        epsilon: Of these norms.
        keys: `[slots, kv_heads, capacity, D]`; row b gets those of b. With a table, the first
            blocks, `[any, kv_heads, block, D]`.
        values: Likewise.
        table: `[slots, blocks]` int64, how far each block of a row is from the first one, in `UNIT`
            numbers; None if rows are contiguous.

    Returns:
        Queries `[B, heads, D]`.
    """
    _, kv_heads, capacity, width = keys.shape
    rows, heads = qkv.shape[0], qkv.shape[1] // width - 2 * kv_heads
    queries = qkv.new_empty(rows, heads, width)
    q_norm, k_norm = norms or (qkv, qkv)
    block = 0 if table is None else capacity
    table, blocks = _looked_up(table, positions)
    _turn_and_keep[(rows,)](
        qkv, cosine, sine, positions, q_norm, k_norm, queries, keys, values, table, capacity,
        blocks, heads, kv_heads, epsilon, norms is not None, width // 2,
        triton.next_power_of_2(heads), triton.next_power_of_2(kv_heads),
        block, UNIT,
    )  # fmt: skip
    return queries


# -- attention -------------------------------------------------------------------------------------


@triton.jit
def _attend(queries, keys, values, table, positions, out, tops, sums, capacity, blocks, heads,
            kv_heads, scale, GROUP: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
            KEYS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
            STEP: tl.constexpr):  # fmt: skip
    """What the queries of a key head see in one part of the keys of a row."""
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row) + 1
    share = tl.cdiv(tl.cdiv(length, PARTS), KEYS) * KEYS
    begin = part * share
    end = tl.minimum(begin + share, length)

    query, place = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    head = kv_head * GROUP + query
    of_query = (row * heads + head)[:, None] * WIDTH + place[None, :]
    q = tl.load(queries + of_query, mask=(query < GROUP)[:, None], other=0.0)
    # Of a row, or of a block: keys that are looked at together lie in one block.
    inner = tl.arange(0, KEYS)[:, None] * WIDTH + place[None, :]

    if BLOCK:
        block = tl.load(table + row * blocks + tl.minimum(begin // BLOCK, blocks - 1))
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        if BLOCK:
            of_key = block * STEP + (kv_head * BLOCK + start % BLOCK) * WIDTH + inner
            # The next one, so that the loads of keys do not wait for it.
            following = tl.minimum((start + KEYS) // BLOCK, blocks - 1)
            block = tl.load(table + row * blocks + following)
        else:
            of_key = ((row * kv_heads + kv_head) * capacity + start) * WIDTH + inner
        k = tl.load(keys + of_key, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        faded = tl.exp(top - higher)
        v = tl.load(values + of_key, mask=seen[:, None], other=0.0)
        new = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        mixed = mixed * faded[:, None] + new
        total = total * faded + tl.sum(weights, 1)
        top = higher

    inside = query < GROUP
    if PARTS == 1:
        tl.store(out + of_query, mixed / total[:, None], mask=inside[:, None])
    else:
        index = (row * heads + head) * PARTS + part
        tl.store(tops + index, top, mask=inside)
        tl.store(sums + index, total, mask=inside)
        target = out + index[:, None] * WIDTH + place[None, :]
        tl.store(target, mixed, mask=inside[:, None])


@triton.jit
def _join(parts, tops, sums, out, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Join what a query saw in the parts of its row."""
    query = tl.program_id(0).to(tl.int64)
    part, place = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    index = query * PARTS + part
    top = tl.load(tops + index)
    # The first part is never empty, so the greatest is finite.
    factor = tl.exp(top - tl.max(top, 0))
    mixed = tl.load(parts + index[:, None] * WIDTH + place[None, :])
    total = tl.sum(tl.load(sums + index) * factor, 0)
    tl.store(out + query * WIDTH + place, tl.sum(mixed * factor[:, None], 0) / total)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    parts: int,
    table: Tensor | None = None,
) -> Tensor:
    """Attention of one query per row and head to all keys until its position.

    Args:
        queries: `[B, heads, D]`.
        keys: `[slots, kv_heads, capacity, D]`, of which row b is that of query b. With a table, the
            first blocks, `[any, kv_heads, block, D]`.
        values: Likewise.
        positions: `[B]` int64.
        parts: A power of two: into how many the keys of a row are split, to keep the device busy.
        table: As for `turn_and_keep`.

    Returns:
        `[B, heads * D]`.
    """
    rows, heads, width = queries.shape
    _, kv_heads, capacity, _ = keys.shape
    group = heads // kv_heads
    out = queries.new_empty(rows, heads * width)
    target, tops, sums = out, out, out
    if parts > 1:
        target = queries.new_empty(rows, heads, parts, width, dtype=torch.float32)
        tops, sums = queries.new_empty(2, rows, heads, parts, dtype=torch.float32)
    block = 0 if table is None else capacity
    at_once = min(_KEYS, block) if block else _KEYS
    assert block % at_once == 0, f"blocks have {block} tokens"
    table, blocks = _looked_up(table, positions)
    _attend[(rows, kv_heads, parts)](
        queries, keys, values, table, positions, target, tops, sums, capacity, blocks, heads,
        kv_heads, width**-0.5, group, max(16, triton.next_power_of_2(group)), width, at_once, parts,
        block, UNIT,
    )  # fmt: skip
    if parts > 1:
        _join[(rows * heads,)](target, tops, sums, out, width, parts)
    return out


def _looked_up(table: Tensor | None, like: Tensor) -> tuple[Tensor, int]:
    """Return a table and its width; without one, what kernels take and do not read."""
    return (like, 0) if table is None else (table, table.shape[1])


# -- blocks ----------------------------------------------------------------------------------------


@triton.jit
def _write_blocks(k, v, tokens, places, keys, values, k_row, v_row, kv_heads, WIDTH: tl.constexpr,
                  KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Copy the keys and values of one token."""
    index = tl.program_id(0).to(tl.int64)
    token, place = tl.load(tokens + index), tl.load(places + index) * STEP
    head, number = tl.arange(0, KV_HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside, source = head < kv_heads, head * WIDTH + number
    target = place + head * BLOCK * WIDTH + number
    tl.store(keys + target, tl.load(k + token * k_row + source, mask=inside), mask=inside)
    tl.store(values + target, tl.load(v + token * v_row + source, mask=inside), mask=inside)


def write_blocks(
    k: Tensor, v: Tensor, tokens: Tensor, places: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Write keys and values of tokens into blocks.

    Args:
        k: `[T, kv_heads, D]`; heads lie close together.
        v: Likewise.
        tokens: `[K]` int64, which of the T.
        places: `[K]` int64, how far the first head of each goes from the first block, in `UNIT`
            numbers.
        keys: The first blocks, `[any, kv_heads, block, D]`.
        values: Likewise.
    """
    _, kv_heads, block, width = keys.shape
    assert k[0].is_contiguous() and v[0].is_contiguous(), f"{k.stride()}, {v.stride()}"
    _write_blocks[(len(tokens),)](
        k, v, tokens, places, keys, values, k.stride(0), v.stride(0), kv_heads, width,
        triton.next_power_of_2(kv_heads), block, UNIT,
    )  # fmt: skip


@triton.jit
def _read_blocks(table, keys, values, k, v, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                 STEP: tl.constexpr):  # fmt: skip
    """Copy the keys and values of one head in one block."""
    row, index, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    blocks, kv_heads = tl.num_programs(1), tl.num_programs(2)
    inner = tl.arange(0, BLOCK)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    source = tl.load(table + row * blocks + index) * STEP + kv_head * BLOCK * WIDTH + inner
    target = ((row * kv_heads + kv_head) * blocks + index) * BLOCK * WIDTH + inner
    tl.store(k + target, tl.load(keys + source))
    tl.store(v + target, tl.load(values + source))


def read_blocks(table: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Copy blocks together.

    Args:
        table: `[P, N]` int64, as for `turn_and_keep`.
        keys: The first blocks, `[any, kv_heads, block, D]`.
        values: Likewise.

    Returns:
        Keys and values, `[P, kv_heads, N * block, D]` each.
    """
    _, kv_heads, block, width = keys.shape
    rows, blocks = table.shape
    k, v = (x.new_empty(rows, kv_heads, blocks * block, width) for x in (keys, values))
    _read_blocks[(rows, blocks, kv_heads)](table, keys, values, k, v, width, block, UNIT)
    return k, v


# -- drawing ---------------------------------------------------------------------------------------


@triton.jit
def _add_up(logits, temperatures, tops, sums, vocabulary, BLOCK: tl.constexpr):
    """Greatest number and sum of weights of one block of a row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    temperature = tl.load(temperatures + row)
    x = tl.load(logits + row * vocabulary + token, mask=inside, other=float("-inf"))
    x = x.to(tl.float32) / temperature
    top = tl.max(x, 0)
    index = row * tl.num_programs(1) + block
    tl.store(tops + index, top)
    tl.store(sums + index, tl.sum(tl.exp(x - top), 0))


@triton.jit
def _pick(logits, temperatures, uniforms, tops, sums, out, vocabulary, blocks,
          BLOCKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Draw a block of a row, then a token of it."""
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, BLOCKS)
    known = each < blocks
    of_block = tl.load(tops + row * blocks + each, mask=known, other=float("-inf"))
    top = tl.max(of_block, 0)
    weights = tl.load(sums + row * blocks + each, mask=known, other=0.0)
    weights = (weights * tl.exp(of_block - top)).to(tl.float64)
    ends = tl.cumsum(weights, 0)
    total = tl.sum(weights, 0)
    target = tl.load(uniforms + row) * total
    block = tl.minimum(tl.sum((known & (ends <= target)).to(tl.int32), 0), blocks - 1)
    before = tl.sum(tl.where(each < block, weights, 0.0), 0)

    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    temperature = tl.load(temperatures + row)
    x = tl.load(logits + row * vocabulary + token, mask=inside, other=float("-inf"))
    x = x.to(tl.float32) / temperature - top
    own = tl.exp(x).to(tl.float64)
    steps = tl.cumsum(own, 0)
    # Both stages add in different orders: what rounding leaves must stay inside of the block.
    rest = tl.minimum(tl.maximum(target - before, 0.0), tl.max(steps, 0) * (1 - 2.0**-50))
    index = tl.sum((steps <= rest).to(tl.int32), 0)
    index = tl.minimum(index, BLOCK - 1)
    chosen = tl.sum(tl.where(tl.arange(0, BLOCK) == index, x, 0.0), 0)
    tl.store(out + row * 2, (block * BLOCK + index).to(tl.float64))
    tl.store(out + row * 2 + 1, chosen.to(tl.float64) - tl.log(total))


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor, out: Tensor) -> None:
    """Draw one token per row, as `rlinf.hybrid_engines.generation.sampling.sample` does.

    Args:
        logits: `[B, V]`.
        temperatures: `[B]` float32, all above 0.
        uniforms: `[B]` float64 in [0, 1).
        out: `[B, 2]` float64: gets tokens and their log-probabilities.
    """
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, _TOKENS)
    tops, sums = logits.new_empty(2, rows, blocks, dtype=torch.float32)
    _add_up[(rows, blocks)](logits, temperatures, tops, sums, vocabulary, _TOKENS)
    _pick[(rows,)](
        logits, temperatures, uniforms, tops, sums, out, vocabulary, blocks,
        triton.next_power_of_2(blocks), _TOKENS,
    )  # fmt: skip
