import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

from warpdrive import cache
from warpdrive.cache import cache_folder, cache_key, cached, read_entry, why_not_safe
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
    assert [path.name for path in (tmp_path / "state" / "warpdrive").iterdir()] == ["cache.key"]


def forged(content):
    """With a digest that anybody can make."""
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize("how", ["forged", "of another name", "of another key", "a pipe", "without end"])
def test_an_entry_that_somebody_else_put_there_is_built_again(tmp_path, how):
    path = cached("key", ".so", lambda: b"machine code")
    if how == "forged":
        path.write_bytes(forged(b"other code"))
    elif how == "of another name":
        shutil.copy(cached("other", ".so", lambda: b"other code"), path)
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "without end":
        os.truncate(path, 1 << 40)
    else:
        key = tmp_path / "state" / "warpdrive" / "cache.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.stat().st_size == 32
        key.write_bytes(bytes(32))
        cache._key.cache_clear()
    built = []
    assert read_entry(cached("key", ".so", lambda: built.append(1) or b"machine code")) == b"machine code"
    assert built == [1]


@pytest.mark.parametrize("how", ["readable by others", "cut off", "link", "folder"])
def test_a_key_that_is_no_secret_is_made_anew(tmp_path, how):
    path = tmp_path / "cache.key"
    known = b"k" * 32
    (tmp_path / "theirs").write_bytes(known)
    (tmp_path / "theirs").chmod(0o600)
    if how == "link":
        path.symlink_to("theirs")
    elif how == "folder":
        path.mkdir()
        with pytest.raises(IsADirectoryError):
            cache._kept_key(path)
        return
    else:
        path.write_bytes(known[: 31 if how == "cut off" else 32])
        path.chmod(0o600 if how == "cut off" else 0o644)
    key = cache._kept_key(path)
    assert (len(key), key == known, path.read_bytes()) == (32, False, key)
    assert cache._kept_key(path) == key
    assert (tmp_path / "theirs").read_bytes() == known


def test_a_file_system_that_keeps_no_secrets_keeps_no_key(tmp_path, monkeypatch):
    """As one that shows every file to all, whatever its mode was."""
    monkeypatch.setattr(cache, "_read_key", lambda path: None)
    with pytest.raises(OSError, match="cannot be kept from others"):
        cache._kept_key(tmp_path / "cache.key")
    assert [path.name for path in tmp_path.iterdir()] == ["cache.key"]


def test_without_a_place_for_a_key_each_process_builds_and_says_so_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a file"))
    path = cached("key", ".so", lambda: b"machine code")
    assert cached("key", ".so", lambda: pytest.fail("built twice")) == path
    assert [line.partition(":")[0] for line in caplog.messages] == ["warning"]
    assert "compiled anew by each process, as no key can be kept" in caplog.messages[0]
    cache._key.cache_clear()  # as in another process
    with pytest.raises(ZeroDivisionError):
        cached("key", ".so", lambda: 1 // 0)


@pytest.mark.parametrize("open_one", ["cache", "above it"])
def test_a_folder_that_others_can_write_is_not_used_and_that_is_said_once(own_cache, monkeypatch, caplog, open_one):
    monkeypatch.setattr(tempfile, "tempdir", str(own_cache.parent))
    asked = own_cache / "a" / "b"
    asked.mkdir(parents=True)
    (asked if open_one == "cache" else own_cache).chmod(0o777)
    monkeypatch.setenv("WARPDRIVE_CACHE", str(asked))
    caplog.set_level(logging.WARNING)
    path = cached("key", ".so", lambda: b"machine code")
    assert path.parent == own_cache.parent / f"warpdrive-{os.getuid()}"
    assert cached("key", ".so", lambda: pytest.fail("built twice")) == path
    (line,) = caplog.messages
    assert f"not in {asked}: " in line and "can be written by others (mode 0777)" in line
    path.parent.chmod(0o777)  # somebody was there first
    cache._private_folder.cache_clear()
    assert cache_folder() not in (asked, path.parent)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_who_can_write_is_told_of_folders_and_of_those_above(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir(mode=0o700)
    assert why_not_safe(tmp_path / "a") is None
    tmp_path.chmod(0o1777)  # as /tmp
    assert why_not_safe(tmp_path / "a") is None
    assert "can be written by others" in why_not_safe(tmp_path)
    tmp_path.chmod(0o770)
    assert why_not_safe(tmp_path / "a") is None, "a group of one's own"
    monkeypatch.setattr(cache, "_is_own_group", lambda number: False)
    assert "(mode 0770)" in why_not_safe(tmp_path / "a")
    os.chown(tmp_path / "a", 12345, -1) if os.getuid() == 0 else pytest.skip("only root gives folders away")
    assert why_not_safe(tmp_path / "a") == f"{tmp_path / 'a'} belongs to another user"
