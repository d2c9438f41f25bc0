import numpy as np
import pytest
import torch

from warpdrive.data_manager import DataManager
from warpdrive.errors import ArrayError, BackendError


def manager(device: str) -> DataManager:
    data = DataManager(device)
    data.push("x", np.arange(6, dtype=np.float32).reshape(2, 3))
    data.push("alive", np.array([True, False]))
    return data


def test_the_tensor_is_live_and_push_and_pull_copy_while_add_takes_the_very_memory(device):
    data = DataManager(device)
    mine = torch.zeros(2, device=device)
    data.push("x", mine)
    data.add("y", mine)
    mine += 1
    assert data.pull("x").tolist() == [0, 0] and data.pull("y").tolist() == [1, 1]
    data["x"] += 5
    pulled = data.pull("x")
    assert pulled.tolist() == [5, 5]
    pulled[0] = 9
    assert data["x"][0].item() == 5


def test_arrays_of_every_dtype_go_there_and_back(device):
    data = DataManager(device)
    signed = ("float32", "float64", "int8", "int16", "int32", "int64")
    for dtype in (*signed, "uint8", "uint16", "uint32", "uint64", "bool"):
        data.push(f"a_{dtype}", np.array([0, 1, 100], dtype))
        assert data.pull(f"a_{dtype}").dtype == dtype
        assert data.pull(f"a_{dtype}").tolist() == np.array([0, 1, 100], dtype).tolist()


@pytest.mark.parametrize(
    "array", [np.array([1 + 2j]), np.array(["a"]), np.array([object()]), np.zeros(2, "datetime64[s]")]
)
def test_a_dtype_kernels_cannot_take_is_refused_with_the_fix(array):
    fix = r"cannot take 'x' as .*data.push\('x', numpy.asarray\(x, dtype='float32'\)\)"
    with pytest.raises(ArrayError, match=fix):
        DataManager().push("x", array)


def test_a_name_is_an_identifier_and_pushed_once_and_one_that_is_unknown_names_the_nearest():
    data = manager("cpu")
    with pytest.raises(ArrayError, match=r"'x' is there already.*copy_"):
        data.push("x", np.zeros(2))
    with pytest.raises(ArrayError, match="C identifier"):
        data.push("not a name", np.zeros(2))
    with pytest.raises(ArrayError, match="no array 'alvie'. Did you mean 'alive'?"):
        data["alvie"]


def test_what_is_no_tensor_or_no_name_is_told():
    data = manager("cpu")
    with pytest.raises(ArrayError, match="data.add names a torch tensor, and 'y' is ndarray. data.push copies"):
        data.add("y", np.zeros(3, np.float32))
    with pytest.raises(ArrayError, match="'5' cannot name an array"):
        data.push(5, [1.0])


def test_what_does_not_fit_is_not_written():
    data = manager("cpu")
    for wrong in (np.zeros(5), [[1.0], [2.0, 3.0]], "text"):
        with pytest.raises(ArrayError, match=r"array 'x' is \[2, 3\]"):
            data["x"] = wrong
    with pytest.raises(ArrayError, match="'y' is ragged"):
        data.push("y", [[1.0], [2.0, 3.0]])


def with_integers(device: str) -> DataManager:
    data = DataManager(device)
    for dtype in ("int32", "uint64", "float32", "bool"):
        data.push(dtype, np.zeros(2, dtype))
    return data


@pytest.mark.parametrize(
    ("name", "values", "given"),
    [
        ("int32", 1.7, "float32"),
        ("int32", 2.0, "float32"),
        ("int32", float("nan"), "float32"),
        ("int32", [1.0, float("nan")], "float32"),
        ("int32", np.array([1.0, 2.0]), "float64"),
        ("int32", torch.tensor([0.5, 0.5]), "float32"),
        ("uint64", 1.5, "float32"),
        ("bool", 1, "int64"),
        ("bool", np.array([0, 2]), "int64"),
        ("bool", 0.0, "float32"),
        ("float32", 1j, "complex64"),
    ],
)
def test_numbers_of_a_kind_that_the_array_cannot_hold_are_refused(device, name, values, given):
    data = with_integers(device)
    line = rf"^array '{name}' is {name}: {given} cannot .* unchanged. Convert it first: .*\.to\(torch.{name}\)\.$"
    with pytest.raises(ArrayError, match=line):
        data[name] = values
    assert not data.pull(name).any()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int32", np.array([2**31 + 5, 1], np.uint32)),
        ("int32", [2**40, 1]),
        ("int32", 2**31),
        ("int32", 2**64 - 1),
        ("int32", np.array([2**64 - 1, 1], np.uint64)),
        ("uint64", -1),
        ("uint64", np.array([-1, 1], np.int8)),
        ("float32", np.array([2**24 + 1, 0])),
    ],
)
def test_numbers_that_would_become_others_are_refused(name, values):
    data = with_integers("cpu")
    with pytest.raises(ArrayError, match=f"^array '{name}' is {name}, which cannot hold all of these numbers."):
        data[name] = values
    assert not data.pull(name).any()


