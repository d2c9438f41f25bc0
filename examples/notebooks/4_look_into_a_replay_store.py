# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Look into a replay store
#
# DQN learns cart-pole from transitions that it keeps, drawn by how wrong their Q-values last were. Then we look into
# what it kept: what is in the store, what is drawn of it, and what became of priorities with age. About a minute on a
# CPU.
#
# `python examples/notebooks/4_look_into_a_replay_store.py` runs this file from top to bottom. What it makes goes to the
# run's folder under `runs/`. [The replay store](../../docs/replay.md) says what lies where.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

# %% [markdown]
# ## Train
#
# The store holds less than what is played, so that it goes round.

# %%
ENV_STEPS = int(os.environ.get("ENV_STEPS", "100_000"))  # over all envs

config = read_config(
    {
        "name": "cartpole",
        "trainer": {"num_envs": 32, "train_batch_size": 256, "total_timesteps": ENV_STEPS},
        "policy": {
            "agent": {
                "algorithm": "DQN",
                "prioritized": True,
                "n_step": 3,
                "buffer_size": ENV_STEPS // 4,
                "replay_ratio": 0.02,
                "lr": 1e-3,
                "model": {"fc_dims": [64]},
            }
        },
    }
)
trainer = Trainer(config)
trainer.train()

# %% [markdown]
# ## What is in it
#
# Each field is one tensor, `[slot, env, agent, ...]`; step `s` of all envs lies in slot `s % num_slots`. One
# observation a step is kept: what came next is in the next slot.

# %%
algorithm = trainer.algorithms["agent"]
store, table = algorithm.store, algorithm.table
for name, tensor in store.tensors.items():
    print(f"{name:12} {list(tensor.shape)!s:20} {tensor.dtype}, {tensor.nbytes / 1e6:.2f} MB")
print(f"{store.num_steps_added:,} steps of each env came in, the last {store.num_slots:,} are there")
print(f"{table.num_drawable:,} items may be drawn")

# %% [markdown]
# ## What is drawn
#
# A draw fills tensors that the next draw of as many overwrites. `discount` is 0 where the pole fell, and gamma^3 where
# three steps lie between an observation and the next.

# %%
batch = table.draw(min(4_096, table.num_drawable))
index, weight, discount = (one.cpu().numpy().copy() for one in (batch.index, batch.weight, batch.discount))
commonest = np.bincount(index).max()
print(f"{len(np.unique(index)):,} different items in {len(index):,} rows, the commonest {commonest} times")
print(f"weights from {weight.min():.3f} to {weight.max():.3f}; {(discount == 0).mean():.1%} lead to an episode's end")

# %% [markdown]
# ## Priorities over age
#
# The leaves of the sum tree are the priorities as whole numbers, one an item, in units of 2^-20. An item that was never
# drawn still has the largest there was when it came in. Ages are in steps of an env.

# %%
num_envs = config.trainer.num_envs
tree = table.selector.tree
leaves = tree.leaves[: tree.anchors.num_leaves].cpu().numpy().reshape(store.num_slots, num_envs) / 2**20
slots = np.arange(store.num_slots)
age = (store.num_steps_added - 1 - slots) % store.num_slots
by_age = leaves[np.argsort(age)]  # [age, env]
drawn_age = age[index // num_envs]

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
edges = np.linspace(0, store.num_slots, 21)
ages = np.arange(store.num_slots)
there = by_age.max(1) > 0  # the last steps have no three steps ahead of them yet
left.plot(ages[there], np.median(by_age, 1)[there], label="median")
left.plot(ages[there], np.quantile(by_age, 0.95, 1)[there], label="of 100, the fifth")
left.set(title="priority over age", xlabel="age, steps", ylim=(0, None))
left.legend(frameon=False)
middle.hist(drawn_age, edges, color="tab:orange")
middle.axhline(len(index) / (len(edges) - 1), color="0.4", linestyle="--")  # as many each, were it uniform
middle.set(title="drawn over age", xlabel="age, steps")
right.hist(leaves[leaves > 0], 40, log=True, color="tab:green")
right.set(title="priorities of all items", xlabel="priority^alpha")
path = trainer.run.path / "replay.png"
figure.savefig(path, dpi=120)
root = tree.nodes[tree.nodes.nonzero().max()].item() / 2**20
print(f"the tree sums up to {root:.1f}, its leaves to {leaves.sum():.1f}")
print(f"replay.png is in {trainer.run.path}")
