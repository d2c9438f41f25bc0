"""Where short fields lie, by hand; and that what is drawn, saved and read back is the same wherever they do."""

import pytest
import torch
from replay_oracle import Kept, Played

from trainers.experience.field import Field
from trainers.replay import storage
from trainers.replay.kernel_text import KernelText
from trainers.replay.records import Record, flat_of, in_one_run, strides_of
from trainers.replay.selectors import Prioritized
from trainers.replay.sequences import Sequences
from trainers.replay.storage import Layout
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Device
from trainers.replay.windows import Transitions
from trainers.run.tensor_file import header_of, read_tensors_into, write_tensors
from warpdrive.errors import ConfigError, ShapeError

CARTPOLE = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]


def test_fields_lie_side_by_side_the_longest_words_first():
    """16 + 4 + 4 + 1 bytes; 7 more fill a sector up. 20 slots of 3 envs: an env's records are 20 x 32 bytes."""
    layout = Layout.of(CARTPOLE, 3, 1, 2, 3 * 20)
    record = layout.record()
    assert record.offsets == {"observation": 0, "action": 16, "reward": 20, "done": 24}
    assert (record.num_bytes, record.used, record.is_by_env) == (32, 25, True)
    tensors = record.allocate(layout.sizes()[0], torch.device("cpu"))
    assert {name: one.shape for name, one in tensors.items()} == {
        "observation": (20, 3, 1, 4), "action": (20, 3, 1), "reward": (20, 3, 1), "done": (20, 3),
    }  # fmt: skip
    start = tensors["observation"].data_ptr()
    assert tensors["action"][5, 2].data_ptr() - start == 2 * 20 * 32 + 5 * 32 + 16
    assert tensors["done"][5, 2].data_ptr() - start == 2 * 20 * 32 + 5 * 32 + 24
    assert record.whole(tensors).shape == (20 * 3 * 32,)
    assert record.whole(tensors).data_ptr() == start
    assert strides_of(tensors["reward"]) == "Strides<8, 160>"
    assert strides_of(tensors["observation"], 16) == "Strides<2, 40>"
    assert layout.num_bytes == 20 * 3 * 32 + 3 * (3 * 16 + 3 * 8) + 2 * 3 * 8 + 2 * 8 + 12


@pytest.mark.parametrize(
    ("fields", "offsets", "num_bytes"),
    [
        # Two agents: 24 bytes seen are too long, 2 x 4 earned are not; `done` fills two sectors' half.
        ([Field("seen", (3,), extra=1), Field("reward")], {"reward": 0, "done": 8}, 16),
        # What is known every other step, or is no part of an item's meaning, stays apart.
        ([Field("memory", (1,), every=2), Field("version", axis="env"), Field("reward")], {"reward": 0, "done": 8}, 16),
        # 1 + 8 + 4 * 16 would be more than 64 bytes: the last of what is longest stays apart.
        (
            [Field("reward"), *(Field(f"seen{i}", (2,), extra=1) for i in range(4))],
            {"seen0": 0, "seen1": 16, "seen2": 32, "reward": 48, "done": 56},
            64,
        ),
    ],
)
def test_long_fields_and_others_stay_apart(fields, offsets, num_bytes):
    layout = Layout.of(fields, 3, 2, 2, 3 * 20)
    assert (layout.record().offsets, layout.record().num_bytes) == (offsets, num_bytes)
    assert layout.record(has_tiers=True) == Record({"done": 0}, 1, 1)


def test_large_windows_leave_fields_in_rings_of_their_own(monkeypatch):
    layout = Layout.of(CARTPOLE, 3, 1, 2, 3 * 20)
    monkeypatch.setattr(storage, "LARGE_WINDOW", 7)
    assert layout.record().is_by_env
    monkeypatch.setattr(storage, "LARGE_WINDOW", 6)
    assert not layout.record().is_by_env
    tensors = layout.record().allocate(layout.sizes()[0], torch.device("cpu"))
    assert all(one.is_contiguous() for one in tensors.values())


