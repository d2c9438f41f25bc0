"""A curriculum: from some iteration on, a right answer pays more."""

from trainers.callbacks import Callback


class Harder(Callback):
    def __init__(self, start: int = 3, pay: float = 2.0):
        self.start, self.pay = start, pay
        self.num_raised = 0

    def on_iteration(self, trainer):
        if trainer.iteration == self.start:
            trainer.env.set("pay", self.pay)
            self.num_raised += 1

    def on_report(self, trainer, metrics):
        return {"curriculum/raised": self.num_raised}

    def state(self):
        return self.num_raised

    def restore(self, state):
        self.num_raised = state
