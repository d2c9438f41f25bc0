"""The replay's law at a small size: each part holds, and says so when it does not."""

import pytest
import replay_law
import torch

pytestmark = pytest.mark.usefixtures("built_for_speed")  # 10^8 draws

def test_every_law_holds_of_few_items(run):
    code, results = run(replay_law, "--device", "cpu", "--smaller", 1000)
    assert code == 0 and list(results) == list(replay_law.LAWS)
    assert results["chi_square"]["degrees_of_freedom"] > 200 and results["zero"]["draws"] >= 100_000


@pytest.mark.parametrize("law", ["chi_square", "zero", "uses", "sums"])
def test_a_law_that_is_broken_is_found(law, run, monkeypatch):
    """Leaves that the sums do not know of; items of 0 that the sums count; a use that was not counted."""

    class Broken(replay_law.Law):
        def count(self, number: int) -> torch.Tensor:
            found = super().count(number)
            if law == "chi_square":
                self.tree.leaves[32:64] += self.tree.leaves.max() // 2
            elif law == "zero":
                self.tree.leaves[32:64] = 0
            self.tree.uses[:1] += law == "uses"
            return found

        def set(self, index: torch.Tensor, priority: torch.Tensor) -> None:
            super().set(index, priority)
            self.tree.nodes[0] += law == "sums"

    monkeypatch.setattr(replay_law, "Law", Broken)
    code, results = run(replay_law, "--device", "cpu", "--smaller", 1000, "--laws", law)
    assert code == 1 and not results[law]["holds"]


@pytest.mark.timeout(1500)
def test_nothing_of_priority_zero_and_nothing_too_often_is_drawn_at_full_size(run):
    """10^8 draws beside as many items of 0; 10^6 of items that may be drawn 32 times each."""
    code, results = run(replay_law, "--device", "cpu", "--laws", "zero", "uses")
    assert code == 0 and results["zero"]["draws"] >= 10**8 and results["uses"]["draws"] >= 10**6
