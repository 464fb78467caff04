"""Learning from a replay buffer: targets, losses, temperature and averaging, as pure functions.

| module | has |
|---|---|
| `heads` | one Q-value from those of several functions |
| `targets` | what Q-values are to be |
| `losses` | losses of critics, actor and temperature |
| `averaging` | slow copies of weights |

Shapes: n transitions, Q functions, D numbers in a chunk of actions, N choices.
"""
