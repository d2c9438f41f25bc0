"""TorchRL's PPO on our envs: a learner that no one here wrote, on the same env, networks and budget.

python benchmarks/peers/torchrl_ppo.py --config simple_spread.yaml --seed 1 --device cpu
python benchmarks/peers/torchrl_ppo.py --config simple_spread.yaml simple_tag.yaml --seeds 10 --jobs 20 --device cpu

Its losses, advantages and distributions are TorchRL's; the config gives the env, the sizes of the networks, the
numbers of envs, steps, epochs and minibatches, and the learning rate's schedule. Networks start orthogonally, as ours
do. Returns are normalised by TorchRL's PopArtValueNorm where the config says normalize_return, as ours are; with
--reward-scale, rewards are multiplied by it instead, so that returns are near 1. Each group of agents has a policy of
its own. Prints one JSON line a run: each group's mean return of greedy episodes from the starts that `evaluation:`
names, and of the last episodes trained on. With --seeds, each run is a process of one thread, and peers_torchrl.json
holds them all.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions, nn
from torchrl.modules.value_norm import PopArtValueNorm
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

from trainers.settings.config import SHARED
from trainers.settings.read_config import read_config
from warpdrive.backends import choose_backend
from warpdrive.config import value_at
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper

EXAMPLES = Path(__file__).parents[2] / "examples"
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def network(num_in: int, config, num_out: int, last_gain: float) -> nn.Sequential:
    layers, width = [], num_in
    for next_width in config.fc_dims:
        layers += [nn.Linear(width, next_width), ACTIVATIONS[config.activates]()]
        width = next_width
    layers.append(nn.Linear(width, num_out))
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Value(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation)


class Group:
    """One policy group's networks, loss and optimiser."""

    def __init__(self, agents: range, num_features: int, num_actions: int, config, device, normalises: bool) -> None:
        self.agents, self.config = agents, config
        self.value_norm = PopArtValueNorm(beta=0.99, device=device) if normalises else None
        actor_net = network(num_features, config.model, num_actions, last_gain=0.01).to(device)
        actor = TensorDictModule(actor_net, ["observation"], ["logits"])
        self.actor = ProbabilisticTensorDictSequential(
            actor,
            ProbabilisticTensorDictModule(
                in_keys=["logits"],
                out_keys=["action"],
                distribution_class=distributions.Categorical,
                default_interaction_type=InteractionType.RANDOM,  # by default the likeliest one is taken
                return_log_prob=True,
                log_prob_key="action_log_prob",
            ),
        )
        critic_net = Value(network(num_features, config.model, 1, last_gain=1.0).to(device))
        self.critic = TensorDictModule(critic_net, ["observation"], ["state_value"])
        self.loss = ClipPPOLoss(
            self.actor,
            self.critic,
            clip_epsilon=value_at(config.clip_param, 0),
            entropy_coeff=value_at(config.entropy_coeff, 0),
            critic_coeff=0.5 * value_at(config.vf_loss_coeff, 0),  # ours weighs half the squared error
            normalize_advantage=True,
            loss_critic_type="l2",
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=value_at(config.lr, 0), eps=1e-5)
        self.steps: list[TensorDict] = []

    def act(self, observation: torch.Tensor, greedy: bool = False) -> torch.Tensor:
        """[E, A, F] -> [E, A]; keeps what is learned from later unless greedy."""
        with torch.no_grad():
            step = TensorDict({"observation": observation.clone()}, observation.shape[:2])
            if greedy:
                return self.actor[0](step)["logits"].argmax(-1)
            self.actor(step)
            self.critic(step)
        self.steps.append(step)
        return step["action"]

    def learn(self, next_observation: torch.Tensor, env_steps: int) -> None:
        """An update from the steps kept.

        Args:
            next_observation: [T, E, A, F], what was seen after each step, before any reset.
        """
        config = self.config
        batch = torch.stack(self.steps)  # [T, E, A]
        self.steps = []
        with torch.no_grad():
            next_value = self.critic(TensorDict({"observation": next_observation}, batch.shape))["state_value"]
        value = batch["state_value"]
        if self.value_norm is not None and self.value_norm.debiasing_term > 0:  # before the first update it knows none
            value, next_value = self.value_norm.denormalize(value), self.value_norm.denormalize(next_value)

        def by_time(x: torch.Tensor) -> torch.Tensor:  # [T, E, A, 1] -> [E * A, T, 1]
            return x.flatten(1, 2).transpose(0, 1).contiguous()

        advantage, target = generalized_advantage_estimate(
            config.gamma, config.gae_lambda, by_time(value), by_time(next_value),
            by_time(batch["reward"]), by_time(batch["done"]), by_time(batch["terminated"]),
        )  # fmt: skip
        back = lambda x: x.transpose(0, 1).unflatten(1, batch.shape[1:]).contiguous()  # noqa: E731
        batch["advantage"], target = back(advantage), back(target)
        if self.value_norm is not None:
            self.value_norm.update(target)
            target = self.value_norm.normalize(target)
        batch["value_target"] = target
        rows = batch.reshape(-1)
        for settings in self.optimizer.param_groups:
            settings["lr"] = value_at(config.lr, env_steps)
        for _ in range(config.num_epochs):
            for index in torch.randperm(len(rows), device=rows.device).chunk(config.num_minibatches):
                losses = self.loss(rows[index])
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                self.optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), config.max_grad_norm)
                self.optimizer.step()