@pytest.mark.parametrize(
    ("name", "values", "held"),
    [
        ("int32", np.array([1, 2]), [1, 2]),
        ("int32", True, [1, 1]),
        ("int32", np.array([2**31 - 1, 1], np.uint32), [2**31 - 1, 1]),
        ("int32", -(2**31), [-(2**31)] * 2),
        ("uint64", np.array([7, 1], np.int8), [7, 1]),
        ("float32", 123_456_789, [123_456_792] * 2),
        ("uint64", 2**64 - 1, [2**64 - 1] * 2),
        ("float32", 3, [3, 3]),
        ("float32", np.array([0.5, 2.0]), [0.5, 2]),
        ("bool", [True, False], [True, False]),
    ],
)
def test_numbers_of_the_kind_or_of_a_narrower_one_are_written(device, name, values, held):
    data = with_integers(device)
    data[name] = values
    assert data.pull(name).tolist() == held


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "mps", 3.5])
def test_a_device_that_is_none_is_named(device):
    with pytest.raises(BackendError, match=f"unknown device '{device}'. Choose auto"):
        DataManager(device)


def test_it_reads_as_a_dict_of_tensors_does_and_counts_bytes_by_array():
    data = manager("cpu")
    assert data.bytes_held() == {"x": 24, "alive": 2}
    table = data.push_table("map", np.ones(4))
    as_dict = {"x": data["x"], "alive": data["alive"], "map": table}
    assert list(data) == list(data.keys()) == list(as_dict) and len(data) == 3
    assert [one is other for one, other in zip(data.values(), as_dict.values(), strict=True)] == [True] * 3
    assert all(as_dict[name] is array for name, array in data.items())
    assert dict(data).keys() == as_dict.keys() and data.get("map") is table
    assert data.get("mop") is None and data.get("mop", 3) == 3


@pytest.mark.parametrize("key", [3, None, ("x", 0), ["x"], slice(2)])
def test_what_is_no_name_is_an_unknown_array_in_one_line(key):
    with pytest.raises(ArrayError) as caught:
        manager("cpu")[key]
    assert str(caught.value) == f"no array {key!r}. Pushed so far: x, alive."


@pytest.mark.parametrize("settable", [False, True])
def test_a_snapshot_holds_the_tables_that_are_settable(settable):
    data = manager("cpu")
    data.push_table("map", np.ones(4), settable)
    snapshot = data.snapshot()
    assert list(snapshot) == ["x", "alive", "map"][: 2 + settable] and data.names() == ["x", "alive"]
    data["map"] = 5.0
    data.restore(snapshot)
    assert data.pull("map").tolist() == ([1.0] * 4 if settable else [5.0] * 4)
    with pytest.raises(ArrayError, match="holds .*'mop'.*no arrays here" if settable else "'map'.*no arrays here"):
        data.restore({**snapshot, "mop" if settable else "map": torch.ones(4)})


def test_restore_brings_back_every_array_in_the_same_memory_or_changes_nothing(device):
    data = manager(device)
    address = data["x"].data_ptr()
    snapshot = data.snapshot()
    data["x"].zero_()
    data["alive"].zero_()
    for wrong in (
        {"x": snapshot["x"]},
        {**snapshot, "more": torch.zeros(1)},
        {**snapshot, "alive": torch.zeros(3, dtype=torch.bool)},
        {**snapshot, "alive": torch.zeros(2)},
    ):
        with pytest.raises(ArrayError):
            data.restore(wrong)
        assert data.pull("x").tolist() == [[0, 0, 0], [0, 0, 0]]
    for wrong in (None, ["x"], {"x": 1.0}, {name: data.pull(name) for name in data}):
        with pytest.raises(ArrayError, match="a snapshot is a dict of tensors by name"):
            data.restore(wrong)
    data.restore(snapshot)
    assert data["x"].data_ptr() == address
    assert data.pull("x").tolist() == [[0, 1, 2], [3, 4, 5]] and data.pull("alive").tolist() == [True, False]


def test_a_pool_needs_rows_that_fit():
    data = manager("cpu")
    with pytest.raises(ArrayError, match="same number of rows"):
        data.push_pool(x=np.zeros((4, 3), np.float32), alive=np.zeros(5, bool))
    with pytest.raises(ArrayError, match=r"pool rows of 'x' are \[2\]"):
        data.push_pool(x=np.zeros((4, 2), np.float32))
    with pytest.raises(ArrayError, match="float64"):
        data.push_pool(x=np.zeros((4, 3)))
    with pytest.raises(ArrayError, match=r"pool 'x': expected an array of rows \[P, ...\], got int"):
        data.push_pool(x=5)
