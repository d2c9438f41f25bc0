"""What a run is made of: dataclasses whose fields are the keys of the YAML file.

Imports no torch: a mistake in a config is told before anything heavy is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from warpdrive.config import Between, Count, Fraction, Hints, Matching, Meant, Number, Positive, Size, shown
from warpdrive.errors import ConfigError

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec
    from warpdrive.env import Env

Name = Annotated[
    str,
    Matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "a name of at most 100 letters, digits, '_', '-' and '.'"),
]
"""Part of a path: it must not lead out of its folder."""
PathName = Annotated[
    str,
    Matching(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+", "a path without control characters"),
    Meant(os.path.expanduser),  # no shell reads a config's `~`, nor that of key=~/folder
]


def check_run_name(name: str | None) -> None:
    """Raises ConfigError if a run folder cannot have this name; None is no name."""
    pattern, means = (getattr(Name.__metadata__[0], word) for word in ("pattern", "means"))
    if name is not None and not re.fullmatch(pattern, name):
        raise ConfigError(f"--run-name: expected {means}, got {shown(name)}")


MAX_SEED = 2**63 - 1


class Whole(Between):
    """Bounds that are said in full, however large."""

    def __str__(self) -> str:
        return f" from {self.low} to {self.high}"


@dataclass(frozen=True)
class TrainerConfig:
    """`trainer:` how much is done, and where."""

    num_envs: Count = 100
    """Copies of the env that are stepped at once."""
    train_batch_size: Count | None = None
    """Env steps of one iteration, over all envs: each env makes train_batch_size / num_envs. If not given, as many as
    the algorithms like: 2,000, and 20 of each env at least (A2C: 5); DQN's 256; and as many more as make it the same
    of each env."""
    num_episodes: Count | None = None
    """Length of the run in whole episodes, over all envs. Give this or total_timesteps."""
    total_timesteps: Count | None = None
    """Length of the run in env steps, over all envs; rounded up to whole iterations."""
    env_backend: Literal["auto", "cuda", "cpu", "pycuda", "bindings"] = "auto"
    """Who runs the kernels. auto: a GPU when there is one; pycuda, bindings: a GPU, through this driver."""
    device: Annotated[str, Matching(r"auto|cpu|cuda(:[0-9]+)?", "auto, cpu, cuda or cuda:N")] = "auto"
    """Where arrays and networks live."""
    seed: Annotated[int, Whole(0, MAX_SEED)] = 1
    """Same seed, same machine, same config: the same run, bit for bit."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Of matrix products. auto: fp32 on a CPU; on a GPU bf16, and tf32 where TD3 or DDPG learns, which bf16 harms. bf16
    rounds their inputs to 7 bits; then fused kernels play and learn where they can, which is fastest by far, and torch
    where they cannot, in tf32, which rounds to 10 bits. fp32 rounds nothing but sums, and its figures are the same on
    every device to the last few bits."""
    cuda_graphs: bool = True
    """Whether a GPU replays rollouts and updates as CUDA graphs; the figures are the same, bit for bit."""
    compile: Literal["auto", True, False] = "auto"
    """Whether torch.compile makes kernels of what torch computes where fused kernels do not. It takes some 20 seconds
    of a run's start, 7 where it did so before. auto: on a GPU, of networks that gain most, as cnn; true: of all but
    those that remember; false: of none."""
    deterministic: bool = False
    """Whether torch may only use algorithms that promise the same bits every time, and raises an error where it has
    none. Off, runs here were the same bits too, on one machine."""
    num_gpus: Count = 1
    """GPUs to train on, one process each; with device: cpu, processes. num_envs and train_batch_size are of all of
    them. Under torchrun, the ranks that it started, on all machines."""
    multiprocessors: Count | None = None
    """Of a GPU, for how many of its multiprocessors kernels are planned; all of them if not given. Runs of a large
    population do more together where each has few: 32 of them, with 4 each, fill a GPU of 132."""
    rank_timeout: Annotated[float, Between(1)] = 60.0
    """Seconds within which a rank that hangs while the others wait for it is found, and the run ended. A rank that
    lives has ten times as long for its first iteration, which compiles, and the first rank for what it does alone:
    evaluations, checkpoints."""

    @property
    def num_steps(self) -> int:
        """Steps that each env makes in one iteration."""
        return self.train_batch_size // self.num_envs  # read_config fills in what was not given

    def precision_on(self, device: str, policies: Iterable[PolicyConfig] = ()) -> str:
        """fp32, tf32 or bf16: what `precision` means on "cpu" or "cuda" where these policies play and learn."""
        if self.precision != "auto":
            return self.precision
        if device == "cpu":
            return "fp32"
        return "tf32" if any(one.needs_tf32 and one.to_train for one in policies) else "bf16"

    def compiles_on(self, device: str) -> bool:
        """Whether anything that torch computes on "cpu" or "cuda" is compiled."""
        return device == "cuda" if self.compile == "auto" else self.compile


@dataclass(frozen=True)
class ModelConfig:
    """`policy.<name>.model:` the network."""

    type: str = "mlp"
    """A file of trainers/networks, or "my_package.nets:Net" (own_network.md)."""
    fc_dims: tuple[Count, ...] = (64, 64)
    """Width of each hidden layer, of mlp, gru and lstm."""
    shared_trunk: bool = False
    """Whether action and value come from the same hidden layers."""
    critic_fc_dims: tuple[Count, ...] | None = None
    """Width of each hidden layer of a critic that has its own; as fc_dims if not given."""
    activation: Literal["relu", "tanh"] | None = None
    """What follows each hidden layer; if not given tanh, and relu in a cnn."""
    layer_norm: Literal[False, True, "hidden", "all"] = False
    """What a LayerNorm normalises over its numbers: true is the input; hidden is each hidden layer, before its
    activation; all is both. A cnn has hidden alone, a convolution's over the channels of each place."""
    conv: Literal["minatar", "nature"] = "minatar"
    """Convolutions of a cnn: one of 16 3x3 and a layer of 128, as for MinAtar; or those of DQN's paper in Nature, 32
    8x8, 64 4x4, 64 3x3 and a layer of 512."""
    dense_dim: Count | None = None
    """Width of the layer behind a cnn's convolutions, if it is another."""
    memory_size: Count = 64
    """Units of a GRU or LSTM: a GRU remembers a number for each, an LSTM two."""
    sequence_length: Count | None = None
    """Steps through which their gradient runs, a divisor of the steps of an iteration; all of them if not given."""
    log_std_init: Annotated[float, Between(-20, 5)] = 0.0
    """Logarithm of the standard deviation of Box actions at the start, in half widths of the Box: 0 is as wide."""
    squash_actions: bool = False
    """Whether the hyperbolic tangent brings Box actions into their bounds, where they are else clipped."""
    model_ckpt_filepath: PathName | None = None
    """A policy.<name>.safetensors to start from."""

    @property
    def remembers(self) -> bool:
        """Whether it is one of this project's recurrent networks."""
        return self.type in ("gru", "lstm")

    @property
    def activates(self) -> Literal["relu", "tanh"]:
        """What follows each hidden layer."""
        return self.activation or ("relu" if self.type == "cnn" else "tanh")

    @property
    def norms_input(self) -> bool:
        """Whether a LayerNorm stands before the first layer."""
        return self.layer_norm in (True, "all")

    @property
    def norms_hidden(self) -> bool:
        """Whether one stands before each activation."""
        return self.layer_norm in ("hidden", "all")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys that are given and that this type does not read, each with what to say of it."""
        for one in fields(self):
            if one.name in NOT_READ_BY.get(self.type, ()) and getattr(self, one.name) != one.default:
                yield one.name, f"type: {self.type} does not read it. Leave it out, or take another type."
        if self.type == "cnn" and self.norms_input:
            yield "layer_norm", "an image is not normalised. Take hidden, or leave it out."


NOT_READ_BY = {
    "mlp": ("conv", "dense_dim", "memory_size", "sequence_length"),
    "gru": ("conv", "dense_dim"),
    "lstm": ("conv", "dense_dim"),
    "cnn": ("fc_dims", "critic_fc_dims", "memory_size", "sequence_length"),
}
"""By type of network: the keys of ModelConfig that are for others."""


@dataclass(frozen=True)
class PolicyConfig:
    """`policy.<name>:` what every algorithm's config begins with."""

    algorithm: str = "A2C"
    """A file of trainers/algorithms, or "my_package.reinforce:Reinforce" (own_algorithm.md)."""
    to_train: bool = True
    """false: the policy acts and stays as it is."""
    gamma: Fraction = 0.99
    """Discount of one step."""
    lr: Annotated[Number, Between(0)] = 1e-3
    """Adam's step size. A schedule counts env steps."""
    clip_grad_norm: bool = True
    """Whether to shorten gradients that are too long."""
    max_grad_norm: Positive = 0.5
    """How long the gradient of all the policy's parameters together may be."""
    normalize_observation: bool = False
    """Whether features are brought to mean 0 and standard deviation 1, by what was seen in the iterations before, and
    clipped to +-10. In the first iteration they are only clipped."""
    agent_id: bool = False
    """Whether each agent also sees which one of the policy's agents it is."""
    model: ModelConfig = field(default_factory=ModelConfig)

    MIN_STEPS: ClassVar[int] = 1
    MIN_BATCH: ClassVar[int] = 256
    """Steps of an iteration that its algorithm likes, of each env and over all of them, where none are given."""

    # What only some algorithms have, and all are asked for.
    critic_lr: ClassVar[Any] = None
    tiers: ClassVar[Any] = None
    normalize_reward: ClassVar[bool] = False
    normalize_return: ClassVar[bool] = False
    min_advantage_std: ClassVar[float] = 0.0
    central_critic: ClassVar[bool] = False
    reads_state: ClassVar[bool] = False
    needs_tf32: ClassVar[bool] = False
    """Whether it learns worse where products' inputs are rounded to bf16: precision auto is then tf32 on a GPU."""
    credit_after_leaving: ClassVar[Any] = False

    def of_rank(self, num_ranks: int) -> PolicyConfig:
        """What each of so many ranks takes of it, as if it were alone: its part of what is counted over all."""
        return self

    def played(self) -> PolicyConfig:
        """The same of a policy that only plays: without files that it would learn from."""
        return self

    def problems_with(self, spec: GroupSpec, num_steps: int, num_envs: int) -> Iterator[tuple[str, str]]:
        """Keys that do not fit who plays, as `problems` tells them.

        Args:
            num_steps: of an iteration.
            num_envs: of all GPUs.
        """
        for key in ("squash_actions", "log_std_init"):
            if getattr(self.model, key) and not hasattr(spec.action_space, "low"):
                kind = type(spec.action_space).__name__
                yield f"model.{key}", f"is of Box actions, and these agents act in a {kind}. Leave it out."

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys that do not fit the others, as "model.conv", each with what is wrong; what one alone must be its type
        says."""
        if self.model.shared_trunk and not self.central_critic:
            shares = "the critic shares its hidden layers with the actor. Set model.shared_trunk: false, or leave this "
            for key, given in (("critic_lr", self.critic_lr), ("model.critic_fc_dims", self.model.critic_fc_dims)):
                if given is not None:
                    yield key, f"{shares}out."
        for key, message in self.model.problems():
            yield f"model.{key}", message


@dataclass(frozen=True)
class ActorCriticConfig(PolicyConfig):
    """What A2C's, PPO's and MAPPO's configs have beyond it."""

    MIN_STEPS: ClassVar[int] = 20
    MIN_BATCH: ClassVar[int] = 2_000
    MINIBATCH: ClassVar[int] = 512
    MAX_MINIBATCHES: ClassVar[int] = 32
    """Where num_minibatches is not given: samples of one, and how many there are at most."""

    # What only PPO and MAPPO have, and A2C is asked for, too.
    num_epochs: ClassVar[int] = 1
    target_kl: ClassVar[Any] = None

    FALLS: ClassVar[tuple[float, float]] = (2e-3, 1e-4)
    """`lr` at the start and at the end of a run, where it is not given."""

    gamma: Fraction = 0.985
    """Discount of one step: 67 steps ahead it is 1 / e. Take more where what an agent does pays off later than that."""
    lr: Annotated[Number, Between(0)] | None = None
    """Adam's step size. A schedule counts env steps. If not given, it falls from 2e-3 to 1e-4 in a straight line over
    the run."""
    num_minibatches: Count | None = None
    """Steps of the optimiser a pass over the rollout: every sample is in one of them. If not given, as many as make
    minibatches of 512 samples, 32 at most (A2C: 64 samples, 128 at most)."""
    gae_lambda: Fraction = 0.95
    """Weight of longer sums in the advantage: 0 trusts the critic, 1 the rewards."""
    critic_lr: Annotated[Number, Between(0)] | None = None
    """Adam's step size for a critic that has its own hidden layers; as lr if not given."""
    entropy_coeff: Annotated[Number, Between(0)] = 0.01
    """Weight of the entropy: how much trying things out is worth. A schedule counts env steps."""
    normalize_reward: bool = False
    """Whether rewards are divided by the standard deviation of the discounted return so far, and clipped to
    +-reward_clip."""
    reward_clip: Positive = 10.0
    """Bound of rewards after they are scaled by normalize_reward."""
    min_advantage_std: Annotated[float, Between(0, 100)] = 0.0
    """The part of the returns' standard deviation that normalised advantages are divided by at least, where
    normalize_return keeps it: where little that an agent does matters its advantages are noise, which would else be
    made as large as a signal. 0: by their own, however small. A2C's is 0.5."""
    normalize_return: bool = True
    """Whether the critic learns returns of mean 0 and standard deviation 1, by what was seen so far; its last layer
    moves with them (PopArt). With normalize_advantage rewards of a thousandth, of one and of thousands then make the
    same run."""
    central_critic: bool = False
    """Whether the critic sees the whole env: its global_state, or else all observations; and which agent it judges."""
    credit_after_leaving: Literal[False, "team"] = False
    """What an agent that left the game still earns until its episode ends. false: nothing, and its last step in the
    game has no future. team: in each step the mean of what the policy's agents in the game earn. This takes a
    central_critic, which then also learns what is to come for those who left."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.min_advantage_std != type(self).min_advantage_std and not self.normalize_return:
            yield "min_advantage_std", "is a part of the deviation that normalize_return keeps. Leave one of them out."


@dataclass(frozen=True)
class SavingConfig:
    """`saving:` what is written, and how often."""

    metrics_log_freq: Count = 10
    """Iterations from one report to the next."""
    model_params_save_freq: Size = 0
    """Iterations from one checkpoint to the next; 0: one at the end. There is always one at the end, and one whenever
    an evaluation is the best so far by best_metric."""
    minutes: Annotated[float, Between(0)] | None = 10.0
    """Minutes from one checkpoint to the next, at most, whatever the iterations: written while training goes on. 0 or
    null: none by the clock."""
    grace_seconds: Annotated[float, Between(0)] = 30.0
    """After a SIGTERM or SIGHUP, seconds in which another one is not heeded, so that the run is saved. A second Ctrl-C
    ends it at any time."""
    num_checkpoints: Count = 3
    """How many of the newest checkpoints are kept; the best is kept besides."""
    replay: bool = True
    """Whether checkpoints hold what algorithms keep of earlier rollouts, as DQN does. false: a run that is resumed
    begins with an empty store, and is then another than if it had never stopped."""
    best_metric: str | None = None
    """The metric whose highest value tells the best checkpoint. If not given, eval/mean_reward where there are
    evaluations, else rollout/ep_rew_mean; and none where the env has several groups of agents, as what one wins another
    may lose, and a mean over all of them is refused: give one group's, eval/<group>/mean_reward or
    rollout/<group>/ep_rew_mean (`warpdrive list metrics`). Or one that a callback reports."""
    basedir: PathName = "runs"
    """Folder of the run folders."""
    name: Name | None = None
    """First word of the run folder's name; the env's name if not given."""
    tag: Name | None = None
    """A word of your own in the run folder's name."""
    tensorboard: bool = False
    """Whether metrics are also written for TensorBoard, into the run folder's tb/."""


