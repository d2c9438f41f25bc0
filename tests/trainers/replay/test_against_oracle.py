"""The store against tests/oracles/replay.py over random play: what items hold, who is drawn, what they weigh."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from oracles.replay import Limiter, Priorities, Step, Steps, Uses, sequence, strata, transition

from trainers.experience.field import Field
from trainers.replay.limits import Counter, MinSize, Queue, RateLimiter, SampleToInsertRatio
from trainers.replay.selectors import Oldest, Prioritized, Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions

GAMMA, SEEN, ACTIONS = 0.9, 3, 4
ENDS, LEAVES = 0.12, 0.08


@dataclass
class World:
    """Envs of random play. Every number that is seen is another one, so that none can be taken for another."""

    num_envs: int
    num_agents: int
    num_steps: int
    every: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        self.active = np.ones((self.num_envs, self.num_agents), bool)
        self.since = np.full(self.num_envs, 2)
        self.head, self.count = 0, 0
        self.now = [self.sight(env) for env in range(self.num_envs)]

    def unlike(self, *shape: int) -> np.ndarray:
        self.count += math.prod(shape)
        return np.arange(self.count - math.prod(shape), self.count, dtype=np.float32).reshape(shape)

    def sight(self, env: int) -> dict[str, np.ndarray]:
        tag = np.array([(self.head, env, agent) for agent in range(self.num_agents)], np.int32)
        mask = self.random.random((self.num_agents, ACTIONS)) < 0.6
        seen = self.unlike(self.num_agents, SEEN)
        return {"observation": seen, "mask": mask, "tag": tag, "remembered": self.unlike(self.num_agents, 2)}

    def window(self) -> list[list[Step]]:
        """The next steps of each env."""
        found: list[list[Step]] = [[] for _ in range(self.num_envs)]
        for _ in range(self.num_steps):
            self.head += 1
            for env, steps in enumerate(found):
                kind, active = self.random.random(), self.active[env].copy()
                # a truncation comes two steps after another, at least: the store is told so
                is_truncated = kind < ENDS / 2 and self.since[env] > 1
                is_terminated = ENDS / 2 < kind < ENDS
                survived = active & (self.random.random(self.num_agents) > LEAVES)
                action = self.random.integers(0, ACTIONS, self.num_agents).astype(np.int32)
                reward = self.random.normal(size=self.num_agents).astype(np.float32)
                last = self.unlike(self.num_agents, SEEN) if is_truncated else None
                step = Step(self.now[env], action, reward, is_terminated, is_truncated, active, survived, last)
                steps.append(step)
                self.since[env] = 1 if is_truncated else self.since[env] + 1
                self.active[env] = True if step.ended else survived
                self.now[env] = self.sight(env)
        return found

    def fields(self) -> list[Field]:
        return [
            Field("observation", (SEEN,), extra=1),
            Field("mask", (ACTIONS,), torch.bool, extra=1),
            Field("action", dtype=torch.int32),
            Field("reward"),
            Field("active", dtype=torch.bool),
            Field("survived", dtype=torch.bool),
            Field("tag", (3,), torch.int32),
            *([Field("remembered", (2,), every=self.every)] if self.every else []),
        ]

    def tensors(self, window: list[list[Step]], device: torch.device) -> dict[str, Any]:
        """As a store takes them: step, env, agent."""

        def of(get) -> np.ndarray:
            return np.array([[get(steps[t]) for steps in window] for t in range(self.num_steps)])

        final = np.zeros((self.num_steps // 2 + 1, self.num_envs, self.num_agents, SEEN), np.float32)
        for env, steps in enumerate(window):
            for k, step in enumerate(step for step in steps if step.truncated):
                final[k, env] = step.last
        found = {name: of(lambda step, name=name: step.before[name]) for name in ("observation", "mask", "tag")}
        for name in ("observation", "mask"):
            found[name] = np.concatenate([found[name], [[now[name] for now in self.now]]])
        names = ("action", "reward", "active", "survived", "terminated", "truncated")
        found |= {name: of(lambda step, name=name: getattr(step, name)) for name in names}
        found["final_observation"] = final
        if self.every:
            found["remembered"] = of(lambda step: step.before["remembered"])[:: self.every]
        return {name: torch.from_numpy(np.ascontiguousarray(one)).to(device) for name, one in found.items()}


@dataclass
class Both:
    """A store, and the oracle of it."""

    world: World
    windows: int
    item: Any
    backend: Any

    def __post_init__(self) -> None:
        world, item = self.world, self.item
        sizes = (world.num_envs, world.num_agents, world.num_steps)
        capacity = self.windows * world.num_steps * world.num_envs
        self.store = ReplayStore(world.fields(), *sizes, capacity, self.backend, seed=3, episode_length=2)
        self.steps = Steps(world.num_envs, world.num_agents, self.windows * world.num_steps)
        self.is_sequence = isinstance(item, Sequences)
        self.burn_in, self.period, self.ahead, self.behind = 0, 1, item.n_step, 0
        if self.is_sequence:
            self.burn_in, self.period = item.burn_in, item.period
            self.ahead = item.burn_in + item.length + item.n_step - 1
        else:
            self.behind = item.stack - 1

    def add(self) -> None:
        window = self.world.window()
        self.steps.add(window, list(self.world.now))
        self.store.add(self.world.tensors(window, self.backend.device))

    def items(self) -> list[tuple[int, ...]]:
        """(first step, env(, agent)) of all that may be drawn, the oldest first."""
        starts = self.steps.drawable(self.behind, self.ahead, self.period)
        agents = [(agent,) for agent in range(self.world.num_agents)] if self.item.axis == "agent" else [()]
        envs = range(self.world.num_envs)
        return [(s, env, *agent) for s in starts for env in envs for agent in agents]

    def place(self, item: tuple[int, ...]) -> int:
        """Of its leaf."""
        slot, envs = (item[0] + self.burn_in) % self.steps.num_slots // self.period, self.world.num_envs
        found = slot * envs + item[1]
        return found * self.world.num_agents + item[2] if len(item) == 3 else found

    def drawn(self, batch) -> list[tuple[int, ...]]:
        """By what every step of the env is tagged with."""
        tag = (batch.fields["tag"][0] if self.is_sequence else batch.fields["tag"]).cpu().numpy()
        found = [tuple(one) for one in (tag if self.item.axis == "agent" else tag[:, 0, :2]).tolist()]
        assert [self.place(item) for item in found] == batch.index.tolist()
        return found

    def check(self, batch) -> list[tuple[int, ...]]:
        """That a batch holds what the oracle says of the same items."""
        drawn, item = self.drawn(batch), self.item
        given = {
            name: getattr(batch, name).cpu().numpy()
            for name in ("action", "reward", "discount", "mask", "next_mask", "active", "starts", "valid", "bootstrap")
            if getattr(batch, name) is not None
        }
        given["observation"] = batch.observation["observation"].cpu().numpy()
        if self.is_sequence:
            given["remembered"] = batch.fields["remembered"].cpu().numpy()
        else:
            given["next_observation"] = batch.next_observation["observation"].cpu().numpy()
        for row, (start, env, *agent) in enumerate(drawn):
            for one in agent or range(self.world.num_agents):
                at = () if agent else (one,)
                if self.is_sequence:
                    sizes = (item.length, item.burn_in, item.n_step, item.gamma)
                    expected = sequence(self.steps, env, one, start, *sizes)
                else:
                    expected = transition(self.steps, env, one, start, item.n_step, item.gamma, item.stack)
                for name, right in expected.items():
                    if name == "tag" or right is None:
                        continue
                    if not self.is_sequence or name == "remembered":
                        found = given[name][(row, *at)]
                    elif name in ("reward", "discount"):  # of rows with nothing to learn they may be anything
                        found = given[name][(slice(None), row, *at)][expected["valid"]]
                        right = right[expected["valid"]]
                    elif name == "bootstrap":  # one for all agents; who has left has no future anywhere
                        has_future = expected["valid"] & (expected["discount"] > 0)
                        found, right = given[name][has_future, row], right[has_future]
                    else:
                        found = given[name][(slice(None), row, *at)]
                    if name == "observation" and not self.is_sequence and item.stack == 1:
                        right = right[0]
                    if name == "next_observation" and item.stack == 1:
                        right = right[0]
                    close = np.allclose(found, right, rtol=1e-5, atol=1e-5)
                    assert close, f"{name} of agent {one} in item {drawn[row]}:\n{found}\nexpected\n{right}"
        return drawn


STEPS = Transitions(n_step=3, stack=3, gamma=GAMMA)
ENV_STEPS = Transitions(n_step=2, gamma=GAMMA, axis="env")
ENV_ROWS = Sequences(4, 2, 2, n_step=2, gamma=GAMMA, axis="env")
AGENT_ROWS = Sequences(3, 0, 3, n_step=3, gamma=GAMMA, axis="agent")
CASES = {
    # envs, agents, steps of a window, steps to a memory; windows; item; priorities; batch
    "steps and frames of agents": ((3, 2, 3, 0), 5, STEPS, {"alpha": 0.6, "beta": 0.4}, 24),
    "steps of envs": ((3, 3, 5, 0), 3, ENV_STEPS, {"alpha": 1.0, "beta": 1.0, "epsilon": 0.0,
                                                   "normalised_by": None}, 16),
    "sequences of envs": ((4, 2, 4, 2), 6, ENV_ROWS, {"alpha": 0.9, "beta": 0.6, "epsilon": 0.01}, 12),
    "sequences of agents": ((2, 2, 3, 3), 8, AGENT_ROWS, {"alpha": 0.5, "beta": 0.5, "epsilon": 0.0,
                                                          "normalised_by": "store"}, 9),
}  # fmt: skip
WINDOWS = 16


@pytest.mark.parametrize("case", CASES)
def test_items_priorities_and_weights_are_the_oracles(case, backend):
    """All items there are, in order, every few windows; prioritised batches and new priorities after each."""
    sizes, windows, item, priorities, number = CASES[case]
    both = Both(World(*sizes), windows, item, backend)
    oldest = both.store.table("oldest", Oldest(), item)
    per = both.store.table("per", Prioritized(**priorities), item)
    oracle = Priorities(**{"epsilon": 1e-6, **priorities})
    random, device = np.random.default_rng(1), backend.device
    for window in range(WINDOWS):
        both.add()
        items = both.items()
        oracle.keep(items)
        assert oldest.num_drawable == per.num_drawable == len(items)
        if not items:
            continue
        if window % 6 == 5:
            call, batch = oldest.prepare_draw(len(items))
            call()
            assert both.check(batch) == items
        for _ in range(2):
            right = oracle.leaves()
            in_place = [0] * (1 + max(both.place(one) for one in items))
            for one, leaf in right.items():
                in_place[both.place(one)] = leaf
            leaves = per.selector.tree.leaves[: len(in_place)].tolist()
            assert leaves == pytest.approx(in_place, rel=1e-6, abs=1.01)
            call, batch = per.prepare_draw(number)
            call()
            drawn = both.check(batch)
            assert all(
                place in allowed for place, allowed in zip(batch.index.tolist(), strata(leaves, number), strict=True)
            )
            assert batch.weight.tolist() == pytest.approx(oracle.weights(drawn), rel=1e-5)
            # items twice in a batch, some that have left, some of priority 0, out of order
            rows = random.integers(0, number, number)
            given = [drawn[row] for row in rows]
            new = np.where(random.random(number) < 0.15, 0.0, random.gamma(1.0, 2.0, number)).astype(np.float32)
            index = batch.index[torch.from_numpy(rows).to(device)].contiguous()
            per.update(index, torch.from_numpy(new).to(device))
            oracle.update(given, new.tolist())
    assert len(set(oracle.leaves().values())) > 5


def test_uses_and_old_policies_are_the_oracles(backend):
    """Every item three times at most, by two batches a window; what is learned from is two versions old at most."""
    both = Both(World(3, 2, 4, 2), 6, ENV_ROWS, backend)
    limits = {"max_times_sampled": 3, "max_staleness": 2}
    table, uses, first_of = both.store.table("few", Uniform(), ENV_ROWS, **limits), Uses(3), {}
    random, version = np.random.default_rng(2), 0
    for _ in range(20):
        version += int(random.integers(0, 2))
        table.played(version)
        both.add()
        first_of.setdefault(version, both.steps.head - 4)
        fresh = min(step for played, step in first_of.items() if played >= version - 2)
        items = {one for one in both.items() if one[0] + ENV_ROWS.burn_in >= fresh}
        for number in (5, 11):
            call, batch = table.prepare_draw(number)
            call()
            if items:
                counts = dict.fromkeys(both.drawn(batch), 0)
                for one, weight in zip(both.check(batch), batch.weight.tolist(), strict=True):
                    counts[one] += weight > 0
                assert counts == uses.draw(both.drawn(batch)) and set(counts) <= items
            else:
                assert not batch.weight.any()
    assert sum(uses.of.values()) > 50 and max(uses.of.values()) == 3


@pytest.mark.parametrize("given", [(1.0, 30), (4.0, 50, 8.0, 250.0), (0.3, 7, -5.0, 40.0), (1.0, 1, 0.0, 9.0)])
def test_limits_are_reverbs_with_items_that_leave(given):
    """A table of 64: whatever comes in beyond, something goes, as in Reverb after the insertion was allowed."""
    random, counter, oracle = np.random.default_rng(3), Counter(RateLimiter(*given)), Limiter(*given)
    outcomes = set()
    for inserts, number in zip(random.random(25_000) < 0.5, random.integers(1, 6, 25_000), strict=True):
        number, size = int(number), oracle.num_inserted - oracle.num_deleted
        if inserts:
            if is_allowed := oracle.may_insert(number):
                oracle.num_inserted += number
                oracle.num_deleted += max(0, size + number - 64)
            assert counter.may_insert(number, size) == is_allowed
            counter.insert(number if is_allowed else 0)
        else:
            is_allowed = oracle.may_sample(number)
            assert counter.may_sample(number, size) == is_allowed
            oracle.num_sampled += number * is_allowed
            counter.sample(number * is_allowed)
        outcomes.add((bool(inserts), is_allowed))
    assert len(outcomes) > 2


def test_the_limiters_with_names_are_those_of_reverb():
    """MinSize is free; a ratio is kept about min_size * ratio; a queue's items are drawn once, `size` at most wait."""
    ratio = SampleToInsertRatio(4.0, 50, 12.0)
    assert (ratio.samples_per_insert, ratio.min_size, ratio.min_diff, ratio.max_diff) == (4.0, 50, 188.0, 212.0)
    queue = Queue(9)
    assert (queue.samples_per_insert, queue.min_size, queue.min_diff, queue.max_diff) == (1.0, 1, 0.0, 9.0)
    assert (MinSize(5).min_diff, MinSize(5).max_diff, MinSize(5).min_size) == (-math.inf, math.inf, 5)


