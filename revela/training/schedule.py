"""The learning rate of a step: DeepSpeed's WarmupDecayLR, which the paper's trainings used."""

import math
from collections.abc import Iterable
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR

from revela.common.errors import RevelaError


def check_steps(steps: int, warmup_steps: float, **named: Iterable[int]) -> None:
    """Refuse a schedule that cannot do what it says.

    Args:
        steps: of the training.
        warmup_steps: steps, or a share of them.
        named: settings that name steps, each with its steps.

    Raises:
        RevelaError: the rate never reaches its value, or a step lies behind the last one.
    """
    if warmup_steps >= max(1, steps):
        raise RevelaError(
            f"warmup_steps: {warmup_steps} of {steps} steps would never reach the learning rate; "
            f"at most {steps - 1}, or a share such as 0.1; or train more steps"
        )
    for key, asked in named.items():
        if (last := max(asked, default=0)) > steps:
            raise RevelaError(f"{key}: step {last} is behind the last one, {steps}")


def warmup_decay(
    optimizer: Any, kind: Literal["logarithmic", "linear"], warmup_steps: int, steps: int
) -> LambdaLR:
    """Return a schedule that rises over `warmup_steps` and falls to zero at `steps`, in a line.

    With W warm-up steps of T the rate of step k < W is ln(k + 1) / ln W or k / W of the full one,
    and that of step k ≥ W is (T − k) / (T − W) of it. A logarithmic W of 1 is 2, as DeepSpeed has
    no fewer.

    DeepSpeed leaves `warmup_type` at `log` where a configuration does not name it, as the authors'
    does not: half the rate is reached after a tenth of 100 steps. Its engine applies each rate one
    step later than this schedule, which a run of 10,000 steps does not notice.
    """
    warmup = max(2, warmup_steps) if kind == "logarithmic" and warmup_steps else warmup_steps

    def share(step: int) -> float:
        if step >= warmup:
            return max(0.0, (steps - step) / max(1, steps - warmup))
        return math.log(step + 1) / math.log(warmup) if kind == "logarithmic" else step / warmup

    return LambdaLR(optimizer, share)
