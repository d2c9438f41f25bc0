"""How a policy of Box actions and its critics fit the fused kernels that learn them, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainers.fused.limits import Limits
from trainers.fused.of_replay import why_no_kernel, why_not_plain
from trainers.fused.shape import to_tiles
from trainers.networks.policy import inputs_of
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.algorithms.actor_critic import ActorAndCriticsConfig
    from trainers.experience.spec import GroupSpec

PADDING = 8
"""Elements that a row in shared memory is longer than whole tiles."""
THREADS, STEP_THREADS = 512, 256
"""Of a block of ac_learn.cu; of ac_step.cu and of who makes gradients."""
SIDE = 64
"""Parameters of a tile of a gradient, both ways; by warpgroups, twice as many outputs."""
STAGE = 64
"""Rows that a block of `ac_gradient` brings to shared memory at once; for warpgroups they lie together in memory."""
STAGES = 4
"""That a block has room for by warpgroups."""
ROWS_OF_PART = 256
"""Of a batch, for which a block adds up a tile of a gradient, at least."""
MOST_PARTS = 32
"""Of the rows, by single warps: the last block that is done with a tile adds them up."""
MOST_ROWS = 64
"""Of a batch, which a block has."""
FEWEST_ROWS_BY_GROUPS = 512
"""Of a batch, whose gradient is worth warpgroups."""
CLUSTER = 8
"""Blocks that may be one."""


@dataclass(frozen=True)
class ACShape:
    """A policy of Box actions and its critics, each of one or two hidden layers, and how a batch is shared out."""

    num_features: int
    num_numbers: int
    """Of an action."""
    actor_widths: tuple[int, ...]
    """Of hidden layers."""
    critic_widths: tuple[int, ...]
    num_critics: int
    batch: int
    rows: int
    """Of a block."""
    parts: int
    """Of the rows, each of them a block's for every tile of a gradient."""
    element_bytes: int
    is_plain: bool = True
    """Whether what was drawn is read where it lies; see Drawn."""
    samples: bool = True
    """Whether actions are drawn, as SAC does; else, as in TD3, the policy says them, and has a target copy."""
    threads: int = THREADS
    step_threads: int = STEP_THREADS
    split: int = 1
    """Blocks of a cluster, which have the same rows and share the critics."""
    by_groups: bool = False
    """Whether warpgroups make gradients (ac_gradient_by_groups.cu), of rows that are kept as they multiply them."""

    @property
    def num_blocks(self) -> int:
        """That go by rows, or clusters of them."""
        return -(-self.batch // self.rows)

    @property
    def num_rows(self) -> int:
        """Of arrays of elements: those of all blocks."""
        rows = self.num_blocks * self.rows
        return -(-rows // STAGE) * STAGE if self.by_groups else rows

    @property
    def num_outputs(self) -> int:
        """Of the policy."""
        return (2 if self.samples else 1) * self.num_numbers

    @property
    def actor(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each layer."""
        widths = (self.num_features, *self.actor_widths, self.num_outputs)
        return list(zip(widths[1:], widths[:-1], strict=True))

    @property
    def critic(self) -> list[tuple[int, int]]:
        widths = (self.num_features + self.num_numbers, *self.critic_widths, 1)
        return list(zip(widths[1:], widths[:-1], strict=True))

    @property
    def num_elements(self) -> int:
        """Of all networks' weights: twice of those that are learned."""
        nets = self.actor, self.critic
        actor, critic = (sum(to_tiles(out) * to_tiles(given) for out, given in net) for net in nets)
        return (2 if self.samples else 3) * actor + 3 * self.num_critics * critic

    @property
    def num_biases(self) -> int:
        actor, critic = (sum(to_tiles(out) for out, _ in net) for net in (self.actor, self.critic))
        return (1 if self.samples else 2) * actor + 2 * self.num_critics * critic

    @property
    def shared_bytes(self) -> int:
        """Of a block of ac_learn.cu: at least what it asks for."""
        rows, widest = self.rows, zip(two(self.actor_widths), two(self.critic_widths), strict=True)
        hidden = sum(to_tiles(max(both)) + PADDING for both in widest)
        of_actor = sum(to_tiles(width) + PADDING for width in two(self.actor_widths))
        seen, out, value = (
            to_tiles(width) + PADDING for width in (self.num_features + self.num_numbers, self.num_outputs, 1)
        )
        own = self.num_critics // self.split
        judges, own_judges = (self.num_critics, own) if self.samples else (1, 1)
        judge = 2 * seen + max(2, own) * hidden + own * value
        improve = seen + own_judges * (hidden + value) + of_actor + out
        floats = self.num_numbers + max(
            2 * self.num_outputs + 2 * self.num_critics + 1,
            judges * (1 + self.num_numbers) + self.num_outputs + 2,
        )
        return rows * (self.element_bytes * max(judge, improve) + 4 * floats) + 12 * (self.threads // 32) + 128

    @property
    def act_shared_bytes(self) -> int:
        """Of a block of ac_act.cu."""
        seen = sum(to_tiles(width) + PADDING for width in (self.num_features, *two(self.actor_widths)))
        return self.rows * (self.element_bytes * seen + 4 * self.num_outputs) + 64

    @property
    def num_actor_elements(self) -> int:
        """Of the policy's weights, as a forward pass reads them."""
        return sum(to_tiles(out) * to_tiles(given) for out, given in self.actor)

    @property
    def num_actor_biases(self) -> int:
        return sum(to_tiles(out) for out, _ in self.actor)

    @property
    def tile(self) -> tuple[int, int]:
        """Outputs and inputs of a tile of a gradient."""
        return (2 if self.by_groups else 1) * SIDE, SIDE

    @property
    def step_shared_bytes(self) -> int:
        """Of who makes gradients."""
        if self.by_groups:
            return STAGES * STAGE * sum(self.tile) * self.element_bytes + 1024
        return 4 * STAGE * (SIDE + PADDING) * self.element_bytes + 4 * (self.step_threads // 32) + 64

    @property
    def num_tiles(self) -> tuple[int, int]:
        """Of the gradients of the policy and of all critics."""
        outs, ins = self.tile
        of_net = [sum(-(-out // outs) * -(-given // ins) for out, given in net) for net in (self.actor, self.critic)]
        return of_net[0], self.num_critics * of_net[1]

    @property
    def num_bytes(self) -> int:
        """Of the device's memory that a learner takes besides what is the algorithm's."""
        elements = self.num_elements
        for net, number in ((self.actor, 1), (self.critic, self.num_critics)):
            elements += self.num_rows * number * sum(2 * to_tiles(out) for out, _ in net[:-1])
            elements += self.num_rows * number * sum(to_tiles(out) for out, _ in net[-1:])
        elements += self.num_rows * to_tiles(self.critic[0][1])
        gradients = [sum(out * (given + 1) for out, given in net) for net in (self.actor, self.critic)]
        floats = self.num_biases + gradients[0] + self.num_critics * gradients[1]
        floats += self.batch * (self.num_outputs + 1)
        floats += 0 if self.is_plain else self.batch * (4 * self.num_features + 1)  # and while they are made
        tiles = sum(self.num_tiles)
        floats += tiles * (2 + 22)
        if self.by_groups:
            floats += tiles * self.parts
        elif self.parts > 1:
            floats += tiles * self.parts * self.sums_of_block
        return self.element_bytes * elements + 4 * floats

    @property
    def sums_of_block(self) -> int:
        """Numbers that a block of ac_gradient holds."""
        return SIDE * SIDE + 4 * self.step_threads

    def constants(self) -> dict[str, Constant]:
        (actor1, actor2), (critic1, critic2) = two(self.actor_widths), two(self.critic_widths)
        return {
            "NUM_FEATURES": self.num_features, "NUM_NUMBERS": self.num_numbers, "ACTOR_WIDTH1": actor1,
            "ACTOR_WIDTH2": actor2, "CRITIC_WIDTH1": critic1, "CRITIC_WIDTH2": critic2,
            "NUM_CRITICS": self.num_critics, "CRITIC_OUTPUTS": 1, "HAS_POLICY": True, "SAMPLES": self.samples,
            "FULL_PRECISION": self.element_bytes == 4,
        }  # fmt: skip


def two(widths: Sequence[int]) -> tuple[int, int]:
    """0 where there is none."""
    first, second, *_ = (*widths, 0, 0)
    return first, second


def plan_ac(
    config: ActorAndCriticsConfig, spec: GroupSpec, limits: Limits, precision: str, num_ranks: int = 1
) -> ACShape | str:
    """How the kernels make a learner's updates; or in words why they cannot."""
    found = shape_of(config, spec, limits, precision, config.batch_size, 16)
    if isinstance(found, str):
        return found
    found = replace(found, is_plain=why_not_plain(config, spec, config.algorithm) is None)
    if num_ranks > 1:
        return f"the kernel of {config.algorithm} is of one GPU"
    clusters = replace(found, split=found.num_critics)
    has_clusters = limits.capability is not None and limits.capability >= (9, 0) and clusters.split <= CLUSTER
    if has_clusters and clusters.num_blocks * clusters.split <= limits.num_multiprocessors:  # which would be idle
        found = clusters
    if max(found.shared_bytes, found.step_shared_bytes) > limits.shared_bytes:
        return "the networks' layers do not fit the shared memory of a block"
    return shared_out(found, limits)


def shape_of(
    config: ActorAndCriticsConfig, spec: GroupSpec, limits: Limits, precision: str, batch: int, rows: int
) -> ACShape | str:
    """The networks, of blocks of so many rows; or in words why no kernel knows them."""
    unknown = {"distributional": getattr(config, "distributional", False)}
    if why := why_no_kernel(config, spec, limits, precision, config.algorithm, unknown):
        return why
    if hasattr(spec.action_space, "n"):
        return f"the kernel of {config.algorithm} acts in a Box"
    model, num_features = config.model, inputs_of(spec, config).num_features
    widths = tuple(model.fc_dims), tuple(model.critic_fc_dims or model.fc_dims)
    sizes = config.num_critics, batch, rows, 1, 2 if precision == "bf16" else 4
    return ACShape(num_features, spec.action_space.shape[0], *widths, *sizes, samples=config.DRAWS_ACTIONS)


def shared_out(shape: ACShape, limits: Limits) -> ACShape:
    """With as many rows a block as let all blocks run at once; gradients by enough blocks, in few enough parts, and by
    warpgroups where they are worth it."""
    while shape.num_blocks > limits.num_multiprocessors and shape.rows < MOST_ROWS:
        larger = replace(shape, rows=2 * shape.rows)
        if larger.shared_bytes > limits.shared_bytes:
            break
        shape = larger
    by_groups = replace(shape, by_groups=True)
    keeps_busy = max(by_groups.num_tiles) * CLUSTER >= limits.num_multiprocessors
    if limits.has_warpgroups and shape.element_bytes == 2 and shape.batch >= FEWEST_ROWS_BY_GROUPS and keeps_busy:
        parts, most = 1, 2 * limits.num_multiprocessors // max(by_groups.num_tiles)
        while 2 * parts <= min(most, CLUSTER):
            parts *= 2
        return replace(by_groups, parts=parts)
    most = min(MOST_PARTS, -(-shape.num_rows // ROWS_OF_PART))
    wanted = round(2 * limits.num_multiprocessors / max(shape.num_tiles))
    return replace(shape, parts=max(1, min(most, wanted)))
