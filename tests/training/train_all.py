"""Train one experiment after the other in the processes that a launcher has started."""

import json
import sys
from pathlib import Path

from revela.attention import losses
from revela.config.steps import Experiment
from revela.training.trainer import train

for job in json.loads(Path(sys.argv[1]).read_text()):
    losses._LOGITS_AT_A_TIME = job["logits_at_a_time"]
    settings = Experiment.model_validate(job["settings"])
    train(settings, Path(job["data"]), Path(job["output"]), zero_stage=job["zero"])
