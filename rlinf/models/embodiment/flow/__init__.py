"""What flow policies share, whatever network computes their velocities.

| module | has |
|---|---|
| `steps` | the time grid, and the Gaussian of one denoising step |
| `chain` | sampling a chain of steps, and the log-probability of a stored one |
| `matching` | the loss of flow matching |
| `network` | small networks of velocity and of noise, and the embedding of times |
| `settings`, `config` | settings of policies, and their config keys |

Time runs from 1, where all is noise, to 0, where the action is. With noise `z` and action `a`, the
path is `x_t = t z + (1 - t) a`, and its velocity `z - a` does not depend on `t`.
"""