@dataclass(frozen=True)
class EvaluationConfig:
    """`evaluation:` whole episodes in envs of their own, besides those that are learned from."""

    eval_freq: Size = 0
    """Iterations from one evaluation to the next, rounded up to a report; 0: none."""
    num_episodes: Count = 100
    """Episodes of an evaluation, one in each of as many envs."""
    greedy: bool = True
    """Whether policies take their likeliest action instead of drawing one."""
    seed: Annotated[int, Whole(0, MAX_SEED)] = 1_000_003
    """Of the episodes: the same in every evaluation of every run, so that scores compare."""


@dataclass(frozen=True)
class PopulationConfig:
    """The keys of `population`."""

    size: Annotated[int, Whole(1, 10_000)] = 1
    """Runs of this config side by side on one device, each with a seed of its own: trainer.seed, and so many after it;
    see [runs.md](runs.md)."""


@dataclass(frozen=True)
class Config:
    """A whole run, checked: every part fits the others."""

    name: str
    """The env: a folder of cuda_envs, or "my_package.soccer:Soccer"."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """The env's own config, as given."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    policy: Mapping[str, PolicyConfig] = field(default_factory=dict)
    """By name: `shared` for all agents, or one per group of the env."""
    saving: SavingConfig = field(default_factory=SavingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    callbacks: tuple[str | Mapping[str, Mapping[str, Any]], ...] = ()
    """What else is called between iterations: "my_package.curriculum:Harder", or {that: its arguments}."""


def total_env_steps(config: Config, env: Env) -> int:
    """Length of a run in env steps, over all envs."""
    settings = config.trainer
    if settings.total_timesteps is not None:
        return settings.total_timesteps
    return settings.num_episodes * env.episode_length


def whole_env_steps(config: Config, env: Env) -> int:
    """The same, rounded up to whole iterations: what is trained."""
    size = config.trainer.train_batch_size
    return -(-total_env_steps(config, env) // size) * size


SHARED = "shared"
"""The policy of all agents."""

SYNONYMS = {
    "learning_rate": "lr",
    "n_envs": "num_envs",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_loss_coeff",
    "clip_range": "clip_param",
    "clip_coef": "clip_param",
    "clip_epsilon": "clip_param",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "ppo_epoch": "num_epochs",
    "hidden_sizes": "fc_dims",
    "save_freq": "model_params_save_freq",
    "discount": "gamma",
}
"""Other libraries' names -> ours."""

_NUM_STEPS = "unknown key. The steps of an iteration are trainer.train_batch_size / trainer.num_envs: give those."
SENTENCES = {
    "n_steps": _NUM_STEPS,
    "num_steps": _NUM_STEPS,
    "batch_size": "unknown key: it means the minibatch in one library and the whole batch in another. "
    "Did you mean 'trainer.train_batch_size' (env steps of an iteration, over all envs)?",
}
"""Other libraries' names that need a sentence."""


def hints_for(section: str, known: Mapping[str, list[str]], sentences: Mapping[str, str] | None = None) -> Hints:
    """Hints for a section's unknown keys; `known` gives the keys of every section, `sentences` more SENTENCES."""
    elsewhere = {key: other for other, keys in known.items() if other != section for key in keys}
    return Hints(SYNONYMS, {**(sentences or {}), **SENTENCES}, elsewhere)
