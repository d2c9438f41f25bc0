"""Files of tensors are those of the safetensors library, and what they are written through stays small."""

import pytest
import torch
from safetensors.torch import load_file, save

from trainers.run import tensor_file
from trainers.run.tensor_file import num_bytes_of, pieces, write_tensors

EVERY_DTYPE = {f"{name}": torch.arange(7).to(dtype) for dtype, name in tensor_file._DTYPES.items()}
CASES = {
    "nothing": {},
    "every dtype": {**EVERY_DTYPE, **{f"a {name}": one.view(7, 1).clone() for name, one in EVERY_DTYPE.items()}},
    "odd shapes": {"scalar": torch.tensor(2.5), "no rows": torch.zeros(0, 3), "weight": torch.nn.Linear(3, 2).weight},
    "odd names": {'é"\\\n': torch.ones(1), "x" * 300: torch.ones(2), "": torch.ones(3)},
    "scattered in memory": {"t": torch.rand(50, 40).t(), "s": torch.rand(6, 7, 8)[:, ::2], "v": torch.rand(9)[::3]},
    "larger than the buffer": {"a": torch.rand(3, 7, 11), "b": torch.rand(40, 30).t(), "c": torch.ones(5)},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("piece", [1 << 20, 64])
def test_a_file_is_what_the_library_writes(tmp_path, monkeypatch, case, piece):
    monkeypatch.setattr(tensor_file, "PIECE", piece)
    tensors = CASES[case]
    write_tensors(tmp_path / "a.safetensors", tensors)
    content = (tmp_path / "a.safetensors").read_bytes()
    assert content == save({name: one.detach().contiguous() for name, one in tensors.items()})
    assert num_bytes_of(tensors) == len(content) - 8 - int.from_bytes(content[:8], "little")


def test_what_lies_on_a_device_comes_back(tmp_path, device, monkeypatch):
    monkeypatch.setattr(tensor_file, "PIECE", 64)
    tensors = {"a": torch.rand(100, 3, device=device), "b": torch.rand(9, 8, device=device).t()}
    write_tensors(tmp_path / "a", tensors)
    assert all(torch.equal(one, tensors[name].cpu()) for name, one in load_file(tmp_path / "a").items())


def test_a_tensor_is_not_copied_and_one_that_lies_scattered_by_a_piece_at_a_time():
    tensor = torch.rand(100, 16)
    address = tensor.data_ptr()
    views = [torch.frombuffer(piece, dtype=torch.uint8) for piece in pieces(tensor, 640)]
    assert [(one.data_ptr(), len(one)) for one in views] == [(address + 640 * i, 640) for i in range(10)]
    scattered = [len(piece) for piece in pieces(tensor.t(), 640)]
    assert (sum(scattered), max(scattered)) == (tensor.nbytes, 400)  # a row of 16 has 400 bytes
