import pytest
import replay
import torch
from replay_peers import TorchRLTree


def test_every_row_is_timed_beside_torch_which_gives_the_same(run):
    """`check` compares every batch; a smaller store, few calls. R2 and R3 are R1 with more items."""
    rows = ["R1", "R4", "R5", "R6", "R7", "R8"]
    words = ("--device", "cpu", "--smaller", 4096, "--num-calls", 1, "--repeats", 1)
    code, results = run(replay, *words, "--rows", *rows)
    assert code == 0 and list(results) == rows
    peers = results["R1"].pop("peers")
    assert list(results["R1"]) == ["256", "4096", "65536"]
    for row in results["R1"].values():
        assert abs(row["times"] - row["dense_us"] / row["ours_us"]) < 0.01 and min(row.values()) > 0
    for row in (*results["R5"].values(), results["R7"]):
        assert abs(row["times"] - row["torch_us"] / row["ours_us"]) < 0.01
    assert results["R5"]["n = 3"]["bytes"] == 8 * (4 + 3 + 8) * 84 * 84
    for row in results["R6"].values():
        assert 0 < row["share_percent"] < 100
        assert row["trainer"]["path"] == "torch" and row["trainer"]["whole_us"] > 0 and row["trainer"]["cycle_us"] > 0
    limit_us = results["R8"]["bytes"] / 4.3e6
    assert results["R8"]["times_the_limit"] == pytest.approx(results["R8"]["ours_us"] / limit_us, rel=0.01)
    for by_batch in peers.values():  # a figure, or why there is none
        assert all(one["us"] or one["why"] for one in by_batch.values())


TREE = """
template <typename T, bool IsMin>
__device__ T both(T a, T b) { return IsMin ? min(a, b) : a + b; }

template <typename T>
__global__ void SetLeavesKernel(T* tree, int64_t leaves, const int64_t* at, const T* value, int64_t n, bool one)
{
    for (int64_t i = 0; i < n; ++i) tree[leaves + at[i]] = value[one ? 0 : i];
}

template <typename T, bool IsMin>
__global__ void RecomputeLevelKernel(T* tree, int64_t first, int64_t count)
{
    const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) tree[first + i] = both<T, IsMin>(tree[2 * (first + i)], tree[2 * (first + i) + 1]);
}

template <typename T>
__global__ void ScanLowerBoundKernel(
    const T* tree, int64_t size, int64_t leaves, const T* value, int64_t* out, int64_t n)
{
    const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t node = 1;
    T rest = value[i];
    for (; node < leaves; ) {
        node = 2 * node;
        if (rest > tree[node]) rest -= tree[node++];
    }
    out[i] = node - leaves;
}

template <typename T, bool IsMin>
void RecomputeTree()
"""
"""Kernels of the names and parameters that TorchRL's source has."""


def test_kernels_of_torchrls_source_draw_what_cumulative_sums_draw(tmp_path, backend):
    source = tmp_path / "cuda_segment_tree.cu"
    source.write_text(TREE)
    tree = TorchRLTree(source, 1000, 300, backend)
    leaves = torch.randint(1, 100, (1000,), device=backend.device).float()  # whose sums are exact
    tree.fill(leaves)
    assert len(tree.nodes) == 2048 and tree.nodes[1] == leaves.sum()
    points = torch.randint(1, int(leaves.sum()), (300,), device=backend.device) - 0.5
    tree.draw(points)
    assert torch.equal(tree.index, torch.searchsorted(leaves.cumsum(0), points))
    tree.set(torch.full((300,), 200.0, device=backend.device))
    leaves[tree.index] = 200.0
    assert tree.nodes[1] == leaves.sum()
    gathered = []
    tree.cycle(lambda index: gathered.append(index.clone()), torch.ones(300, device=backend.device))()
    assert (gathered[0] < 1000).all() and tree.nodes[1] < leaves.sum()
    source.write_text("nothing of that kind")
    with pytest.raises(SystemExit, match="cuda_segment_tree.cu: not the kernels that are known. Give torchrl/csrc/"):
        TorchRLTree(source, 1000, 300, backend)
