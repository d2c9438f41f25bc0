"""One env's arrays over an episode: kept on the device, pulled once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ArrayError


class EpisodeRecorder:
    """Records chosen arrays of one env while `env.step()` runs.

    recorder = EpisodeRecorder(env, ["x", "y", "reward"])
    env.reset()
    recorder.start()
    for _ in range(100):
        env.step(policy(...))
    episode = recorder.pull()        # {"x": [steps + 1, agent], ...}

    A frame is taken when a step is done, before an ended env restarts, so the last one is how the
    episode ended. Nothing crosses to the host until `pull`, but whether it has ended, each time that an episode is
    twice as long as it was known to be: the env's episode_length is the least that one may have.

    Args:
        env: whose steps to record.
        names: arrays with an env axis.
        env_index: which copy.
        max_steps: frames beyond it are dropped. An env without an episode_length needs one.
    Raises:
        ArrayError: an array is unknown or has no env axis.
    """

    def __init__(self, env: EnvWrapper, names: Sequence[str], env_index: int = 0, max_steps: int | None = None) -> None:
        self.max_steps: float = max_steps or math.inf
        room = min(self.max_steps, env.env.episode_length or math.inf) + 1
        if room == math.inf:
            raise ArrayError("this env has no episode length: tell EpisodeRecorder how many steps, max_steps=1000.")
        if not 0 <= env_index < env.num_envs:
            raise ArrayError(f"there is no env {env_index}: there are {env.num_envs}, counted from 0.")
        self.env = env
        self.env_index = env_index
        self._arrays = {name: env.data[name] for name in dict.fromkeys([*names, "terminated", "truncated"])}
        for name, array in self._arrays.items():
            if array.dim() == 0 or len(array) != env.num_envs:
                raise ArrayError(f"array '{name}' has no env axis: it is {list(array.shape)}.")
        self._frames = {
            name: torch.zeros((room, *array.shape[1:]), dtype=array.dtype, device=array.device)
            for name, array in self._arrays.items()
        }
        self._num_steps, self._is_full = 0, True

    def start(self) -> None:
        """Takes the first frame, the state of now, and records every step from here on."""
        self.stop()
        self._num_steps, self._is_full = 0, False
        self._take(0)
        self.env.after_step.append(self._record)

    def stop(self) -> None:
        """Records no more; what was recorded can still be pulled."""
        self._is_full = True
        if self._record in self.env.after_step:
            self.env.after_step.remove(self._record)

    def pull(self) -> dict[str, np.ndarray]:
        """The episode, up to and with its last step: name -> [steps + 1, ...], frame 0 being the start.

        Frame t of `reward`, `action` and the like is what step t did; their frame 0 is what was there before.
        """
        frames = {name: frame[: self._num_steps + 1].cpu().numpy() for name, frame in self._frames.items()}
        ended = np.flatnonzero((frames["terminated"] | frames["truncated"])[1:])
        length = int(ended[0]) + 2 if len(ended) else self._num_steps + 1
        return {name: frame[:length] for name, frame in frames.items()}

    def _record(self) -> None:
        if self._num_steps + 1 == len(self._frames["terminated"]) and not self._is_full:
            self._make_room()
        if not self._is_full:
            self._num_steps += 1
            self._take(self._num_steps)

    def _make_room(self) -> None:
        """For twice as many frames, unless the episode is over or has come to `max_steps`."""
        ended = self._frames["terminated"] | self._frames["truncated"]
        more = min(len(ended), self.max_steps + 1 - len(ended))
        self._is_full = more == 0 or bool(ended[1:].any())
        if not self._is_full:
            with torch.inference_mode(False):  # a rollout's steps are in it, `start` is not
                for name, frames in self._frames.items():
                    self._frames[name] = torch.cat([frames, torch.zeros_like(frames[:more])])

    def _take(self, step: int) -> None:
        for name, array in self._arrays.items():
            self._frames[name][step].copy_(array[self.env_index])
