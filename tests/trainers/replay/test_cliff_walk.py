"""What priorities are for: where one transition of 32,766 is rewarded, they need a fraction of the updates."""

import numpy as np
import torch

from trainers.replay.sum_tree import Anchors, SumTree

NUM_STATES, BATCH, STEP, GAMMA = 14, 64, 0.25, 1 - 1 / 14


def transitions() -> tuple[np.ndarray, np.ndarray]:
    """Of every sequence of right (1) and wrong (0) actions from the first state: state and action. A wrong one ends the
    episode; all right ones end it with a reward of 1 (Schaul et al. 2016, section 3.1)."""
    repeats = 2 ** np.arange(NUM_STATES - 1, -1, -1).repeat(2)
    return np.arange(NUM_STATES).repeat(2).repeat(repeats), np.tile([0, 1], NUM_STATES).repeat(repeats)


def num_updates(alpha: float, beta: float, backend) -> int:
    """Of batches, until the mean squared error of all Q-values is below 1e-3."""
    state, action = transitions()
    true = np.zeros((NUM_STATES, 2))
    true[:, 1] = GAMMA ** np.arange(NUM_STATES - 1, -1, -1)
    head = torch.full((1,), len(state), device=backend.device)
    tree = SumTree(Anchors(len(state) + 1, 1), head, backend, alpha=alpha, epsilon=1e-4)
    tree.follow()
    tree.beta.fill_(beta)
    index = torch.zeros(BATCH, dtype=torch.int64, device=backend.device)
    weight, error = (torch.zeros(BATCH, device=backend.device) for _ in range(2))
    draw, update = tree.prepare_draw(index, weight), tree.prepare_set(index, error)
    q = np.zeros((NUM_STATES + 1, 2))
    for number in range(1, 20_000):
        draw()
        s, a = state[index.cpu().numpy()], action[index.cpu().numpy()]
        future = np.where(s == NUM_STATES - 1, 1.0, GAMMA * q[s + 1].max(1))
        td = a * future - q[s, a]
        error.copy_(torch.from_numpy(np.abs(td)))
        update()
        place, size = 2 * s + a, q.size
        change = np.bincount(place, weight.cpu().numpy() * td, size) / np.maximum(np.bincount(place, minlength=size), 1)
        q += STEP * change.reshape(-1, 2)
        if number % 10 == 0 and ((q[:-1] - true) ** 2).mean() < 1e-3:
            return number
    return number


def test_a_blind_cliff_walk_of_14_takes_at_most_half_of_the_updates(backend):
    assert num_updates(0.6, 0.4, backend) <= num_updates(0.0, 0.0, backend) / 2
