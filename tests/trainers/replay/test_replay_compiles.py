"""The kernels of a store compile for every architecture, without a GPU."""

import shutil

import pytest
import torch
from compile_only import CompileOnlyBackend
from replay_oracle import Played

from trainers.experience.field import Field
from trainers.replay import feed, tiered
from trainers.replay import store as store_module
from trainers.replay.selectors import Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Device, File
from trainers.replay.windows import Transitions
from warpdrive.backends.cuda import _nvrtc

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
needs_nvrtc = pytest.mark.skipif(_nvrtc() is None, reason="there is no NVRTC here")


@pytest.mark.parametrize(
    ("compiler", "arch"),
    [
        pytest.param("nvcc", "sm_90a", marks=needs_nvcc),
        *(pytest.param("nvrtc", arch, marks=needs_nvrtc) for arch in ("sm_80",)),
    ],
)
def test_kernels_of_frames_and_sequences_compile(compiler, arch):
    backend = CompileOnlyBackend(compiler, arch)
    played = Played(3, 2, 4, every=4, shape=(16,), dtype=torch.uint8)
    store = ReplayStore(played.fields(), 3, 2, 4, 3 * 24, backend)
    store.table("rows", Uniform(), Sequences(8, 4, 4, n_step=3)).prepare_draw(64)
    store.prepare_add(played.play())
    played = Played(3, 2, 4)
    store = ReplayStore(played.fields(), 3, 2, 4, 3 * 24, backend, episode_length=1)
    store.table("frames", Uniform(), Transitions(n_step=3, stack=4)).prepare_draw(64)
    names = ["replay_draw", "replay_gather_rows", "replay_add", "replay_draw"]
    assert backend.compiled == names


@needs_nvrtc
def test_long_frames_compile_for_the_copy_engine():
    backend = CompileOnlyBackend("nvrtc", "sm_90a")
    fields = [Field("observation", (32, 32), torch.uint8, extra=1), Field("reward")]
    store = ReplayStore(fields, 4, 1, 2, 4 * 16, backend)
    store.table("frames", Uniform(), Transitions(stack=4)).prepare_draw(64)
    assert backend.compiled == ["replay_draw", "replay_gather"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
@pytest.mark.parametrize("arch", ["sm_86", "sm_90a"])
def test_kernels_of_tiers_compile(monkeypatch, tmp_path, arch):
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    for module in (tiered, feed):
        monkeypatch.setattr(module, "pinned", lambda shape, dtype, *_: torch.zeros(shape, dtype=dtype))
    backend, fields = CompileOnlyBackend("nvcc", arch), Played(3, 2, 4).fields()
    tiers = [Device("9KB"), File(str(tmp_path), "1GB")]
    store = ReplayStore(fields, 3, 2, 4, 12 * 24, backend, episode_length=3, tiers=tiers)
    store.table("all", Uniform(), Transitions(n_step=2, stack=2)).feed(64, 1)
    names = ["draw", "fetch_items", "gather_fetched", "fetch_ends", "fetch_ends"]
    assert backend.compiled == [f"replay_{name}" for name in names]
