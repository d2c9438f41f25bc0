"""Novelty within an episode: how unlike what an agent sees is to what it saw before in the same episode.

Source: Puigdomènech Badia et al. 2020, "Never give up: learning directed exploration strategies", arXiv:2002.06038,
section 2 and algorithm 1; pseudo-counts by a kernel are those of Blundell et al. 2016, arXiv:1606.04460.
"""

from __future__ import annotations

import torch

from warpdrive.data_manager import DataManager

LARGEST = torch.finfo(torch.float32).max
MOST_STEPS = 1 << 53
TINY = 1e-12
"""The least mean of squared distances that is divided by: of embeddings that are all alike."""


class EpisodicMemory:
    """Embeddings of what each agent saw since its episode began, or of the last `capacity` steps of it.

    They are arrays of the envs, so that a checkpoint holds them: `embedding` [E, A, capacity, size], and `count` [E, A]
    int64, how many the episode has written.

    Args:
        data: of the envs.
        names: of these two arrays.
        num_envs, num_agents: E, A.
        capacity: steps that are remembered.
        size: of an embedding.
        num_neighbours: of the nearest, that are looked at; at most `capacity`.
    """

    def __init__(
        self,
        data: DataManager,
        names: tuple[str, str],
        num_envs: int,
        num_agents: int,
        capacity: int,
        size: int,
        num_neighbours: int,
    ) -> None:
        rows, device = (num_envs, num_agents), data.device
        self.embedding = data.add(names[0], torch.zeros(*rows, capacity, size, device=device))
        self.count = data.add(names[1], torch.zeros(rows, dtype=torch.int64, device=device))
        self.bounds = {names[0]: (-LARGEST, LARGEST), names[1]: (0, MOST_STEPS)}
        self.num_neighbours = num_neighbours
        self._slot = torch.arange(capacity, device=self.count.device)

    @staticmethod
    def num_bytes(num_envs: int, num_agents: int, capacity: int, size: int) -> int:
        return num_envs * num_agents * (4 * capacity * size + 8) + 8 * capacity

    def neighbours(self, embedding: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
        """Takes in a rollout: [T, E, A, num_neighbours], squared distances of what was seen after each step from the
        nearest of what the episode held by then; an infinity where it holds fewer.

        Args:
            embedding: [T + 1, E, A, size], of what was seen before each step and after the last.
            ended: [T, E] bool. What follows such a step is another episode, and its distances mean nothing.
        """
        found = embedding.new_empty(*ended.shape, embedding.shape[2], self.num_neighbours)
        for t, over in enumerate(ended):
            self._remember(embedding[t])
            found[t].copy_(self._nearest(embedding[t + 1]))
            self.count.masked_fill_(over.unsqueeze(-1), 0)
        return found

    def _remember(self, embedding: torch.Tensor) -> None:
        """Of what is seen now, [E, A, size]; the oldest gives way."""
        slot = (self.count % len(self._slot)).view(*self.count.shape, 1, 1).expand(-1, -1, 1, embedding.shape[-1])
        self.embedding.scatter_(2, slot, embedding.unsqueeze(2))
        self.count += 1

    def _nearest(self, embedding: torch.Tensor) -> torch.Tensor:
        """[E, A, num_neighbours], squared, nearest first."""
        # Not by a product of matrices, which would find some distance between equal embeddings.
        how = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(embedding.unsqueeze(2), self.embedding, compute_mode=how).squeeze(2).square()
        distance = distance.masked_fill_(self._slot >= self.count.unsqueeze(-1), torch.inf)
        return distance.topk(self.num_neighbours, largest=False).values


def episodic_novelty(
    distance: torch.Tensor,
    mean_distance: torch.Tensor,
    kernel_epsilon: float,
    cluster_distance: float,
    pseudo_count: float,
    max_similarity: float,
) -> torch.Tensor:
    """[...]: 1 / (sqrt(sum of the neighbours' kernels) + pseudo_count), 0 where that sum is beyond `max_similarity`.

    The kernel of a neighbour is epsilon / (d + epsilon), where d is its squared distance in parts of the mean one, and
    0 if it is within `cluster_distance`: about 1 of what was seen already, so that the root is that of a count.

    Args:
        distance: [..., neighbours], squared; an infinity is no neighbour.
        mean_distance: [], of squared distances of neighbours.
    """
    relative = (distance / mean_distance.clamp_min(TINY) - cluster_distance).clamp_min_(0.0)
    similarity = (kernel_epsilon / (relative + kernel_epsilon)).sum(-1).sqrt() + pseudo_count
    return torch.where(similarity > max_similarity, 0.0, 1.0 / similarity)
