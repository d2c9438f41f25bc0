import os
import stat
import subprocess
import sys

import pytest

from warpdrive.cache import cache_folder, cache_key, cached, read_entry
from warpdrive.errors import BackendError

pytestmark = pytest.mark.usefixtures("own_cache")


def test_an_entry_is_built_once():
    content = iter([b"machine code"])  # a second build would find nothing
    for _ in range(3):
        assert read_entry(cached("key", ".cubin", lambda: next(content))) == b"machine code"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_entry_is_built_again(damage):
    path = cached("key", ".so", lambda: b"machine code")
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-1], "flipped": b"X" + content[1:], "empty": b""}[damage])
    assert read_entry(cached("key", ".so", lambda: b"machine code")) == b"machine code"
    assert path.read_bytes() == content


def test_a_failed_build_leaves_nothing_and_the_folder_is_the_users_alone():
    with pytest.raises(ZeroDivisionError):
        cached("key", ".so", lambda: 1 // 0)
    assert os.listdir(cache_folder()) == []
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ["/proc/nothing", "a file"])
def test_a_folder_that_cannot_be_is_named_with_the_way_out(tmp_path, monkeypatch, place):
    (tmp_path / "a file").touch()
    place = str(tmp_path / place)
    monkeypatch.setenv("WARPDRIVE_CACHE", place)
    with pytest.raises(BackendError, match=f"{place}.*Set WARPDRIVE_CACHE"):
        cached("key", ".so", lambda: b"machine code")


def test_every_part_of_a_key_counts_and_so_does_where_it_ends():
    assert len({cache_key(parts) for parts in (["a", "b"], ["ab"], ["a", "c"], ["a", "b", ""])}) == 4


def test_many_processes_at_once_agree(tmp_path):
    code = (
        "from warpdrive.cache import cached, read_entry\n"
        "import os\n"
        "entry = read_entry(cached('key', '.so', lambda: b'x' * 1_000_000))\n"
        "assert entry == b'x' * 1_000_000\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    assert len(os.listdir(cache_folder())) == 1
