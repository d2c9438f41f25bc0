"""my_env does what every env must do, and what its own rules say: `python -m pytest my_env`."""

import torch

from warpdrive.env_wrapper import EnvWrapper
from warpdrive.testing import check_env

ENV = "my_env.my_env:MyEnv"


def test_it_does_what_every_env_must_do():
    check_env(ENV, device="cpu")


def test_whoever_reaches_the_flag_is_paid():
    env = EnvWrapper(ENV, num_envs=1, device="cpu", env_config={"num_runners": 2})
    env.reset()
    env.data["x"] = torch.tensor([[3, 6]])
    env.data["y"] = torch.tensor([[2, 6]])
    env.data["flag_x"], env.data["flag_y"] = 4, 2
    right, stay = 1, 0
    _, reward, _, _, _ = env.step(torch.tensor([[right, stay]]))
    assert env.data["x"].tolist() == [[4, 6]]
    assert reward.tolist() == [[1.0, 0.0]]
