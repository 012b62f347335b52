"""`revela pretrain` and `revela train`."""

from pathlib import Path
from typing import Annotated

import typer

from revela.config.steps import Backbone, Experiment
from revela.step import command

app = typer.Typer()

Folder = Annotated[
    Path, typer.Option("--output", help="Folder to write; a killed call resumes there.")
]


@command(app)
def pretrain(settings: Backbone, inputs: dict[str, Path], folder: Folder) -> None:
    """Pretrain a small Llama and its tokenizer on chunks."""
    from revela.training.pretraining import pretrain as run

    run(settings, [inputs[name] for name in settings.corpora], folder)


@command(app)
def train(
    settings: Experiment,
    data: Annotated[
        Path, typer.Option(exists=True, help="Batch file; for Contriever a pair file.")
    ],
    folder: Folder,
    checkpoint_minutes: Annotated[float, typer.Option(help="Between checkpoints at most.")] = 15,
    zero: Annotated[int, typer.Option(help="DeepSpeed's ZeRO stage, 2 or 3; 0 is DDP.")] = 0,
) -> None:
    """Train a retriever.

    On several GPUs: python -m revela.training.launch --standalone --nproc_per_node GPUS
    -m revela train …
    """
    from accelerate import PartialState

    from revela.training.checkpoints import Stopped
    from revela.training.trainer import train as run

    # In a process group that is not left, threads now and then abort the process as it ends.
    try:
        run(settings, data, folder, checkpoint_minutes, zero)
    except Stopped:
        PartialState().destroy_process_group()
        raise
    PartialState().destroy_process_group()
