"""Sum trees of several shapes, and what their tests do with one."""

import numpy as np
import torch

from trainers.replay.sum_tree import Anchors, SumTree

SMALL = Anchors(num_slots=4, num_rows=3)  # 12 leaves under one node
MIDDLE = Anchors(num_slots=65, num_rows=100)  # 6,500 leaves, 5 ragged levels


def tree_of(anchors: Anchors, backend, num_steps: int | None = None, **options) -> SumTree:
    """A tree after so many steps; as many as the ring holds if not given."""
    head = torch.full((1,), anchors.num_slots if num_steps is None else num_steps, device=backend.device)
    seed = torch.tensor([3, 4, 0], dtype=torch.uint32, device=backend.device)
    tree = SumTree(anchors, head, backend, seed, **options)
    tree.head = head
    tree.follow()
    return tree


def set_to(tree: SumTree, index, priority, **options) -> None:
    device = tree.leaves.device
    index = torch.as_tensor(index, dtype=torch.int64, device=device)
    tree.prepare_set(index, torch.as_tensor(priority, dtype=torch.float32, device=device), **options)()


def draw(tree: SumTree, number: int, num_lanes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    device = tree.leaves.device
    index = torch.full((number,), -1, dtype=torch.int64, device=device)
    weight = torch.full((number,), -1.0, device=device)
    tree.prepare_draw(index, weight, num_lanes)()
    return index.cpu().numpy(), weight.cpu().numpy()


def leaves_of(tree: SumTree) -> np.ndarray:
    return tree.leaves[: tree.anchors.num_leaves].cpu().numpy().astype(np.int64)
