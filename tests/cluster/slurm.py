"""A real Slurm on this host: one controller, virtual nodes, GPUs that are links to /dev/null.

It has its own folder, ports and munge key; /etc/slurm has links to its configuration while it runs.
A node is a PID namespace, which can be lost with all of its processes. There are no accounting, no
cgroups and no systemd.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONFIG = Path(__file__).with_name("slurm.conf").read_text()
NODES, GPUS = ("gpu1", "gpu2"), 4  # on each node
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64"
    f" RealMemory=512000 Gres=gpu:{GPUS} State=UNKNOWN\n"
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Callable[[str], contextlib.AbstractContextManager]]:
    """Run Slurm in a folder; yield `lost(node)`, a context in which the node is lost."""
    folder.mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "dev", *(f"spool.{name}" for name in NODES)):
        (folder / name).mkdir()
    for n in range(GPUS):
        (folder / f"dev/gpu{n}").symlink_to("/dev/null")
    config = CONFIG.format(folder=folder, host=host, port=free_port())
    for name in NODES:
        config += NODE.format(name=name, host=host, port=free_port())
    config += "PartitionName=fake Nodes=ALL Default=NO MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(config)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/dev/gpu[0-{GPUS - 1}]\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with contextlib.ExitStack() as daemons:

        def start(program: str, *arguments: str) -> subprocess.Popen:
            found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            assert found, f"{program} is not installed"
            log = daemons.enter_context((folder / f"{program}.out").open("a"))
            daemon = subprocess.Popen(
                [found, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            daemons.callback(daemon.wait)
            daemons.callback(daemon.kill)
            return daemon

        def start_node(name: str) -> subprocess.Popen:
            namespace = ("--pid", "--fork", "--kill-child", "--mount-proc")
            return start("unshare", *namespace, "slurmd", "-D", "-N", name)

        @contextlib.contextmanager
        def lost(name: str) -> Iterator[None]:
            running[name].kill()  # and everything in its namespace
            running[name].wait()
            # The controller would notice only after SlurmdTimeout, 300 seconds.
            down = ("State=DOWN", "Reason=lost")
            subprocess.run(["scontrol", "update", f"NodeName={name}", *down], check=True)
            yield
            running[name] = start_node(name)
            wait_for(_all_available, 60, f"all nodes, see {folder}")

        # Snakemake's job steps lose SLURM_CONF and find the file only here.
        for name in ("slurm.conf", "gres.conf"):
            link = Path("/etc/slurm") / name
            assert not link.exists(), f"{link}: a Slurm is configured here already"
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(folder / name)
            daemons.callback(link.unlink)
        start(
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")),
            f"--socket={folder}/munge.socket",
        )
        start("slurmctld", "-D", "-c")
        running = {name: start_node(name) for name in NODES}
        wait_for(_all_available, 60, f"all nodes, see {folder}")
        try:
            yield lost
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)
            wait_for(lambda: not jobs(), 60, "the end of all jobs")


def wait_for(happened: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until `happened()`."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def output(*command: str) -> str:
    """Return the output of a Slurm command, empty while Slurm is unreachable."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout


def jobs() -> list[str]:
    """Return the ids of the waiting and running jobs."""
    states = "--states=pending,running,suspended,completing"
    return output("squeue", "--noheader", states, "--format=%i").split()


def _all_available() -> bool:
    return set(NODES) == {*output("sinfo", "-h", "-N", "-t", "idle,mixed", "-o", "%N").split()}


def record(job: str) -> dict[str, str]:
    """Return Slurm's record of a job: state, times, geometry, GPUs."""
    printed = output("scontrol", "show", "job", "--details", job)
    return dict(item.split("=", 1) for item in printed.split() if "=" in item)
