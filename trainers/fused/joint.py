"""Rollouts of several runs that learn while they play, in one launch: a block each.

Runs beside each other are as many launches, of which a GPU has 32 at work at once; of one launch all blocks are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainers.experience.rollout import Rollout
from trainers.fused.q_learner import FusedQLearner
from warpdrive.backends.base import LaunchShape
from warpdrive.signature import Parameter

if TYPE_CHECKING:
    from trainers.acting.actor import Call
    from trainers.algorithms.algorithm import Algorithm


class JointRollouts:
    """Plays the next rollout of some of several runs, with their updates.

    Args:
        learners: of runs of one config; their memory stays where it is.
    """

    def __init__(self, learners: Sequence[FusedQLearner]) -> None:
        first = learners[0]
        parameters = first.signature.parameters
        words = [word_of(one.arrays[parameter.name]) for one in learners for parameter in parameters]
        functions = first.compile(partial(of_several, kernel=first.shape.kernel, parameters=parameters, words=words))
        self._plays = torch.zeros(len(learners), dtype=torch.int32, device=first.learner.device)
        self._rollouts = [one.learner.group.rollout for one in learners]
        self._told: Sequence[int] = ()
        self._begin: Call = _nothing
        launch = LaunchShape(len(learners), (first.shape.threads, 1), first.shape.launch_bytes)
        self._launch = functions.prepare(first.shape.kernel, launch, plays=self._plays)
        for one in learners:
            one.learner.group.rollout.calls[0] = _nothing

    def __call__(self, numbers: Sequence[int]) -> None:
        """Of the runs of these numbers. It begins their rollouts, too: by a few launches for all of them."""
        if numbers != self._told:
            self._plays.zero_()
            self._plays[list(numbers)] = 1
            self._told = numbers
            self._begin = Rollout.prepare_to_begin([self._rollouts[number] for number in numbers])
        self._begin()
        self._launch()


def join_rollouts(algorithms: Sequence[Sequence[Algorithm]]) -> JointRollouts | None:
    """What plays for several runs, by the algorithms of each; None if they do not learn while they play."""
    found = [one.learns_by for run in algorithms for one in run]
    are_joined = len(found) == len(algorithms) > 1 and all(len(run) == 1 for run in algorithms)
    if not are_joined or not all(isinstance(one, FusedQLearner) and one.in_rollouts for one in found):
        return None
    return JointRollouts(found)


def _nothing() -> None:
    pass


def word_of(argument: Any) -> int:
    """An argument of a kernel as eight bytes."""
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    return argument if isinstance(argument, int) else struct.unpack("<I", struct.pack("<f", argument))[0]


def of_several(text: str, kernel: str, parameters: Sequence[Parameter], words: Sequence[int]) -> str:
    """A kernel as a function that block after block calls, each with arguments of its own, out of `words`, which are
    kept in shared memory and read anew at each use, so that no register holds them in between."""
    of_kernel = re.compile(rf'extern "C" __global__ void __launch_bounds__\(THREADS\) {kernel}\([^)]*\)')
    names = [f"{one.ctype}{'*' if one.is_pointer else ''}" for one in parameters]
    given = ", ".join(f"Argument<{names[i]}, {i}> {one.name}" for i, one in enumerate(parameters))
    text, number = of_kernel.subn(f"__device__ __forceinline__ void {kernel}_of({given})", text)
    if number != 1:
        raise ValueError(f"{kernel} begins otherwise")
    return f"""__device__ const unsigned long long ARGUMENTS[] = {{{", ".join(f"{word}ull" for word in words)}}};

// The block's own.
__device__ __forceinline__ volatile unsigned long long* arguments()
{{
    __shared__ unsigned long long words[{len(parameters)}];
    return words;
}}

template <typename T>
__device__ __forceinline__ void read(T& value, unsigned long long word) {{ value = (T)word; }}
template <typename T>
__device__ __forceinline__ void read(T*& value, unsigned long long word)
{{
#ifdef WARPDRIVE_CPU
    value = (T*)word;
#else
    value = (T*)__cvta_global_to_generic(word);  // so that a compiler knows which memory it is in
#endif
}}
__device__ __forceinline__ void read(float& value, unsigned long long word)
{{
    value = __uint_as_float((unsigned)word);
}}

template <typename T, int I>
struct Argument {{
    __device__ __forceinline__ operator T() const
    {{
        T value;
        read(value, arguments()[I]);
        return value;
    }}
}};

{text}
//   plays  [block]  whether its run has its turn                                         read
extern "C" __global__ void __launch_bounds__(THREADS) {kernel}(const int* plays)
{{
    if (!plays[blockIdx.x]) return;
    for (int i = threadIdx.x; i < {len(parameters)}; i += THREADS) {{
        arguments()[i] = ARGUMENTS[blockIdx.x * {len(parameters)} + i];
    }}
    __syncthreads();
    {kernel}_of({", ".join("{}" for _ in parameters)});
}}
"""
