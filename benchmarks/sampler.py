"""The Sampler against torch.multinomial on the softmax of the same logits, in one run.

python benchmarks/sampler.py --device cuda --num-envs 2000 --num-agents 1000 --num-actions 5
"""

import argparse
from pathlib import Path

import torch
from report import median, time_calls, write_report

from warpdrive.backends import choose_backend
from warpdrive.data_manager import DataManager
from warpdrive.sampler import Sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-envs", type=int, default=2000)
    parser.add_argument("--num-agents", type=int, default=1000)
    parser.add_argument("--num-actions", type=int, default=5)
    parser.add_argument("--num-calls", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backend = choose_backend(device=arguments.device)
    num_envs, num_agents, num_actions = arguments.num_envs, arguments.num_agents, arguments.num_actions
    shape = (num_envs, num_agents)
    device = backend.device
    torch.manual_seed(1)

    # the law: every row has the same logits, so actions are counts of one distribution
    sampler = Sampler(DataManager(device), num_envs, range(num_agents), num_agents, (num_actions,), backend, seed=1)
    row = torch.randn(num_actions, device=device)
    action, _, _ = sampler.sample(row.expand(*shape, num_actions).contiguous())
    expected = torch.softmax(row.double(), -1) * action.numel()
    count = torch.bincount(action.flatten().long(), minlength=num_actions)
    chi_square = ((count - expected) ** 2 / expected).sum().item()

    logits = torch.randn(*shape, num_actions, device=device)
    log_prob, entropy = torch.empty(shape, device=device), torch.empty(shape, device=device)
    ours = sampler.prepare(logits, action, log_prob, entropy)

    def multinomial() -> torch.Tensor:
        return torch.multinomial(torch.softmax(logits, -1).view(-1, num_actions), 1)

    def multinomial_with_log_prob_and_entropy() -> None:
        log_probs = torch.log_softmax(logits, -1)
        drawn = torch.multinomial(log_probs.exp().view(-1, num_actions), 1)
        log_probs.view(-1, num_actions).gather(1, drawn)
        -(log_probs * log_probs.exp()).sum(-1)

    results = {
        "num_envs": num_envs,
        "num_agents": num_agents,
        "num_actions": num_actions,
        "sampler_us": median(time_calls(backend, ours, arguments.num_calls)),
        "multinomial_us": median(time_calls(backend, multinomial, arguments.num_calls)),
        "multinomial_with_log_prob_and_entropy_us": median(
            time_calls(backend, multinomial_with_log_prob_and_entropy, arguments.num_calls)
        ),
        "chi_square": round(chi_square, 3),
        "degrees_of_freedom": num_actions - 1,
    }
    results["times_faster"] = round(results["multinomial_us"] / results["sampler_us"], 2)
    write_report(f"sampler_{backend.name}", backend, results, arguments.out)


if __name__ == "__main__":
    main()
