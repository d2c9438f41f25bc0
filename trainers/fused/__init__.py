"""Networks whose activations never leave a GPU's multiprocessor: acting and learning by a few kernels.

`plan.py` says which networks they are, and how; `shape.py` where their numbers lie. `packed.py` brings a policy's
parameters there, `actor.py` plays, for the Actor in `player.py`, and `learner.py` learns. `source.py` composes kernels
of `layers/`, `heads/`, `losses/`.
"""
