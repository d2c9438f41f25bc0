"""Envs at the far end of arrays that would fill a GPU: no place of theirs may be counted in 32 bits."""

import re

import pytest
import torch
from adapter_cases import SOCCER

from trainers.templates.my_env.my_env import MyEnv
from warpdrive.data_manager import POOL, START
from warpdrive.env_wrapper import MAX_AGENTS, EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager

NUM_ENVS = 3
ENVS = {
    "simple_tag": {"continuous_actions": True},
    "tag_gridworld": {"use_full_observation": True},
    "tag_continuous": {"num_taggers": 2, "num_runners": 3},
    MyEnv: {},
    SOCCER: {},
}


def far_kernels(env: EnvWrapper, first: int) -> str:
    """The env's source, with kernels far_<kernel> for which its arrays begin with what belongs to env `first`."""
    source = env.functions.source
    text = [
        '#include "warpdrive.cuh"', '#include "random.cuh"', f"#define env_index() ({first} + env_index())",
        "#undef NUM_ENVS", f"#define NUM_ENVS {first + NUM_ENVS}",
        re.sub(r"__launch_bounds__\([^)]*\)", "", source.text).replace("__global__", "__device__"),
    ]  # fmt: skip
    for name, signature in env.functions.signatures.items():
        given = []
        for one in signature.parameters:
            is_shared = one.name == "seed" or one.name.startswith(POOL) or env.data.is_table(one.name)
            size = 0 if is_shared else env.data[one.name][0].numel()
            given.append(f"{one.name} - {first}ll * {size}")
        text.append(f'extern "C" __global__ void far_{name}({", ".join(map(str, signature.parameters))})')
        text.append(f"{{ {name}({', '.join(given)}); }}")
    return "\n".join(text)


@pytest.mark.parametrize("name", ENVS)
def test_the_last_envs_of_all_do_what_the_first_do(backend, name):
    env = EnvWrapper(name, NUM_ENVS, backend=backend, env_config=ENVS[name], seed=3)
    env.reset()
    first = MAX_AGENTS // env.num_agents - NUM_ENVS
    far = FunctionManager(
        env.data, far_kernels(env, first), env.functions.constants, NUM_ENVS, env.num_agents, backend,
        include_folders=env.functions.source.all_include_folders(),
    )  # fmt: skip
    for array in env.layout.actions:
        action = env.data[array]
        action.copy_(torch.rand(action.shape) * (1 if action.is_floating_point() else 5))  # all have five choices
    names = [one for one in env.data.names() if not one.startswith((START, POOL))]
    before = {one: env.data[one].clone() for one in names}
    found = []
    for functions, prefix, first_env in ((env.functions, "", 0), (far, "far_", first)):
        for one, array in before.items():
            env.data[one].copy_(array)
        env.data["seed"][2:] = -first_env % 2**32  # what env `first` is called: random numbers are the same
        seen = []
        for kernel in env.functions.signatures:
            functions.launch(prefix + kernel)
            seen += [env.data[one].clone() for one in names if one != "seed"]
            env.data["terminated"].fill_(True)
        found.append(seen)
    assert all(torch.equal(*both) for both in zip(*found, strict=True))
    assert any(not torch.equal(env.data[one], array) for one, array in before.items() if one != "seed")


def test_more_envs_and_agents_than_32_bits_can_number_are_refused_before_they_are_made():
    with pytest.raises(EnvError, match=r"536,870,912 envs x 4 agents are 2,147,483,648, .* at most 536,870,911 envs a"):
        EnvWrapper("tag_gridworld", 2**29, "cpu", env_config={"num_taggers": 3})
    with pytest.raises(EnvError, match=r"here would be 4,294,967,290 to 4,294,967,296\. Take fewer"):
        EnvWrapper("cartpole", 7, "cpu", first_env=2**32 - 6)
