"""Teach a small policy to add digits by reinforcement: three groups of workers, and one program that drives them.

python examples/grpo_toy.py               # everything in this process
python examples/grpo_toy.py simulate      # the groups in this process, taking turns: for a debugger
python examples/grpo_toy.py ray           # the groups on a Ray cluster, where sampling and training overlap

A policy group trains, a sampler group answers questions such as "3+4" with a copy of the policy's weights, and reward
workers without a GPU read the answers and score them. The policy is improved as in GRPO: each question is answered
several times, and an answer counts by how much better it is than the others to the same question. A batch is sampled
while the one before trains, so with weights that are one step old. Whatever the mode, the numbers are the same: what
is random depends on the question and the step, and not on the worker that happens to draw it.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch import nn

import turnout.infra as infra
from turnout.infra import DeviceGroup, DeviceMesh, LazyCollect, on_group

ANSWERS_PER_QUESTION = 8
QUESTIONS_PER_STEP = 32
LARGEST = 4  # digit in a question
SEED = 42

Weights = dict[str, Any]  # Any: tensors, or arrays
Sample = dict[str, Any]  # Any: a question, the text of an answer, and when the two were put together
Span = tuple[float, float]


def new_policy() -> nn.Module:
    """Two digits in, and the odds of each sum out; float64, so that sums in another order make no difference."""
    torch.manual_seed(SEED)
    num_digits = LARGEST + 1
    network = nn.Sequential(nn.Linear(2 * num_digits, 64), nn.Tanh(), nn.Linear(64, 2 * LARGEST + 1))
    return network.double()


def encoded(questions: list[str]) -> torch.Tensor:
    """Questions as the network takes them: the two digits, each one of several."""
    digits = torch.tensor([[int(each) for each in question.split("+")] for question in questions])
    return nn.functional.one_hot(digits, LARGEST + 1).flatten(1).double()


@infra.remote_class()
class Policy:
    """Computes gradients on its rows, and takes the step that all its ranks agree on."""

    def __init__(self, lr: float, device_mesh: DeviceMesh | None = None) -> None:
        self.network = new_policy()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=lr)

    @infra.remote_function(dispatch="slice_dp", collect="mean", uneven="strict")
    def gradients(self, groups: list[list[Sample]]) -> Weights:
        """Of the loss over some questions with all their answers; the mean over ranks is that over all questions."""
        samples = [sample for group in groups for sample in group]
        rewards = torch.tensor([[sample["reward"] for sample in group] for group in groups], dtype=torch.float64)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        odds = self.network(encoded([sample["question"] for sample in samples])).log_softmax(1)
        chosen = odds[torch.arange(len(samples)), [int(sample["answer"]) for sample in samples]]
        self.network.zero_grad()
        (-(advantages.flatten() * chosen).mean()).backward()
        return {name: each.grad.clone() for name, each in self.network.named_parameters() if each.grad is not None}

    @infra.remote_function(dispatch="all")
    def step(self, gradients: Weights) -> Span:
        """Take one step, the same on every rank; returns when it was taken."""
        started = time.time()
        for name, parameter in self.network.named_parameters():
            parameter.grad = torch.as_tensor(gradients[name]).clone()
        self.optimizer.step()
        return started, time.time()

    @infra.remote_function(execute="first", collect="first")
    def weights(self) -> Weights:
        """As they are now."""
        return {name: each.detach().clone() for name, each in self.network.state_dict().items()}


@infra.remote_class()
class Sampler:
    """Answers questions with the weights that it was given last."""

    def __init__(self, device_mesh: DeviceMesh | None = None) -> None:
        self.network = new_policy()

    @infra.remote_function(dispatch="all")
    def load(self, weights: Weights) -> None:
        """Take the policy's weights."""
        self.network.load_state_dict({name: torch.as_tensor(each).clone() for name, each in weights.items()})

    @infra.remote_function(dispatch={"questions": "slice_dp"}, collect="flatten")
    @torch.no_grad()
    def answer(self, questions: list[tuple[str, int]], seconds: float = 0.0) -> list[list[Sample]]:
        """Several answers to each question; each comes with a seed of its own."""
        started = time.time()
        time.sleep(seconds)  # as a large model would take
        odds = self.network(encoded([question for question, _ in questions])).softmax(1)
        answered: list[list[Sample]] = []
        for (question, seed), each in zip(questions, odds, strict=True):
            own = torch.Generator().manual_seed(seed)
            answers = torch.multinomial(each, ANSWERS_PER_QUESTION, replacement=True, generator=own).tolist()
            answered.append([{"question": question, "answer": str(answer)} for answer in answers])
        for group in answered:
            group[0]["span"] = (started, time.time())
        return answered


