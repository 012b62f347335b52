"""The learning rate, compared with DeepSpeed's scheduler."""

import pytest
import torch

from revela.training.schedule import warmup_decay


def rates(scheduler, optimizer, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("warmup", "steps"), [(100, 1000), (4, 32), (2, 5), (10, 10)])
@pytest.mark.parametrize(("kind", "warmup_type"), [("logarithmic", "log"), ("linear", "linear")])
def test_rates_equal_deepspeeds(kind, warmup_type, warmup, steps):
    lr_schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    first, second = (torch.optim.SGD([torch.zeros(1)], lr=1e-4) for _ in range(2))
    ours = rates(warmup_decay(first, kind, warmup, steps), first, steps)
    theirs = lr_schedules.WarmupDecayLR(
        second, steps, warmup_max_lr=1e-4, warmup_num_steps=warmup, warmup_type=warmup_type
    )
    # Its engine calls it after the optimizer: its first value is the rate of the second step.
    assert rates(theirs, second, steps + 1)[1:] == pytest.approx(ours, abs=1e-12)


@pytest.mark.parametrize("kind", ["logarithmic", "linear"])
def test_a_warmup_of_one_step_or_none(kind):
    for warmup in (0, 1):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        found = rates(warmup_decay(optimizer, kind, warmup, 10), optimizer, 10)
        length = 2 if warmup and kind == "logarithmic" else warmup
        assert found[2:] == pytest.approx([(10 - n) / (10 - length) for n in range(2, 10)])
        assert max(found) <= 1
