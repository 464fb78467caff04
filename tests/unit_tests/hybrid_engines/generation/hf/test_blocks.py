"""No block is lost, given twice or found under tokens that it does not hold."""

import random
from collections import Counter

import numpy as np
import pytest

from rlinf.hybrid_engines.generation.hf.block_tables import BlockTables
from rlinf.hybrid_engines.generation.hf.blocks import NOBODY, BlockPool

SIZE = 4


def test_a_block_is_free_when_its_last_user_is_gone():
    pool = BlockPool(4, SIZE)
    block = pool.take()
    pool.share([block])
    pool.release([block])
    assert (pool.users(block), pool.available, pool.used) == (1, 2, 1)
    pool.release([block])
    assert (pool.available, pool.used) == (3, 0)
    with pytest.raises(AssertionError, match="has no users"):
        pool.release([block])
    with pytest.raises(AssertionError, match="is free"):
        pool.share([block])
    assert NOBODY not in {pool.take() for _ in range(3)}
    with pytest.raises(KeyError):
        pool.take()


def test_blocks_are_found_by_all_tokens_until_their_end():
    pool = BlockPool(8, SIZE)
    tokens = list(range(10))
    blocks = [pool.take(), pool.take()]
    pool.keep(tokens, blocks)
    assert pool.find(tokens, 9) == blocks and pool.find(tokens, 1) == blocks[:1]
    assert pool.find(tokens[:7], 9) == blocks[:1]
    # The same tokens behind others are something else.
    assert pool.find(tokens[4:8], 9) == []
    assert pool.find([*tokens[:3], 77, *tokens[4:]], 9) == []
    pool.forget()
    assert pool.find(tokens, 9) == [] and pool.used == 2
    pool.release(blocks)
    assert pool.available == 7


def test_what_is_kept_goes_when_memory_is_needed_the_oldest_first_and_from_its_end():
    pool = BlockPool(5, SIZE)
    first, second = list(range(8)), list(range(50, 58))
    for tokens in (first, second):
        blocks = [pool.take(), pool.take()]
        pool.keep(tokens, blocks)
        pool.release(blocks)
    assert (pool.available, pool.kept) == (4, 4)
    pool.take()
    assert len(pool.find(first, 9)) == 1 and len(pool.find(second, 9)) == 2
    pool.share(pool.find(first, 9))
    pool.take()
    assert len(pool.find(first, 9)) == 1 and len(pool.find(second, 9)) == 1


def test_equal_blocks_are_kept_once():
    pool = BlockPool(8, SIZE)
    tokens = list(range(12))
    one, other = [pool.take() for _ in range(2)], [pool.take() for _ in range(3)]
    pool.keep(tokens, one)
    pool.keep(tokens, other)
    assert pool.find(tokens, 9) == [*one, other[2]]
    pool.release(one)
    for _ in range(4):
        pool.take()
    # What the third block was kept behind is gone.
    assert pool.find(tokens, 9) == []
    pool.keep(tokens, other)
    assert pool.find(tokens, 9) == other[:2]
    pool.release(other)
    assert pool.available == 3


