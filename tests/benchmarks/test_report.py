"""What every benchmark says where it cannot run, or cannot write what it found."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from report import write_report

from warpdrive.backends import choose_backend


@pytest.mark.parametrize("name", ["throughput", "scaling", "host_fed"])
def test_a_device_that_is_not_there_is_one_line(monkeypatch, name):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--device", "cuda:63"])
    with pytest.raises(SystemExit, match="GPU") as ended:
        import_module(name).main()
    assert len(str(ended.value.code).splitlines()) == 1


def test_figures_that_cannot_be_written_were_printed(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"--out: .*file/x.json cannot be written \(.*\). The figures are above."):
        write_report("x", choose_backend("cpu"), {"us": 3.25}, tmp_path / "file")
    assert '"us": 3.25' in capsys.readouterr().out
