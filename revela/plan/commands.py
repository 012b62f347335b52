"""`revela preflight` and `revela status`."""

from pathlib import Path
from typing import Annotated

import typer

from revela.common.errors import RevelaError
from revela.config.file import load_config

app = typer.Typer()


@app.command()
def preflight(
    config: Path,
    targets: Annotated[list[str] | None, typer.Argument(help="Files to make; else all.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of a training; else those here.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="GB of one GPU; else as here.")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition of trainings.")] = None,
    tflops: Annotated[float | None, typer.Option(help="TFLOP/s of a GPU; else 35.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write as well.")] = None,
) -> None:
    """Look at what targets need before hours are spent: models, data, memory, disk, tools."""
    from revela.plan.estimates import PAPER_TFLOPS
    from revela.plan.machine import this_machine
    from revela.plan.preflight import run

    machine = this_machine(gpus, gpu_memory, partition)
    run(load_config(config), targets or [], machine, tflops or PAPER_TFLOPS, output)


@app.command()
def status(results: Annotated[Path, typer.Argument()] = Path("results")) -> None:
    """Show what is running and what is done, from files alone."""
    from revela.plan.status import show

    if not results.is_dir():
        raise RevelaError(f"{results}: no such folder")
    show(results)
