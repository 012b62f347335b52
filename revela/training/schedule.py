"""The learning rate of a step: DeepSpeed's WarmupDecayLR, which the paper's trainings used."""

import math
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR


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
