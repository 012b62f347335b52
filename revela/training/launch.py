"""`python -m revela.training.launch` runs torchrun for trainings that may be interrupted.

It forwards Slurm's warning SIGUSR1, gives the processes time to save a checkpoint, and prints the
reason of a failure in one line.
"""

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
_SECONDS_TO_STOP = 600  # time limit after a signal: for a step and a checkpoint


def main() -> None:
    """Launch processes; exit with the first failure."""
    logging.disable(logging.ERROR)  # torchrun's own failure reports
    parser = run.get_args_parser()
    parser.set_defaults(signals_to_handle=_FORWARDED, shutdown_timeout=_SECONDS_TO_STOP)
    try:
        run.run(parser.parse_args())
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        sys.exit(_reason(error))


def _reason(error: ChildFailedError) -> str | int:
    """Return which process was killed, or the message of the first that failed.

    Process 0 prints its own message; for it return the exit code.
    """
    for rank, failure in error.failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # sent to the others
            return f"revela: error: process {rank} was killed by {failure.signal_name()}"
    messages = {
        rank: failure.message["message"] if isinstance(failure.message, dict) else None
        for rank, failure in error.failures.items()
    }
    rank, failure = error.get_first_failure()
    if 0 in messages and messages[0] == messages[rank]:
        return failure.exitcode
    return messages[rank] or f"revela: error: process {rank} failed"


if __name__ == "__main__":
    main()
