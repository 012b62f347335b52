"""A real Slurm on this host: one controller, virtual nodes, GPUs that are links to /dev/null.

Nothing outside its folder is read or written: its own munge key and socket, ports of its own. No
accounting, no cgroups, no systemd.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONFIG = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
MinJobAge=3600
JobRequeue=0
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
    " RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN\n"
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def slurm(
    folder: Path, nodes: int = 2, gpus: int = 4, cpus: int = 64, memory: int = 512_000
) -> Iterator[dict[str, str]]:
    """Run a Slurm in a folder and yield the environment in which its commands find it.

    Each node pretends to have so many CPUs and GPUs and so much memory (MB).
    """
    folder.mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    names = [f"gpu{n}" for n in range(1, nodes + 1)]
    for name in ("state", "dev", *(f"spool.{name}" for name in names)):
        (folder / name).mkdir()
    for n in range(gpus):
        (folder / f"dev/gpu{n}").symlink_to("/dev/null")
    config = CONFIG.format(folder=folder, host=host, port=free_port())
    for name in names:
        config += NODE.format(
            name=name, host=host, port=free_port(), cpus=cpus, memory=memory, gpus=gpus
        )
    config += "PartitionName=fake Nodes=ALL Default=NO MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(config)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/dev/gpu[0-{gpus - 1}]\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    commands = [
        [
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")),
            f"--socket={folder}/munge.socket",
        ],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-N", name] for name in names),
    ]
    with contextlib.ExitStack() as daemons:
        for command in commands:
            program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            assert program, f"{command[0]} is not installed"
            log = daemons.enter_context((folder / f"{command[0]}.out").open("a"))
            daemon = subprocess.Popen(
                [program, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            daemons.callback(daemon.wait)
            daemons.callback(daemon.terminate)
        wait_for(lambda: _idle(environment) == nodes, 60, f"{nodes} idle nodes, see {folder}")
        try:
            yield environment
        finally:
            subprocess.run(["scancel", "--user=root"], env=environment, check=False)
            wait_for(lambda: not jobs(environment), 60, "the end of all jobs")


def wait_for(happened: object, seconds: float, what: str) -> None:
    """Wait until `happened()`."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def output(environment: dict[str, str], *command: str) -> str:
    """Return what a command of Slurm prints; nothing while it cannot be reached."""
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.stdout


def jobs(environment: dict[str, str]) -> list[str]:
    """Return the ids of the jobs that wait or run."""
    return output(environment, "squeue", "--noheader", "--format=%i").split()


def _idle(environment: dict[str, str]) -> int:
    return len(output(environment, "sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())


def record(environment: dict[str, str], job: str) -> dict[str, str]:
    """Return what Slurm knows about a job: state, times, geometry, GPUs."""
    told = output(environment, "scontrol", "show", "job", "--details", job)
    return dict(item.split("=", 1) for item in told.split() if "=" in item)
