"""Rehearse the paper: `python -m tests.rehearsal` runs every job of `config.yaml` in miniature.

Everything stands in `.rehearsal/`: the local hub, its cache, the config, the results. It starts
afresh each time, unless `--go-on` is given.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from revela.config import load_config
from tests.rehearsal import contents, hub, warm
from tests.rehearsal.miniature import write_miniature

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".rehearsal"
SHOWN = ["beir", "contriever_summary", "lm_size_coir_vs_paper"]


def main() -> None:
    """Make the hub's contents and the config, run the workflow, say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--go-on", action="store_true", help="keep what an earlier run made")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("targets", nargs="*", help="all if not given")
    options = parser.parse_args()
    start = time.monotonic()
    prepare(options.go_on)
    with hub.serving(FOLDER / "hub") as address, warm_python(surroundings(address)) as environment:
        result = subprocess.run(
            snakemake(f"--cores={options.cores}", *options.targets), env=environment
        )
    jobs = Counter(path.parent.name for path in (FOLDER / "results/logs").glob("*/*.log"))
    for rule, count in sorted(jobs.items()):
        print(f"{rule:10} {count:5}")
    print(f"{'total':10} {jobs.total():5} jobs in {(time.monotonic() - start) / 60:.1f} minutes")
    sys.exit(result.returncode)


def prepare(go_on: bool) -> None:
    """Make the rehearsal's folder: contents of the hub, config, and the checkout's own files."""
    if go_on and FOLDER.exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_miniature(ROOT / "config.yaml", FOLDER / "config.yaml")
    for shared in ("revela", "data"):
        (FOLDER / shared).symlink_to(ROOT / shared)
    os.chdir(FOLDER)
    contents.make(load_config(Path("config.yaml")), FOLDER / "hub")


def surroundings(address: str) -> dict[str, str]:
    """Return an environment that knows no hub but the local one, and no cache of the user's."""
    return os.environ | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(FOLDER / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NLTK_DATA": str(FOLDER / "cache" / "nltk"),
        # Whatever asks for something beyond this machine asks the local hub, which refuses.
        "http_proxy": address,
        "https_proxy": address,
        "no_proxy": "127.0.0.1,localhost",
        "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


@contextlib.contextmanager
def warm_python(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run the interpreter that has the libraries loaded while the block runs."""
    address = FOLDER / "warm"
    address.unlink(missing_ok=True)
    warm.write_client(FOLDER / "bin", address)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rehearsal.warm", str(address)],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,  # an interrupt from the keyboard reaches the children by clients
    )
    try:
        while not address.exists():
            if process.poll() is not None:
                sys.exit("the interpreter with the libraries loaded did not start")
            time.sleep(0.1)
        yield environment
    finally:
        process.terminate()
        process.wait()


def snakemake(*arguments: str) -> list[str]:
    """Return the command that runs the workflow in the rehearsal's folder."""
    command = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(FOLDER)]
    flags = ["--quiet", "rules", "reason", "host", "--rerun-incomplete", "--show-failed-logs"]
    flags += ["--keep-going", "--scheduler=greedy", "--nolock"]
    return [*command, *flags, *arguments]


if __name__ == "__main__":
    main()