@pytest.mark.parametrize(("num_agents", "num_steps", "most"), [(1, 9, 1), (2, 4, None), (1, 33, 3)])
def test_both_ways_draw_the_same_bits(monkeypatch, backend, num_agents, num_steps, most):
    """With truncations beyond those that a window has room for, and in windows of more steps than a thread keeps at
    once."""
    drawn = []
    for large in (1, storage.LARGE_WINDOW):
        monkeypatch.setattr(storage, "LARGE_WINDOW", large)
        played = Played(37, num_agents, num_steps, seed=5, most=most, shape=(2,))
        kept = Kept(played, 3, backend)
        assert kept.store.record.is_by_env == (large > 1)
        table = kept.store.table("all", Prioritized(), Transitions(n_step=3))
        for _ in range(5):
            kept.add()
        batch = table.draw(500)
        table.update(batch.index, batch.reward.flatten().abs())
        batch = table.draw(500)
        found = {**batch.observation, **{f"next_{name}": one for name, one in batch.next_observation.items()}}
        found |= {name: getattr(batch, name).clone() for name in ("index", "weight", "action", "reward", "discount")}
        drawn.append({name: one.clone() for name, one in found.items()} | kept.store.state())
    for name, one in drawn[0].items():
        assert torch.equal(one, drawn[1][name]), name


def test_files_are_the_same_and_are_read_into_records(tmp_path):
    layout = Layout.of(CARTPOLE, 3, 1, 2, 3 * 20)
    apart = Record.of(layout.sizes()[0], []).allocate(layout.sizes()[0], torch.device("cpu"))
    beside, read = (layout.record().allocate(layout.sizes()[0], torch.device("cpu")) for _ in range(2))
    for name, one in apart.items():
        one.copy_(torch.randint(0, 2, one.shape))
        beside[name].copy_(one)
    write_tensors(tmp_path / "apart", {name: one[4:9] for name, one in apart.items()})
    rows = {name: one[4:9] for name, one in beside.items()}
    write_tensors(tmp_path / "beside", rows)
    assert (tmp_path / "apart").read_bytes() == (tmp_path / "beside").read_bytes()
    into = {name: one[4:9] for name, one in read.items()}
    with (tmp_path / "beside").open("rb") as file:
        file.seek(len(header_of(rows)))
        read_tensors_into(file, into, {name: one.nbytes for name, one in rows.items()})
    for name, one in read.items():
        assert torch.equal(one[4:9], apart[name][4:9])
        assert not one[:4].any() and not one[9:].any()


def test_a_kernel_is_given_the_memory_that_a_ring_lies_in():
    ring = torch.zeros(2, 3, 8, dtype=torch.int32)[:, :, 2:4]
    assert in_one_run(ring).shape == (5 * 8 + 2,) and in_one_run(ring).data_ptr() == ring.data_ptr()
    assert flat_of(ring).shape == ((5 * 8 + 2) * 4,)
    own = torch.zeros(2, 3)
    assert in_one_run(own) is own


def test_priorities_of_a_field_of_records_are_refused(backend):
    kept = Kept(Played(2, 1, 4), 3, backend)
    told = r"cannot be in 'reward', which items are made of\. Give them a field of their own, without extra\.$"
    with pytest.raises(ConfigError, match=told):
        kept.store.table("own", Prioritized(own="reward"), Transitions())


def window_of(fields, num_envs, num_steps, backend):
    """Random steps in which no episode ends."""
    flags = {name: torch.zeros(num_steps, num_envs, dtype=torch.bool) for name in ("terminated", "truncated")}
    found = {f"final_{one.name}": torch.zeros(1, num_envs, 1, *one.shape) for one in fields if one.extra}
    found |= {one.name: torch.randn(num_steps + one.extra, num_envs, 1, *one.shape) for one in fields}
    return {name: one.to(backend.device) for name, one in {**found, **flags}.items()}


