"""Several processes that train together, one a GPU, or on a CPU: torch.distributed, started as torchrun starts it.

Each rank holds num_envs / ranks envs, and draws in them what one process with all envs would draw. Gradients, figures
and the statistics of advantages, observations, rewards and returns are those of all ranks together. So the parameters
are those of one process with the same global batch, to rounding, and the same on every rank, bit for bit. With several
minibatches each rank orders its own samples: then they are other minibatches than one process would make.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from trainers.learning import messages
from trainers.learning.heartbeat import LOST, Heartbeat
from trainers.run.stop import Stopped, end_at_once, end_with_parent
from trainers.settings.config import TrainerConfig
from warpdrive.errors import BackendError, ConfigError, WarpDriveError
from warpdrive.variables import number_in

PATIENCE = datetime.timedelta(hours=1)
"""How long a rank waits for the others, which may be compiling kernels, or for the first to evaluate or to save."""
GRACE = 2
"""Seconds that a rank has for its own last words after another one ended."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Keeps NVLink multicast off: a process that dies with it on can leave the GPUs of its machine unusable."""
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Lets ranks of one machine listen on its loopback interface alone."""

Number = torch.Tensor | int


class World:
    """The ranks of a run. Alone, every method gives back what it got.

    loss.backward()
    gradient, count = world.sum(gradient, count)     # on the device, in one collective; CUDA graphs capture it
    path = world.first(make_folder)                  # rank 0 does it, all get the result
    with world.watched(): ...                        # a rank that dies ends them all

    All ranks must call the same methods in the same order. What is summed has the same bits on every rank. `seconds` is
    `trainer.rank_timeout`; see heartbeat.py.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, seconds: float = 60) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.lost = threading.Event()
        """Whether another rank has ended before its time."""
        self._hosts = self._neighbours = None
        self._heart = Heartbeat(rank, size, seconds)
        if size > 1:  # torch's default group is that of the devices
            self._heart.start()
            self._hosts = dist.new_group(backend="gloo", timeout=PATIENCE)
            self._neighbours = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=3650))
        self._vote: tuple[torch.Tensor, dist.Work] | None = None

    # --------------------------------------------------------------------------------------- on the devices

    def sum(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Their sums over all ranks, through one flat buffer."""
        if self.size == 1:
            return tensors
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._meet_by(flat)
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(one.shape).to(one.dtype) for part, one in zip(parts, tensors, strict=True))

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Over all ranks, number by number."""
        if self.size > 1:
            tensor = tensor.clone()
            self._meet_by(tensor)
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def gather_into(self, tensor: torch.Tensor, own: torch.Tensor) -> None:
        """Every rank's `own` [...], by rank, into a tensor [ranks, ...]: numbers that a sum with zeros leaves alone."""
        if self.size == 1:
            tensor[0].copy_(own)
            return
        self._meet_by(own)
        tensor.zero_()[self.rank].copy_(own)
        dist.all_reduce(tensor)

    def total(self, number: Number) -> Number:
        """Over all ranks; an int is the same on each of them."""
        return self.sum(number)[0] if isinstance(number, torch.Tensor) else number * self.size

    def average(self, number: Number, *means: torch.Tensor) -> tuple[Any, ...]:
        """The total number and the means over all ranks, of means over `number` values here. 0 values have no say."""
        if self.size == 1:
            return number, *means
        if isinstance(number, int):
            return number * self.size, *(mean / self.size for mean in self.sum(*means))
        weighted = (torch.where(number > 0, number * mean, 0.0) for mean in means)
        total, *sums = self.sum(number, *weighted)
        return total, *((one / total).to(mean.dtype) for one, mean in zip(sums, means, strict=True))

    def moments(self, number: Number, mean: torch.Tensor, variance: torch.Tensor) -> tuple[Any, ...]:
        """Number, mean and variance (without correction) over all ranks, of those of the values here."""
        if self.size == 1:
            return number, mean, variance
        total, mean_of_all = self.average(number, mean)
        return total, mean_of_all, self.average(number, variance + (mean - mean_of_all).square())[1]

    # --------------------------------------------------------------------------------------- among the hosts

    def first(self, call: Callable[[], Any]) -> Any:
        """What `call` gives on rank 0, which alone makes it; if it raises there, all raise that. See messages.py."""
        if self.size == 1:
            return call()
        result, error = None, None
        if self.rank == 0:
            try:
                with self.alone():
                    result = call()
            except Exception as caught:
                error = caught
        self._meet()
        told, of_first = messages.broadcast([result, error], self._hosts)
        if of_first is not None:
            raise of_first if error is None else error
        return told

    def together(self, call: Callable[[], Any]) -> None:
        """All ranks make the call; what it raises on one of them, all raise: what the first of those did."""
        error = None
        try:
            with contextlib.nullcontext() if self.rank else self.alone():
                call()
        except Exception as caught:
            error = caught
        for told in self.gather(error):
            if told is not None:
                raise told if error is None else error

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        if self.size == 1:
            return [value]
        self._meet()
        return messages.gather(value, self._hosts)

    def in_turn(self, own: Iterator[memoryview], num_bytes: int, size: int) -> Iterator[memoryview]:
        """The ranks' bytes one after the other, on rank 0; on the other ranks nothing: they send theirs.

        Args:
            own: this rank's, in pieces of `size` bytes; the last may be smaller.
            num_bytes: how many they are, the same on every rank.
        """
        self._meet()
        if self.rank:
            for piece in own:
                dist.send(torch.frombuffer(piece, dtype=torch.uint8), 0, group=self._hosts)
                self.moved()
            return
        yield from own
        for rank in range(1, self.size):
            for begin in range(0, num_bytes, size):
                piece = torch.empty(min(size, num_bytes - begin), dtype=torch.uint8)
                dist.recv(piece, rank, group=self._hosts)
                yield piece.numpy().data

    def part(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """This rank's part of a tensor that holds those of all ranks along the axis."""
        if tensor.dim() <= axis:
            return tensor
        return tensor.chunk(self.size, axis)[self.rank]

    def agree_on(self, caught: int | None) -> int | None:
        """The signal that any rank had caught when all asked last, or None: every rank gets the same answer.

        Hosts wait for each other but not for the device; the answer is one call late, so that it is there by then.
        """
        if self.size == 1:
            return caught
        agreed = self._count_votes()
        self._heart.is_alone = False  # an iteration has ended: all is compiled
        self._meet()
        vote = torch.tensor([caught or 0])
        self._vote = vote, dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._hosts, async_op=True)
        return agreed

    def _count_votes(self) -> int | None:
        if self._vote is None:
            return None
        (vote, work), self._vote = self._vote, None
        work.wait()
        return int(vote) or None

    # --------------------------------------------------------------------------------------- life and death

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """While it is entered, this rank does what may take long, and the others wait."""
        return self._heart.alone()

    def moved(self) -> None:
        """The main thread has got on: whoever waits for it waits for no rank that hangs."""
        self._heart.moves += 1

    def _meet(self) -> None:
        """This rank is at the next place where all wait for each other."""
        self._heart.arrived += 1

    def _meet_by(self, tensor: torch.Tensor) -> None:
        """Likewise, if hosts wait there: those of GPUs do not, and may have the sum in a graph."""
        (self.moved if tensor.is_cuda else self._meet)()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While it is entered, a rank that ends ends all: at once where its process died, after GRACE elsewhere. Each
        waits for a word from the one before it, which comes when all is done; or the connection breaks."""
        if self.size == 1:
            yield
            return
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        except Stopped:  # by all of them
            self._leave(watch)
            raise
        self._leave(watch)

    def _leave(self, watch: threading.Thread) -> None:
        """Waits until every rank leaves: the first sends the word around, so it has said all that it had to say."""
        self._count_votes()
        self._meet()
        self._heart.is_alone = True  # what a script does after the training may take long
        if self.rank == 0:
            self._send(0)
        watch.join()
        if self.rank != 0:
            self._send(0)

    def _watch(self) -> None:
        word, before = torch.zeros(1, dtype=torch.int64), (self.rank - 1) % self.size
        try:
            dist.recv(word, before, group=self._neighbours)
            dead = int(word) - 1
        except RuntimeError:  # its end of the connection is closed
            dead = before
        if dead < 0:
            return
        self.lost.set()
        with contextlib.suppress(RuntimeError):
            self._send(dead + 1)
        time.sleep(GRACE)
        if dead == before and not self._heart.has_verdict():
            print(f"error: rank {dead} of {self.size} has ended: so do the others.", file=sys.stderr, flush=True)
        os._exit(LOST)  # the main thread may be waiting for the device, which waits for the rank that is gone

    def _send(self, word: int) -> None:
        dist.send(torch.tensor([word]), (self.rank + 1) % self.size, group=self._neighbours)

    def wait_if_lost(self, error: Exception) -> None:
        """Before an error is told: if it only echoes that another rank has ended, the watch ends this one first."""
        if self.size > 1 and not isinstance(error, WarpDriveError) and self.lost.wait(1.0):
            time.sleep(2 * GRACE)

    def end(self, code: int) -> int:
        """Gives back the exit code. One of several ranks ends here, and at once: NCCL would wait for every CUDA graph
        that holds a collective, and after a failure for ranks that are gone. A script of your own calls it last."""
        if self.size > 1:
            self._heart.stop()
            end_at_once(code)
        return code


_world = World()


def world() -> World:
    """The ranks that this process trains with."""
    return _world


def join(settings: TrainerConfig) -> World:
    """Joins the ranks that torchrun started, the first time; alone, there is nothing to join.

    Raises:
        ConfigError: there are not as many as `trainer.num_gpus` says; or the variables that tell it hold no numbers, or
            do not say where the ranks meet.
        BackendError: this machine has fewer GPUs than ranks.
    """
    global _world
    rank, size = number_in("RANK"), number_in("WORLD_SIZE")
    size = 1 if rank is None or size is None else size
    if size != settings.num_gpus:
        raise ConfigError(
            f"trainer.num_gpus is {settings.num_gpus}, but there {'are' if size > 1 else 'is'} {size} of this process. "
            f"Start the run by train.py, or by torchrun --nproc-per-node {settings.num_gpus}."
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    if size > 1 and _world.size == 1:
        number_in("RANK", most=size - 1)
        num_here = number_in("LOCAL_WORLD_SIZE", least=1)
        local_rank = number_in("LOCAL_RANK", rank, most=None if num_here is None else num_here - 1)
        check_meeting_place()
        set_defaults(NO_MULTICAST)
        if num_here == size:
            set_defaults(ON_LOOPBACK)
        if uses_gpu(settings):
            check_gpus(num_here or local_rank + 1)
            torch.cuda.set_device(local_rank)
            dist.init_process_group("nccl", timeout=PATIENCE, device_id=torch.device("cuda", local_rank))
        else:
            dist.init_process_group("gloo", timeout=PATIENCE)
        _world = World(rank, size, local_rank, settings.rank_timeout)
    return _world


def check_meeting_place() -> None:
    """Raises ConfigError where the variables do not say at which address and port the ranks meet."""
    for name, where in (("MASTER_ADDR", "on which host"), ("MASTER_PORT", "at which port")):
        if not os.environ.get(name, "").strip():
            why = f"$RANK and $WORLD_SIZE make this process one of several, but ${name} is not set: it says {where}"
            raise ConfigError(f"{why} they meet. Start the run by train.py or torchrun, or unset both.")
    number_in("MASTER_PORT", least=1, most=65535)


def device_of(settings: TrainerConfig) -> str:
    """`trainer.device`, or this rank's own GPU."""
    if _world.size == 1:
        return settings.device
    return f"cuda:{_world.local_rank}" if uses_gpu(settings) else "cpu"


def uses_gpu(settings: TrainerConfig) -> bool:
    """Whether `trainer.env_backend` and `trainer.device` mean a GPU."""
    is_cpu = "cpu" in (settings.env_backend, settings.device)
    return not is_cpu and (settings.env_backend != "auto" or settings.device != "auto" or torch.cuda.is_available())


def check_gpus(num_gpus: int) -> None:
    """Raises BackendError if this machine has fewer."""
    found = torch.cuda.device_count()
    if found < num_gpus:
        raise BackendError(
            f"trainer.num_gpus: {num_gpus} GPUs are asked for on this machine, which has {found} (nvidia-smi tells). "
            "Ask for fewer; or train by processes on the CPU: device: cpu."
        )


def set_defaults(variables: dict[str, str]) -> None:
    """Of the environment, where nobody said otherwise."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