def line_of(backend, selector) -> tuple[ReplayStore, Any]:
    """A store of 640 steps of one env that never end, and a table of it."""
    fields = [Field("observation", (1,), extra=1), Field("reward")]
    store, device = ReplayStore(fields, 1, 1, 640, 640, backend, seed=3), backend.device
    window = {
        "observation": torch.arange(641.0, device=device).view(641, 1, 1, 1),
        "final_observation": torch.zeros(1, 1, 1, 1, device=device),
        "reward": torch.arange(640.0, device=device).view(640, 1, 1),
        "terminated": torch.zeros(640, 1, dtype=torch.bool, device=device),
        "truncated": torch.zeros(640, 1, dtype=torch.bool, device=device),
    }
    table = store.table("per", selector, Transitions(n_step=3))
    store.add(window)
    return store, table


def test_priorities_and_weights_are_cpprbs(backend):
    """Weights differ by their largest alone, which cpprb takes of its whole buffer."""
    cpprb = pytest.importorskip("cpprb", reason="there is no cpprb here")
    alpha, beta, epsilon = 0.7, 0.5, 1e-4
    _, table = line_of(backend, Prioritized(alpha, beta, epsilon))
    index = table.draw(637).index.clone()  # of equal priorities: each once
    priority = np.random.default_rng(5).random(637).astype(np.float32) * 3 + 1e-3
    table.update(index, torch.from_numpy(priority).to(backend.device))
    theirs = cpprb.PrioritizedReplayBuffer(637, {"place": {}}, alpha=alpha, eps=epsilon)
    theirs.add(place=np.arange(637.0), priorities=priority)
    sample, batch = theirs.sample(2000, beta=beta), table.draw(600)
    expected = dict(zip(index[sample["indexes"].astype(int)].tolist(), sample["weights"].tolist(), strict=True))
    pairs = zip(batch.index.tolist(), batch.weight.tolist(), strict=True)
    ratio = np.array([weight / expected[one] for one, weight in pairs if one in expected])
    assert len(ratio) > 300 and np.allclose(ratio, ratio[0], rtol=1e-5)


def test_draws_are_the_same_bits_on_every_device(backend):
    """Items, weights and sums of rewards of eight batches with new priorities: one hash, which a CPU wrote."""
    told = hashlib.sha256()
    for selector in (Uniform(), Prioritized()):
        _, table = line_of(backend, selector)
        for _ in range(4):
            batch = table.draw(100)
            for one in (batch.index, batch.weight, batch.reward, batch.discount):
                told.update(one.cpu().numpy().tobytes())
            if isinstance(selector, Prioritized):
                table.update(batch.index, batch.reward % 7)
    assert told.hexdigest()[:16] == "5b0d063f58d2730b"
