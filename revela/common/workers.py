"""The processes of a pool."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Initialize a worker so that it ends with the main process, even if that is killed.

    It would wait forever, holding its GPU and the pipe in which a rule reads its output.
    """

    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
