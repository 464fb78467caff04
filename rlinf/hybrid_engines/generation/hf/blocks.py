"""Counts who uses which block of a cache, and finds blocks again by the tokens they hold."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

NOBODY = 0
"""The block where rows without a sequence write; it is never given to one."""

_Key = tuple[int, tuple[int, ...]]


class BlockPool:
    """Blocks of a fixed number of tokens, counted by their users.

    A block has one user while it is written. Once it is full it can be kept under its tokens and
    all tokens before them: another sequence that begins with the same ones uses it, too. A kept
    block without users stays until the memory is needed; the one unused for longest goes first.

    Keys are the tokens themselves, not a hash of them: two prefixes are never confused.

    Args:
        count: Blocks, `NOBODY` included.
        size: Tokens per block.
    """

    def __init__(self, count: int, size: int):
        self.count = 0
        self.size = size
        self._users: list[int] = []
        self._free: list[int] = []
        self._kept: dict[_Key, int] = {}
        self._keys: dict[int, _Key] = {}
        # A kept block is named by a number that is never used again, the parent in its children's
        # keys: they cannot be found any more when it is gone.
        self._names: dict[int, int] = {}
        self._next_name = 1
        self._unused: OrderedDict[int, None] = OrderedDict()
        self.grow(count)
        heapq.heappop(self._free)
        self._users[NOBODY] = 1

    @property
    def available(self) -> int:
        """Blocks that `take` can give: free ones, and kept ones without users."""
        return len(self._free) + len(self._unused)

    @property
    def used(self) -> int:
        """Blocks with users."""
        return self.count - 1 - self.available

    @property
    def kept(self) -> int:
        """Blocks that can be found by their tokens."""
        return len(self._kept)

    def users(self, block: int) -> int:
        """Return how many sequences use a block."""
        return self._users[block]

    def grow(self, count: int) -> None:
        """Add blocks until there are `count`."""
        self._free += range(self.count, count)
        heapq.heapify(self._free)
        self._users += [0] * (count - self.count)
        self.count = count

    def take(self) -> int:
        """Return a block for one user, the first free one; what was kept in it is lost.

        First ones, so that the blocks in use lie close together.

        Raises:
            IndexError: None is available.
        """
        if not self._free:
            oldest, _ = self._unused.popitem(last=False)
            self._drop(oldest)
            self._free.append(oldest)
        block = heapq.heappop(self._free)
        self._users[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Add a user to blocks that have users or are kept."""
        for block in blocks:
            assert self._users[block] or block in self._keys, f"block {block} is free"
            self._unused.pop(block, None)
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take a user from the blocks of a sequence, given from its beginning on."""
        # From the end: blocks are dropped in this order, and a child is of no use without parent.
        for block in reversed(blocks):
            assert block != NOBODY and self._users[block], f"block {block} has no users"
            self._users[block] -= 1
            if not self._users[block]:
                if block in self._keys:
                    self._unused[block] = None
                else:
                    heapq.heappush(self._free, block)

    def find(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return kept blocks that hold the beginning of a sequence.

        Args:
            tokens: The sequence.
            most: Blocks at most.
        """
        found: list[int] = []
        parent = 0
        for begin in range(0, min(len(tokens) // self.size, most) * self.size, self.size):
            block = self._kept.get((parent, tuple(tokens[begin : begin + self.size])))
            if block is None:
                break
            found.append(block)
            parent = self._names[block]
        return found

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Let full blocks be found by their tokens.

        Args:
            tokens: A sequence, from its beginning on.
            blocks: Those of its full blocks, at most; they have users.
        """
        parent = 0
        for index, block in enumerate(blocks):
            begin = index * self.size
            part = tuple(tokens[begin : begin + self.size])
            assert len(part) == self.size, f"block {block} is not full"
            key = (parent, part)
            known = self._kept.get(key, block)
            if known == block and block not in self._names:
                self._kept[key], self._keys[block] = block, key
                self._names[block] = self._next_name
                self._next_name += 1
            # Another block may hold the same: what follows is kept behind that one.
            parent = self._names[known]

    def forget(self) -> None:
        """Let no block be found any more: keys and values of other weights are of no use."""
        self._kept.clear()
        self._keys.clear()
        self._names.clear()
        self._free += self._unused
        heapq.heapify(self._free)
        self._unused.clear()

    def _drop(self, block: int) -> None:
        del self._kept[self._keys.pop(block)]
        del self._names[block]
