"""The learning rate of a step: DeepSpeed's WarmupDecayLR, which the paper's trainings used."""

import math
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR


def warmup_decay(
    optimizer: Any, kind: Literal["logarithmic", "linear"], warmup_steps: int, steps: int
) -> LambdaLR:
    """Return a schedule that rises over `warmup_steps` and decays linearly to zero at `steps`.

    With W of T steps for warm-up, the factor of step k < W is ln(k + 1) / ln W or k / W, and that
    of step k ≥ W is (T − k) / (T − W). A logarithmic W is at least 2, as in DeepSpeed.

    DeepSpeed's default of `warmup_type`, which the authors' configuration does not set, is `log`:
    half the rate is reached after a tenth of 100 steps. Its engine applies each rate one step later
    than this schedule, which is negligible in a run of 10,000 steps.
    """
    warmup = max(2, warmup_steps) if kind == "logarithmic" and warmup_steps else warmup_steps

    def share(step: int) -> float:
        if step >= warmup:
            return max(0.0, (steps - step) / max(1, steps - warmup))
        return math.log(step + 1) / math.log(warmup) if kind == "logarithmic" else step / warmup

    return LambdaLR(optimizer, share)