@pytest.mark.parametrize(
    "others",
    [
        [Field("records", (9,))],
        [Field("seen", (20,), extra=1), Field("seen_0", (2,), extra=1)],
        [Field("after_seen1", (9,)), Field("ring_1_seen1", (9,)), Field("seen1", (2,), extra=1)],
        [Field("base", (9,)), Field("begin", (9,)), Field("side_of", (9,)), Field("crews", (9,))],
    ],
)
def test_whatever_fields_are_called_each_is_kept(others, backend):
    fields = [Field("reward"), *others]
    store = ReplayStore(fields, 3, 1, 4, 3 * 8, backend)
    window = window_of(fields, 3, 4, backend)
    store.add(window)
    for one in fields:
        assert torch.equal(store.tensors[one.name][: 4 + one.extra], window[one.name]), one.name


WORDS_OF_KERNELS = """step first item lane key i r at unit threadIdx NUM_SLOTS LANES seed draws codes fate
    observation fields stratum num_items drawable_of item_of of_pass out_reward class new default int if for and
    this u64 done_ _ field_i"""


@pytest.mark.parametrize(
    "window",
    [Transitions(n_step=2, axis="env"), Transitions(stack=2), Sequences(4, 0, 4), Sequences(4, 4, 4, axis="agent")],
)
@pytest.mark.parametrize("extra", [0, 1])
def test_a_field_may_have_any_name_and_is_drawn(window, extra, backend):
    names = [name for name in WORDS_OF_KERNELS.split() if not (extra and name == "step")]
    fields = [Field("reward"), *(Field(name, (i % 3 + 1,), extra=extra) for i, name in enumerate(names))]
    store = ReplayStore(fields, 3, 1, 4, 3 * 16, backend)
    table = store.table("all", Prioritized(), window)
    given = window_of(fields, 3, 4, backend)
    for _ in range(3):
        store.add(given)
    batch = table.draw(5)
    drawn = batch.observation if extra else batch.fields
    assert sorted(drawn) == sorted(names)
    newest = (Ellipsis, -1, slice(None)) if extra and getattr(window, "stack", 1) > 1 else (Ellipsis,)
    row, slot = (batch.index % 3).tolist(), (batch.index // 3).tolist()
    for name, one in drawn.items():
        rows = one[newest] if isinstance(window, Transitions) else one[window.burn_in]
        expected = torch.stack([given[name][at * window.period % 4, env] for at, env in zip(slot, row, strict=True)])
        assert torch.equal(rows.reshape(expected.shape), expected), name


def test_two_arrays_of_a_name_in_a_kernel_are_refused():
    text, (seed, field) = KernelText("draw", []), torch.zeros(2, 3)
    assert text.read("seed", seed) == text.read("seed", seed) == "seed"
    with pytest.raises(ConfigError, match=r"kernel 'replay_draw': two of its arrays are named 'seed'\. Rename one\.$"):
        text.read("seed", field)
    text.number("number", "int", 3)
    with pytest.raises(ConfigError, match="two of its arrays are named 'number'"):
        text.write("number", field)


def test_a_ring_of_one_window_holds_what_is_known_after_it(backend):
    """As a pair, whose second does not begin where 16 bytes may: copied by other threads than the first."""
    fields = [Field("reward"), Field("seen", (20,), extra=1)]
    store = ReplayStore(fields, 3, 1, 4, 3 * 4, backend)
    window = window_of(fields, 3, 4, backend)
    after = torch.cat([torch.zeros(1, device=backend.device), window["seen"][4].flatten()])[1:].view(3, 1, 20)
    store.add({**window, "seen": (window["seen"][:4], after)})
    assert torch.equal(store.tensors["seen"], window["seen"][[4, 1, 2, 3]])
    with pytest.raises(ShapeError, match="'reward' is a pair, and nothing is known of it after the last step"):
        store.prepare_add({**window, "reward": (window["reward"], window["reward"][0])})


def test_a_store_that_fits_its_tiers_takes_no_more_than_they_give(backend):
    fields = [Field("observation", (3,), extra=1), Field("reward")]
    layout = Layout.of(fields, 4, 1, 2, 4 * 100)
    needed = sum(storage.bytes_of(sizes) for sizes in layout.sizes())
    store = ReplayStore(fields, 4, 1, 2, 4 * 100, backend, tiers=[Device(needed)])
    assert store.tiered is None and not store.record.is_by_env
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in store.state().values()}
    assert sum(held.values()) == needed
