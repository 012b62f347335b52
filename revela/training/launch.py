"""`python -m revela.training.launch` is torchrun, for trainings that may be interrupted.

Slurm's warning SIGUSR1 reaches the processes, they have the time to save a checkpoint, and a
failure is told in one line.
"""

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
_SECONDS_TO_STOP = 600  # after a signal: a step and a checkpoint


def main() -> None:
    """Launch processes; exit with the first failure of one."""
    logging.disable(logging.ERROR)  # what torchrun tells about failures, besides
    parser = run.get_args_parser()
    parser.set_defaults(signals_to_handle=_FORWARDED, shutdown_timeout=_SECONDS_TO_STOP)
    try:
        run.run(parser.parse_args())
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        sys.exit(_reason(error))


def _reason(error: ChildFailedError) -> str | int:
    """Return what to say of a failure; process 0 has said itself why it failed."""
    for rank, failure in error.failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # the others are sent that
            return f"revela: error: process {rank} was ended by {failure.signal_name()}"
    rank, failure = error.get_first_failure()
    if rank == 0:
        return failure.exitcode
    told = failure.message
    return told["message"] if isinstance(told, dict) else f"revela: error: process {rank} failed"


if __name__ == "__main__":
    main()
