"""A config in which nothing is wrong: tests change a line of it, and know the lines' numbers."""

GOOD = """\
name: tag_gridworld
env:
  num_taggers: 3
trainer:
  num_envs: 100
  train_batch_size: 25000
  total_timesteps: 1e6
policy:
  tagger:
    lr: 1e-3
    model:
      fc_dims: [32]
  runner:
    algorithm: A2C
saving:
  basedir: runs
"""
