"""Launches and torch work share one stream, so one CUDA graph holds both."""

import pytest
import torch

from warpdrive.backends import choose_backend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.sampler import Sampler

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here to capture graphs on")

CONFIG = {"num_taggers": 4, "grid_length": 3, "episode_length": 6}


def one_step():
    """Env, and a call that draws actions by torch's logits and our sampler, then steps and resets."""
    env = EnvWrapper("tag_gridworld", 50, backend=choose_backend("cuda"), seed=3, env_config=CONFIG)
    env.reset()
    sampler = Sampler(env.data, 50, range(5), 5, (5,), env.backend)
    weight = torch.randn(21, 5, generator=torch.Generator().manual_seed(1)).to(env.device)
    logits, scratch = torch.empty(50, 5, 5, device=env.device), torch.empty(2, 50, 5, device=env.device)
    sample = sampler.prepare(logits, env.data["action"], scratch[0], scratch[1])
    step, reset = env.prepare_step(), env.prepare_reset()

    def call():
        torch.matmul(env.data["observation"], weight, out=logits)
        sample()
        step()
        reset()

    return env, call


def test_replays_of_a_graph_do_what_eager_launches_do_and_draw_anew():
    eager, call = one_step()
    for _ in range(41):
        call()
    captured, call = one_step()
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=captured.backend.stream):
        for _ in range(10):
            call()
    for _ in range(4):
        graph.replay()
    for name in ("x", "y", "time_step", "action", "observation", "reward", "env_step"):
        assert torch.equal(eager.data[name], captured.data[name]), name
    assert captured.data["env_step"].unique().tolist() == [42]  # 41 steps and the first reset
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(captured.data.pull("action").tolist())
    assert drawn[0] != drawn[1] != drawn[2]