class Play:
    """Our envs, seen by group."""

    def __init__(self, env, num_envs: int, seed: int, backend) -> None:
        self.env = EnvWrapper(env, num_envs, seed=seed, backend=backend)

    def of_groups(self, observation, groups: dict[str, Group]) -> dict[str, torch.Tensor]:
        """[E, A, F] by group."""
        if isinstance(observation, dict):
            return {name: observation[name] for name in groups}
        return {name: observation[:, group.agents.start : group.agents.stop] for name, group in groups.items()}

    def step(self, actions: dict[str, torch.Tensor]):
        action = torch.cat([actions[name] for name in actions], dim=1).to(torch.int32)
        return self.env.step(action)


def evaluate(env, groups: dict[str, Group], settings, backend) -> dict[str, float]:
    """Mean return of greedy episodes; every episode has the same length."""
    play = Play(env, settings.num_episodes, settings.seed, backend)
    observation, _ = play.env.reset(settings.seed)
    returns = torch.zeros(settings.num_episodes, env.num_agents, device=backend.device)
    for _ in range(env.episode_length):
        seen = play.of_groups(observation, groups)
        observation, reward, *_ = play.step(
            {name: group.act(seen[name], greedy=True) for name, group in groups.items()}
        )
        returns += reward
    return {name: returns[:, group.agents.start : group.agents.stop].mean().item() for name, group in groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, nargs="+", help="files, or some of examples/")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, help="instead: so many seeds, from 1 on, of every config")
    parser.add_argument("--jobs", type=int, default=1, help="with --seeds: runs at once")
    parser.add_argument("--out", type=Path, help="with --seeds: folder of the JSON")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--reward-scale", type=float, help="instead of normalised returns")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    if arguments.seeds is not None:
        run_seeds(arguments)
    else:
        for name in arguments.config:
            train(Path(name), arguments)


def run_seeds(arguments: argparse.Namespace) -> None:
    """Every config with every seed, in processes of their own; writes peers_torchrl.json."""
    import tensordict
    import torchrl

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from report import write_report

    def run(config: str, seed: int) -> dict:
        words = ["--config", config, "--seed", str(seed), "--device", arguments.device, *arguments.overrides]
        if arguments.reward_scale is not None:
            words += ["--reward-scale", str(arguments.reward_scale)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WARPDRIVE_NUM_THREADS": "1"}
        command = [sys.executable, __file__, *words]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(arguments.jobs) as pool:
        todo = [pool.submit(run, config, seed) for config in arguments.config for seed in range(1, arguments.seeds + 1)]
    versions = {"torchrl": torchrl.__version__, "tensordict": tensordict.__version__}
    results = {"versions": versions, "runs": [one.result() for one in todo]}
    write_report("peers_torchrl", choose_backend(device=arguments.device), results, arguments.out)


def train(path: Path, arguments: argparse.Namespace) -> None:
    config = read_config(
        path if path.exists() else EXAMPLES / path, [tuple(o.split("=", 1)) for o in arguments.overrides]
    )
    settings, backend = config.trainer, choose_backend(device=arguments.device)
    torch.manual_seed(arguments.seed)
    env = load_env(config.name, config.env)
    groups, scale = {}, 1.0 if arguments.reward_scale is None else arguments.reward_scale
    for name, group in env.groups.items():
        policy = config.policy.get(name) or config.policy[SHARED]
        sizes = group.observation_space.shape[0], int(group.action_space.n)
        normalises = policy.normalize_return and arguments.reward_scale is None
        groups[name] = Group(group.agents, *sizes, policy, backend.device, normalises)
    play = Play(env, settings.num_envs, arguments.seed, backend)
    observation, _ = play.env.reset()
    start, env_steps, recent = time.perf_counter(), 0, []
    while env_steps < settings.total_timesteps:
        following: dict[str, list[torch.Tensor]] = {name: [] for name in groups}
        rewards = []
        for _ in range(settings.num_steps):
            seen = play.of_groups(observation, groups)
            observation, reward, terminated, truncated, info = play.step({n: g.act(seen[n]) for n, g in groups.items()})
            ended = (terminated | truncated).view(-1, 1, 1)
            final, after = play.of_groups(info["final_observation"], groups), play.of_groups(observation, groups)
            rewards.append(reward.clone())
            for name, group in groups.items():
                following[name].append(torch.where(ended, final[name], after[name]))
                shape = (settings.num_envs, len(group.agents), 1)
                step = group.steps[-1]
                step["reward"] = reward[:, group.agents.start : group.agents.stop].unsqueeze(-1) * scale
                step["terminated"] = terminated.view(-1, 1, 1).expand(shape).clone()
                step["done"] = ended.expand(shape).clone()
        for name, group in groups.items():
            group.learn(torch.stack(following[name]), env_steps)
        env_steps += settings.train_batch_size
        recent = torch.stack(rewards).sum(0).mean(0)
    scores = evaluate(env, groups, config.evaluation, backend)
    trained_on = {n: recent[g.agents.start : g.agents.stop].mean().item() for n, g in groups.items()}
    result = {
        "config": path.name,
        "seed": arguments.seed,
        "reward_scale": arguments.reward_scale,
        "normalize_return": any(group.value_norm is not None for group in groups.values()),
        "env_steps": env_steps,
        "greedy": scores,
    }
    result |= {"last_rollout": trained_on, "seconds": round(time.perf_counter() - start, 1)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
