"""A store as plain lists: what was played, step by step, and what an item of it must hold."""

from __future__ import annotations

import numpy as np
import torch

from trainers.experience.field import Field
from warpdrive.backends.base import Backend


class Played:
    """Random play of some envs: every step and what came of it, in lists.

    Args:
        ends: how often an episode does, in a step.
        most: truncations of an env whose last observations a window has.
        shape, dtype: of what agents observe.
        acts: dtype of their actions.
        leaves: how often an agent does, in a step.
        every: steps from one `memory` to the next; 0: there is none.
    """

    def __init__(
        self, num_envs: int, num_agents: int, num_steps: int, seed: int = 0, ends: float = 0.2, most: int | None = None,
        shape: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32, episode_length: int | None = None,
        every: int = 0, leaves: float = 0.1, acts: torch.dtype = torch.int8,
    ) -> None:  # fmt: skip
        self.num_envs, self.num_agents, self.num_steps = num_envs, num_agents, num_steps
        self.most = num_steps if most is None else most
        self.random = np.random.default_rng(seed)
        self.every, self.leaves, self.acts = every, leaves, acts
        self.ends, self.shape, self.dtype, self.episode_length = ends, shape, dtype, episode_length
        self.age = [0] * num_envs
        self.steps: list[dict[str, torch.Tensor]] = []
        """By step: what was seen and could be done before it, what was done and came of it; `last`, what was seen after
        it, before any reset, and `is_kept` [E], whether a window has that."""
        self.now = self._seen()
        self.in_game = torch.ones(num_envs, num_agents, dtype=torch.bool)

    def fields(self) -> list[Field]:
        return [
            Field("obs", self.shape, self.dtype, extra=1),
            Field("image", (3, 5), torch.uint8, extra=1, axis="env"),
            Field("action", (2,), self.acts),
            Field("reward"),
            Field("mask", (3,), torch.bool, extra=1),
            Field("active", dtype=torch.bool),
            Field("survived", dtype=torch.bool),
            Field("version", dtype=torch.int64, axis="env"),
            *([Field("memory", (2,), every=self.every)] if self.every else []),
        ]

    def _seen(self) -> dict[str, torch.Tensor]:
        rows = (self.num_envs, self.num_agents)
        return {
            "obs": self._numbers((*rows, *self.shape), self.dtype),
            "image": self._numbers((self.num_envs, 3, 5), torch.uint8),
            "mask": torch.from_numpy(self.random.random((*rows, 3)) < 0.7),
        }

    def _numbers(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.from_numpy(self.random.standard_normal(shape).astype(np.float32)).to(dtype)
        return torch.from_numpy(self.random.integers(0, 2 if dtype is torch.bool else 120, shape)).to(dtype)

    def play(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """A window of steps, as a store takes it."""
        rows = (self.num_envs, self.num_agents)
        finals = {name: torch.zeros(self.most, *self.now[name].shape, dtype=self.now[name].dtype) for name in _SEEN}
        number = [0] * self.num_envs
        begin = len(self.steps)
        for _ in range(self.num_steps):
            step = {name: one.clone() for name, one in self.now.items()}
            step["action"] = self._numbers((*rows, 2), self.acts)
            step["reward"] = self._numbers(rows, torch.float32)
            step["version"] = torch.full((self.num_envs,), begin, dtype=torch.int64)
            step["memory"] = self._numbers((*rows, 2), torch.float32)
            step["active"] = self.in_game.clone()
            chance = torch.from_numpy(self.random.random(rows))
            step["survived"] = torch.where(self.in_game, chance >= self.leaves, chance < 0.5)  # some come back
            kind = self.random.random(self.num_envs)
            step["terminated"] = torch.from_numpy(kind < 0.6 * self.ends)
            step["truncated"] = torch.from_numpy((kind > 0.4 * self.ends) & (kind < self.ends))  # some are both
            if self.episode_length is not None:
                step["truncated"] = torch.tensor([age + 1 == self.episode_length for age in self.age])
            last = self._seen()
            step["last"], step["is_kept"] = last, torch.zeros(self.num_envs, dtype=torch.bool)
            self.now, self.in_game = {name: one.clone() for name, one in last.items()}, step["survived"].clone()
            fresh = self._seen()
            for env in range(self.num_envs):
                self.age[env] += 1
                if step["truncated"][env]:
                    if number[env] < self.most:
                        step["is_kept"][env] = True
                        for name in _SEEN:
                            finals[name][number[env], env] = last[name][env]
                    number[env] += 1
                if step["terminated"][env] or step["truncated"][env]:
                    self.age[env] = 0
                    self.in_game[env] = True
                    for name, one in self.now.items():
                        one[env] = fresh[name][env]
            self.steps.append(step)
        played = self.steps[begin:]
        window = {name: torch.stack([one[name] for one in played]) for name in _OF_A_STEP}
        for name in _SEEN:
            window[name] = torch.stack([*(one[name] for one in played), self.now[name]])
            window[f"final_{name}"] = finals[name]
        if self.every:
            window["memory"] = torch.stack([one["memory"] for one in played[:: self.every]])
        window["mask"] = (torch.stack([one["mask"] for one in played]), self.now["mask"])
        return window

    def has_side(self, step: int, env: int, num_sides: int | None = None) -> bool:
        """Whether a store still has what was seen before that truncation: there were not too many since."""
        is_kept = [bool(one["is_kept"][env] and not one["terminated"][env]) for one in self.steps]
        return is_kept[step] and (num_sides is None or sum(is_kept[step + 1 :]) < num_sides)

    def after(self, name: str, step: int) -> torch.Tensor:
        """What was there when the next step began."""
        return self.steps[step + 1][name] if step + 1 < len(self.steps) else self.now[name]

    def transition(self, step: int, env: int, agent: int, n_step: int, stack: int, gamma: float,
                   num_sides: int | None = None) -> dict[str, object]:  # fmt: skip
        """An item of an agent, by name."""
        found: dict[str, object] = {"reward": np.float32(0.0), "discount": 0.0}
        stays = True
        powers = [np.float32(gamma**k) for k in range(n_step + 1)]
        for k in range(n_step):
            now = self.steps[step + k]
            if stays:
                earned = now["reward"][env, agent].numpy()
                found["reward"] = earned if k == 0 else np.float32(found["reward"] + np.float32(powers[k] * earned))
                stays = bool(now["survived"][env, agent])
            ended = bool(now["terminated"][env] or now["truncated"][env])
            if ended:
                break
        last = step + k
        is_side = ended and self.has_side(last, env, num_sides)
        has_future = stays and (not ended or is_side)
        found["discount"] = float(powers[k + 1]) if has_future else 0.0
        for name in _SEEN:
            of_agent = (lambda one: one[env, agent]) if name == "obs" else (lambda one: one[env])
            behind, s = [], step
            while len(behind) < stack - 1:
                s -= 1
                if s < 0 or self.steps[s]["terminated"][env] or self.steps[s]["truncated"][env]:
                    break
                behind.insert(0, of_agent(self.steps[s][name]))
            frames = [*behind, *(of_agent(self.steps[i][name]) for i in range(step, last + 1))]
            frames = [torch.zeros_like(frames[0])] * stack + frames
            frames.append(of_agent(now["last"][name] if is_side else self.after(name, last)))
            here = len(frames) - 1 - (last - step)
            first, second = frames[here - stack : here], frames[-stack:]
            found[name], found[f"next_{name}"] = (
                one[0] if stack == 1 else torch.stack(one) for one in (first, second)
            )
        start = self.steps[step]
        found["mask"] = start["mask"][env, agent]
        found["next_mask"] = torch.ones(3, dtype=torch.bool) if ended else self.after("mask", last)[env, agent]
        found["action"] = start["action"][env, agent]
        found["active"] = float(start["active"][env, agent])
        found["version"] = start["version"][env]
        return found


    def target(
        self, step: int, env: int, agent: int, n_step: int, gamma: float, num_sides: int | None = None
    ) -> tuple[np.float32, float, float, int]:
        """Of a step of a sequence: reward, discount, whether it is valid, and how many steps on it bootstraps."""
        powers = [np.float32(gamma**k) for k in range(n_step + 1)]
        is_here = float(self.steps[step]["active"][env, agent])
        total, has_left = np.float32(0.0), False
        for k in range(n_step):
            now = self.steps[step + k]
            is_truncated = bool(now["truncated"][env] and self.has_side(step + k, env, num_sides))
            ended = bool(now["truncated"][env] or now["terminated"][env])
            if is_truncated and k > 0:
                return total, 0.0 if has_left else float(powers[k]), is_here, k
            if not has_left:
                earned = now["reward"][env, agent].numpy()
                total = earned if k == 0 else np.float32(total + np.float32(powers[k] * earned))
                has_left = not now["survived"][env, agent]
            if is_truncated:
                return total, 0.0, is_here * has_left, 1
            if ended:
                return total, 0.0, is_here, k + 1
        return total, 0.0 if has_left else float(powers[n_step]), is_here, n_step


_SEEN = ("obs", "image")
_OF_A_STEP = ("action", "reward", "active", "survived", "version", "terminated", "truncated")


class Kept:
    """A store of what is played, with a window whose memory stays where it is.

    kept.add()      # plays a window, and adds it

    Args:
        window: of another one that played the same; nothing is played until the first `add`.
    """

    def __init__(self, played: Played, windows: int, backend: Backend, **more: object) -> None:
        from trainers.replay.store import ReplayStore

        self.played = played
        sizes = (played.num_envs, played.num_agents, played.num_steps)
        window = more.pop("window", None)
        more = {"seed": 7, "episode_length": 1, **more}
        self.store = ReplayStore(played.fields(), *sizes, windows * sizes[0] * sizes[2], backend, **more)
        self._is_first = window is None
        self.window = window or {name: on(backend, one) for name, one in played.play().items()}
        self.prepare()

    def prepare(self) -> None:
        """Packs what adds the window; again, when the store has been resized."""
        self.call = self.store.prepare_add(self.window)

    def play(self) -> None:
        """Fills the window."""
        if not self._is_first:
            for name, one in self.played.play().items():
                ours = self.window[name]
                for to, given in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (ours, one)), strict=True):
                    to.copy_(given)
        self._is_first = False

    def add(self) -> None:
        """Plays a window, and adds it."""
        self.play()
        self.call()
        self.store.count_window()


def on(backend: Backend, one: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """On its device."""
    return one.to(backend.device) if isinstance(one, torch.Tensor) else tuple(part.to(backend.device) for part in one)
