"""Replay: transitions that are kept, and drawn from again and again.

Data flow: a rollout comes as a `ReplayTrajectory` (time first, `[T, B, ...]`), its rows go into
three tables, an index links the rows of an episode, a sampler draws rows, and the rows become a
`ReplayBatch` or `ReplayWindows`. A row is a chunk of C actions of one env. Its number, the
*serial*, counts rows since the buffer was made and is never used twice. A ring keeps the newest
`capacity` rows, so that a row outlives all earlier rows of its episode, and links stay valid.

| module | owns |
|---|---|
| `fields` | names, types and shapes of columns; the segment file, a safetensors file |
| `table` | rows by serial, in memory or in memory-mapped segment files |
| `index` | which row follows which, which rows can be drawn, episodes that go on |
| `sampling` | uniform draws; the sum tree of priorities |
| `trajectory` | what is put in, and what comes out |
| `returns` | n-step returns and windows, by following links |
| `store` | the three tables and the index, kept in step; the working folder |
| `saved` | saved shards: reading, joining, cutting and sharing them out |
| `restoring` | rows from saved shards: under their serials, or under new ones |
| `buffer` | `TrajectoryReplayBuffer`, the front |
| `mixed` | `MixedReplay`: a share of each batch from demonstrations |
| `build` | buffers from the sections of a config |

Three tables, all by serial:

- *facts*: rewards, masks, ends, version, number of the episode; small, always in memory.
- *frames*: observation and action, in memory or memory-mapped. An observation is stored once: the
  next observation of a row is the observation of the row that follows it.
- *finals*: observations in which episodes ended, which no row begins with.

A row can be drawn once its successor is known or its episode has ended. A termination is not
bootstrapped from; a truncation is, from its final observation. A sum over n steps stops early
where the episode ends or where the successor cannot be drawn yet, and is discounted accordingly.

Saving: rows are cut into segments of a fixed number of rows. A segment that is full never changes;
it is written once, into the working folder of the buffer, and hard-linked into each checkpoint. Of
the open segment the rows so far are copied when the checkpoint begins. Links, what can be drawn and
the sum tree follow from the facts and are not saved; priorities and the state of the random numbers
are. So a checkpoint is consistent however far the ring has gone on when it is complete.
"""

from rlinf.data.replay.buffer import TrajectoryReplayBuffer
from rlinf.data.replay.fields import ReplayDamaged, ReplayDiskError
from rlinf.data.replay.mixed import MixedReplay
from rlinf.data.replay.sampling import Priorities
from rlinf.data.replay.saved import SavedShard, find_shards, join_shards
from rlinf.data.replay.trajectory import ReplayBatch, ReplayTrajectory, ReplayWindows

__all__ = [
    "MixedReplay",
    "Priorities",
    "ReplayBatch",
    "ReplayDamaged",
    "ReplayDiskError",
    "ReplayTrajectory",
    "ReplayWindows",
    "SavedShard",
    "TrajectoryReplayBuffer",
    "find_shards",
    "join_shards",
]
