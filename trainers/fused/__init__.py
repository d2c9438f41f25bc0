"""Networks whose activations never leave a GPU's multiprocessor: acting and learning by a few kernels.

`network.py` says which networks they are and where their weights lie, `actor.py` plays, `learner.py` learns.
"""
