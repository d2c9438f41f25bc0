"""Acting and learning by a few kernels; of most networks, activations never leave a GPU's multiprocessor.

`plan.py` says which networks they are, and how, `learning_plan.py` how an update is made; `shape.py` where numbers
lie, `seen.py` what a network sees. `packed.py` brings a policy's parameters there, `actor.py` plays, for the Actor in
`player.py`, and `learner.py` learns. `source.py` composes kernels of `layers/`, `heads/`, `losses/`.
Wider and deeper networks go through memory: `by_layers.py`, and `recurrent.py` and `cell.py` for GRUs; `walk.py` goes
through sequences for networks whose other layers are torch's. Networks that see an image have kernels of their own:
`convolution.py` and `conv_shape.py`.
"""