class Model:
    """What rows should hold, and what blocks were given to hold: written like a cache."""

    def __init__(self, tables):
        self.tables = tables
        self.content = {}
        self.rows = {}

    def write(self, row, begin):
        """Write the tokens of a row from `begin` on, as prefill and decoding do."""
        for place in range(begin, len(self.rows[row])):
            block = self.tables.table[row, place // SIZE]
            assert block != NOBODY
            self.content[block, place % SIZE] = self.rows[row][place]

    def check(self):
        tables, pool = self.tables, self.tables.pool
        users = Counter()
        for row, count in enumerate(tables.counts):
            blocks = tables.table[row, :count].tolist()
            assert NOBODY not in blocks and len(set(blocks)) == len(blocks)
            assert (tables.table[row, count:] == NOBODY).all()
            users.update(blocks)
        for block in range(1, pool.count):
            assert pool.users(block) == users[block]
        assert pool.used == len(users)
        assert pool.available + len(users) + 1 == pool.count
        for row, tokens in self.rows.items():
            held = [
                self.content[tables.table[row, place // SIZE], place % SIZE]
                for place in range(len(tokens))
            ]
            assert held == tokens
            # Whoever writes next is alone.
            if len(tokens) % SIZE:
                assert users[tables.table[row, len(tokens) // SIZE]] == 1


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_schedules(seed, reuse):
    generator = random.Random(seed)
    most = generator.choice([9, 20, 60])
    tables = BlockTables(6, 8 * SIZE, SIZE, most, generator.choice([None, 2]), reuse)
    model = Model(tables)
    prompts = [[generator.randrange(3) for _ in range(generator.randint(1, 20))] for _ in range(6)]
    refused = found = 0
    for _ in range(600):
        action = generator.random()
        free = [row for row in range(6) if row not in model.rows]
        if action < 0.3 and free:
            rows = generator.sample(free, generator.randint(1, len(free)))
            prompt = generator.choice(prompts)
            if tables.claim(prompt, rows):
                read = int(tables.read[rows[0]])
                assert read < len(prompt) and read % SIZE == 0
                found += read
                for row in rows:
                    model.rows[row] = list(prompt)
                    model.write(row, read)
                tables.keep(prompt, rows[0])
            else:
                refused += 1
        elif action < 0.8:
            positions = np.zeros(6, np.int64)
            for row, tokens in model.rows.items():
                positions[row] = len(tokens)
            if positions.max() >= 8 * SIZE:
                continue
            if tables.extend(positions):
                for row in model.rows:
                    model.rows[row].append(generator.randrange(3))
                    model.write(row, len(model.rows[row]) - 1)
            else:
                refused += 1
        elif action < 0.9 and model.rows:
            row = generator.choice(list(model.rows))
            tables.keep(model.rows.pop(row), row)
            tables.release(row)
        elif action < 0.97 and model.rows and free:
            source, target = generator.choice(list(model.rows)), generator.choice(free)
            tables.move([source], [target])
            model.rows[target] = model.rows.pop(source)
        elif action > 0.99:
            tables.pool.forget()
        model.check()
        if len(model.rows) == 6 or generator.random() < 0.02 or not tables.pool.available:
            for row in list(model.rows):
                tables.release(row)
                del model.rows[row]
            model.check()
    for row in list(model.rows):
        tables.release(row)
    assert tables.pool.used == 0 and tables.pool.available == tables.pool.count - 1
    assert tables.pool.count <= most
    assert (found > 0) == reuse
    assert refused or most > 9


def test_a_pool_grows_by_need_up_to_its_limit():
    tables = BlockTables(4, 40, SIZE, 12, 2)
    assert tables.pool.count == 2
    assert tables.claim([5] * 9, [0])
    assert tables.pool.count == 4
    assert tables.claim([6] * 9, [1]) and not tables.claim([7] * 17, [2])
    assert tables.pool.count <= 12
    tables.release(0)
    tables.release(1)
    assert tables.claim([7] * 40, [2]) and tables.pool.used == 10


def test_a_group_shares_the_full_blocks_of_its_prompt():
    tables = BlockTables(4, 40, SIZE, 41)
    assert tables.claim(list(range(10)), [0, 1, 3])
    assert tables.pool.used == 2 + 3
    assert (tables.table[[0, 1, 3], :2] == tables.table[0, :2]).all()
    assert len(set(tables.table[[0, 1, 3], 2])) == 3
    assert tables.extend(np.array([12, 11, 0, 12])) and tables.pool.used == 2 + 5


def test_a_pool_for_all_rows_never_refuses():
    generator = random.Random(3)
    tables = BlockTables(6, 4 * SIZE, SIZE, 6 * 4 + 1, 2)
    for round_ in range(50):
        positions = np.zeros(6, np.int64)
        for row in range(6):
            prompt = [generator.randrange(9) for _ in range(generator.randint(1, 4 * SIZE))]
            assert tables.claim(prompt, [row])
            tables.keep(prompt, row)
            positions[row] = len(prompt)
        while (positions < 4 * SIZE).any():
            assert tables.extend(np.minimum(positions, 4 * SIZE - 1))
            positions += 1
        for row in range(6):
            tables.release(row)
        assert tables.pool.used == 0, round_
