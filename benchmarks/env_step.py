"""Envs alone: microseconds a step, launches replayed from a CUDA graph, and the limit that memory sets.

python benchmarks/env_step.py --device cuda
"""

import argparse
from pathlib import Path

import torch
from report import median, time_calls, time_graph, write_report

from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.layout import mask_place
from warpdrive.sampler import Sampler
from warpdrive.testing import random_actions

BYTES_PER_S = 4.3e12
"""What a copy on an H200 moves, read and written bytes together."""

WORKLOADS = {
    "tag_gridworld 2,000 x 5": ("tag_gridworld", 2000, {"num_taggers": 4, "grid_length": 100}, 4.0),
    "tag_gridworld 2,000 x 1,000 partial": (
        "tag_gridworld",
        2000,
        {"num_taggers": 999, "grid_length": 100, "use_full_observation": False},
        100.0,
    ),
    "tag_continuous 2,000 x 5": ("tag_continuous", 2000, {"num_taggers": 1, "num_runners": 4}, 6.0),
    "tag_continuous 2,000 x 100": ("tag_continuous", 2000, {"num_taggers": 10, "num_runners": 90}, 120.0),
    "tag_continuous 2,000 x 1,000": ("tag_continuous", 2000, {"num_taggers": 100, "num_runners": 900}, 3000.0),
    "simple_tag 65,536 x 4": ("simple_tag", 65536, {}, 31.0),
    "cartpole 65,536": ("cartpole", 65536, {}, 16.0),
    "smax 3m 4,096": ("smax", 4096, {"scenario": "3m"}, 27.3),
    "smax 3m 16,384": ("smax", 16384, {"scenario": "3m"}, 54.6),
    "smax 3s5z 4,096": ("smax", 4096, {"scenario": "3s5z"}, 102.4),
    "smax 3s5z 16,384": ("smax", 16384, {"scenario": "3s5z"}, 273.0),
    "minatar_breakout 65,536": ("minatar_breakout", 65536, {}, 20.0),
    "minatar_asterix 65,536": ("minatar_asterix", 65536, {}, 20.0),
    "minatar_freeway 65,536": ("minatar_freeway", 65536, {}, 35.0),
    "minatar_space_invaders 65,536": ("minatar_space_invaders", 65536, {}, 30.0),
    "minatar_seaquest 65,536": ("minatar_seaquest", 65536, {}, 60.0),
}
"""name -> env, envs, config, microseconds a step to stay below; of smax with its restarts and random legal actions."""

PUBLISHED = {
    "grid_length": 20.0, "episode_length": 500, "max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 2.356,
    "min_turn": -2.356, "num_acceleration_levels": 20, "num_turn_levels": 20, "tagging_distance": 0.02,
    "use_full_observation": False,
}  # fmt: skip
"""The published run's parameters of tag_continuous."""


def bytes_of_a_step(env: EnvWrapper) -> int:
    """Each array that the step kernel reads or writes, once; state, which is both, twice."""
    total = 0
    outputs = {"reward", "terminated", "truncated", *env.layout.observations}
    for parameter in env.functions.signature(f"{env.env.name}_step").parameters:
        array = env.data[parameter.name]
        times = 1 if parameter.is_const or parameter.name in outputs else 2
        total += times * array.numel() * array.element_size()
    return total


def measure(name: str, backend: Backend, num_calls: int) -> dict:
    env_name, num_envs, config, target = WORKLOADS[name]
    if env_name == "tag_continuous":
        others = config["num_taggers"] + config["num_runners"] - 1
        config = {**PUBLISHED, **config, "num_other_agents_observed": min(10, others)}
    before = torch.cuda.memory_allocated() if backend.name == "cuda" else 0
    env = EnvWrapper(env_name, num_envs, backend=backend, seed=1, env_config=config)
    env.reset()
    for array, values in random_actions(env.env, 1, 1)[0].items():
        env.data[array] = values.to(env.device)
    step, reset = env.prepare_step(), env.prepare_reset()
    draws = []
    for group_name, group in env.groups.items():
        place, sizes = env.layout.action[group_name], group.head_sizes
        if not sizes:
            continue
        action = env.data[place.array]
        sampler = Sampler(
            env.data, num_envs, group.agents, action.shape[1], sizes, backend, first_column=place.columns.start
        )
        rows = (num_envs, len(group.agents))
        outputs = [torch.empty(rows, device=env.device) for _ in range(2)]
        mask = mask_place(env.groups, group_name, env.data)
        may = None if mask is None else env.data[mask.array][:, mask.columns].contiguous()  # itself, of a lone group
        draws.append(sampler.prepare(torch.zeros(*rows, sum(sizes), device=env.device), action, *outputs, mask=may))

    def step_and_reset() -> None:
        step()
        reset()

    def with_random_actions() -> None:
        for draw in draws:
            draw()
        step()
        reset()

    timed = time_graph if backend.name == "cuda" else time_calls
    columns = {
        "step": step,
        "step_and_reset": step_and_reset,
        "random_actions_step_and_reset": with_random_actions,
    }
    us = {}
    for column, call in columns.items():
        env.reset()  # agents leave some games: each figure begins with all of them
        us[column] = median(timed(backend, call, num_calls))
    num_bytes = bytes_of_a_step(env)
    limit = num_bytes / BYTES_PER_S * 1e6
    result = {
        "num_envs": num_envs,
        "num_agents": env.num_agents,
        "threads_per_env": env.functions.threads_per_env,
        "envs_per_block": env.functions.envs_per_block,
        "us": us,
        "target_us": target,
        "mb_moved": round(num_bytes / 1e6, 3),
        "limit_us": round(limit, 3),
        "times_the_limit": round(us["step"] / limit, 2),
        "agent_steps_per_s": round(num_envs * env.num_agents / us["step_and_reset"] * 1e6),
        "env_steps_per_s_at_random": round(num_envs / us["random_actions_step_and_reset"] * 1e6),
        "array_mb": round(sum(env.data.bytes_held().values()) / 1e6, 1),
    }
    if backend.name == "cuda":
        result["device_mb"] = round((torch.cuda.memory_allocated() - before) / 1e6, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--num-calls", type=int, default=100)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backend = choose_backend(device=arguments.device)
    results = {}
    for name in WORKLOADS:
        if arguments.only in name:
            results[name] = measure(name, backend, 10 if "1,000" in name else arguments.num_calls)
    write_report(f"env_step_{backend.name}", backend, results, arguments.out)


if __name__ == "__main__":
    main()