@infra.remote_class()
class Rewarder:
    """Reads an answer as the text that it is: no GPU, and no torch."""

    @infra.remote_function(dispatch="slice_dp", collect="flatten", uneven="allow")
    def score(self, groups: list[list[Sample]]) -> list[list[Sample]]:
        """The same samples with their rewards: 1 for the right sum, and a little for one that is close."""
        for group in groups:
            for sample in group:
                first, second = sample["question"].split("+")
                distance = abs(int(first) + int(second) - int(sample["answer"]))
                sample["reward"] = 1.0 if distance == 0 else max(0.0, 0.5 - 0.1 * distance)
        return groups


def questions_of(step: int) -> list[tuple[str, int]]:
    """The questions of a step, each with the seed of its answers."""
    own = torch.Generator().manual_seed(SEED + step)
    digits = torch.randint(0, LARGEST + 1, (QUESTIONS_PER_STEP, 2), generator=own).tolist()
    return [(f"{a}+{b}", SEED + step * QUESTIONS_PER_STEP + number) for number, (a, b) in enumerate(digits)]


def train(num_steps: int = 60, seconds: float = 0.0) -> tuple[list[float], float]:
    """Run the program; the mode was settled before.

    Args:
        num_steps: of the policy.
        seconds: that sampling takes longer, to see that training goes on meanwhile.

    Returns:
        The mean reward of each step, and the share of the steps that were taken while the next batch was sampled.
    """
    policy = on_group(Policy, "policy")(lr=0.02)
    sampler = on_group(Sampler, "sampler")()
    rewarder = on_group(Rewarder, "rewards")()

    rewards, steps, samplings = [], list[Span](), list[Span]()
    coming: LazyCollect[list[list[Sample]]] = sampler.answer(questions_of(0), seconds)
    for step in range(num_steps):
        scored = rewarder.score(coming.later)  # goes from worker to worker, as all that is not called here
        coming = sampler.answer(questions_of(step + 1), seconds)  # is computed while the policy trains
        taken = policy.step(policy.gradients(scored.later).later)
        sampler.load(policy.weights().later)
        samples = scored()
        rewards.append(
            sum(sample["reward"] for group in samples for sample in group) / (len(samples) * len(samples[0]))
        )
        samplings.append(samples[0][0]["span"])
        steps.append(taken()[0])
    pairs = list(zip(steps, samplings[1:], strict=False))
    overlapping = [began < ended and start < stop for (began, stop), (start, ended) in pairs]
    return rewards, sum(overlapping) / max(1, len(overlapping))


def main(mode: str = "local", num_steps: int = 60, seconds: float = 0.0) -> list[float]:
    """Train in a mode, and show what came of it."""
    torch.set_num_threads(1)  # which is quickest for a network as small as this
    if mode == "ray" and "RAY_ADDRESS" not in os.environ:
        import ray

        if not ray.is_initialized():  # a cluster of this machine, which says that it has a CPU for each worker
            ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    groups = [DeviceGroup("policy", 2), DeviceGroup("sampler", 2), DeviceGroup("rewards", 2)]
    modes: dict[str, dict[str, Any]] = {
        "local": {"mode": "local"},
        "simulate": {"mode": "local", "simulate": True, "groups": groups},
        "ray": {"mode": "ray", "groups": groups},
    }
    with infra.initialize(**modes[mode], seed=SEED):
        started = time.monotonic()
        rewards, overlap = train(num_steps, seconds)
        took_s = time.monotonic() - started
        print(infra.get_device_placement())
    for step in range(0, num_steps, max(1, num_steps // 6)):
        print(f"step {step:3}: reward {rewards[step]:.4f}")
    print(f"{mode}: reward {rewards[0]:.6f} to {rewards[-1]:.6f} in {num_steps} steps and {took_s:.1f} s")
    print(f"{overlap:.0%} of the steps were taken while the next batch was sampled")
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="?", default="local", choices=["local", "simulate", "ray"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sampling-seconds", type=float, default=0.0, help="longer, to see training go on meanwhile")
    options = parser.parse_args()
    main(options.mode, options.steps, options.sampling_seconds)
