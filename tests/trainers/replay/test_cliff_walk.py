"""What priorities are for: where one transition of 32,766 is rewarded, they need a fraction of the updates."""

import torch

from trainers.replay.sum_tree import Anchors, SumTree

NUM_STATES, BATCH, STEP, GAMMA = 14, 64, 0.25, 1 - 1 / 14


def transitions() -> tuple[torch.Tensor, torch.Tensor]:
    """Of every sequence of right (1) and wrong (0) actions from the first state: state and action. A wrong one ends the
    episode; all right ones end it with a reward of 1 (Schaul et al. 2016, section 3.1)."""
    rows = []
    for state in range(NUM_STATES):
        for action in (0, 1):
            rows += [(state, action)] * 2 ** (NUM_STATES - 1 - state)
    return tuple(torch.tensor(rows).T)


def num_updates(alpha: float, beta: float, backend) -> int:
    """Of batches, until the mean squared error of all Q-values is below 1e-3."""
    state, action = (one.to(backend.device) for one in transitions())
    true = torch.zeros(NUM_STATES, 2)
    true[:, 1] = GAMMA ** torch.arange(NUM_STATES - 1, -1, -1)
    true = true.to(backend.device)
    head = torch.full((1,), len(state), device=backend.device)
    tree = SumTree(Anchors(len(state) + 1, 1), head, backend, alpha=alpha, epsilon=1e-4)
    tree.follow()
    tree.beta.fill_(beta)
    index = torch.zeros(BATCH, dtype=torch.int64, device=backend.device)
    weight = torch.zeros(BATCH, device=backend.device)
    error = torch.zeros(BATCH, device=backend.device)
    draw, update = tree.prepare_draw(index, weight), tree.prepare_set(index, error)
    q = torch.zeros(NUM_STATES + 1, 2, device=backend.device)
    for number in range(1, 20_000):
        draw()
        s, a = state[index], action[index]
        future = torch.where(s == NUM_STATES - 1, 1.0, GAMMA * q[s + 1].amax(-1))
        td = a * future - q[s, a]
        error.copy_(td.abs())
        update()
        place = 2 * s + a
        count = torch.zeros(2 * NUM_STATES + 2, device=q.device).index_add_(0, place, torch.ones_like(td))
        change = torch.zeros_like(count).index_add_(0, place, weight * td) / count.clamp_min(1)
        q += STEP * change.view(-1, 2)
        if number % 10 == 0 and (q[:-1] - true).square().mean() < 1e-3:
            return number
    return number


def test_a_blind_cliff_walk_of_14_takes_at_most_half_of_the_updates(backend):
    assert num_updates(0.6, 0.4, backend) <= num_updates(0.0, 0.0, backend) / 2
