"""Rehearse the paper's plan: run jobs of `config.yaml`, in miniature and offline.

By default one job represents each loader, objective, model and task; `--all` runs every job. All
files are in `.rehearsal/`: the local hub, its clients' cache, the config, the results. It is
recreated each time, unless `--go-on` is given.
"""

import argparse
import contextlib
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from revela.config import Config, load_config, paths
from revela.config.evaluation import ApiModel, LanguageModel
from tests.rehearsal import contents, hub, warm
from tests.rehearsal.miniature import write_miniature

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".rehearsal"
LOG = FOLDER / "snakemake.log"
SETS = ("corpora", "batches", "pairs")  # all of them are made: each takes seconds
SHOWN = ["beir", "bright", "contriever_summary", "lm_size_coir"]


def main() -> None:
    """Make the hub's contents and the config, run the workflow, report what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--go-on", action="store_true", help="keep what an earlier run made")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="run every job")
    parser.add_argument("targets", nargs="*", help="files to make in place of the sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    start = time.monotonic()
    if not options.go_on:
        prepare()
    if options.all:
        targets = ["all"]
    else:
        targets = options.targets or representatives(load_config(FOLDER / "config.yaml"))
    with hub.serving(FOLDER / "hub") as address, warm_python(surroundings(address)) as environment:
        jobs, failed = run(options.cores, targets, environment)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = spent.ru_utime + spent.ru_stime
    report(jobs, time.monotonic() - start, processor, options.all)
    if failed:
        sys.exit(f"rehearsal: not all jobs were done; see {LOG.relative_to(ROOT)}")


def prepare() -> None:
    """Make the rehearsal's folder: contents of the hub, config, and links to its inputs."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for shared in ("bench", "data", "revela"):
        (FOLDER / shared).symlink_to(ROOT / shared)
    config = FOLDER / "config.yaml"
    write_miniature(ROOT / "config.yaml", config)
    contents.make(load_config(config), FOLDER / "hub")


def representatives(config: Config) -> list[str]:
    """Return all data, and targets that run each loader, objective, model and task once."""
    kinds = {}
    for name, experiment in config.experiments.items():
        data = getattr(config, experiment.data.section)[experiment.data]
        loader = next(key for key in ("corpora", "hub", "sample_from") if getattr(data, key, None))
        kinds.setdefault((experiment.objective.name, experiment.retriever, loader), name)
    others = [
        name
        for name, model in config.models.items()
        if not isinstance(model, ApiModel | LanguageModel)
    ]
    models, tasks = [*kinds.values(), *others], config.retrieval_tasks
    pairs = zip(itertools.cycle(models), itertools.cycle(tasks), strict=False)
    pairs = itertools.islice(pairs, max(len(models), len(tasks)))
    tables = sorted(config.tables, key=lambda name: len(config.table(name).tasks()))
    other_tasks = next(n for n in tables if set(config.table(n).tasks()) - set(tasks))
    drawn = [name for name, one in config.figures.items() if one.kind in ("dynamics", "step-cost")]
    return [
        *(paths.made(section, n) for section in SETS for n in getattr(config, section)),
        *(paths.scores(*pair) for pair in pairs),
        *(paths.made("tables", name) for name in (tables[0], other_tasks, *config.listings)),
        *(f"results/figures/{name}.png" for name in drawn),
    ]


def surroundings(address: str) -> dict[str, str]:
    """Return an environment with the local hub only, without the user's caches."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    return own | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(FOLDER / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NLTK_DATA": str(FOLDER / "cache" / "nltk"),
        # Requests to other machines go to the local hub, which rejects them.
        "http_proxy": address,
        "https_proxy": address,
        "no_proxy": "127.0.0.1",
        "REVELA_PYTHON": str(FOLDER / "bin/python"),
    }


@contextlib.contextmanager
def warm_python(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Make an interpreter with loaded libraries answer `python -m revela` within the block."""
    address = FOLDER / "warm"
    address.unlink(missing_ok=True)
    warm.write_client(FOLDER / "bin", address)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rehearsal.warm", str(address)],
        env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,  # an interrupt from the keyboard reaches the jobs by their clients
    )
    try:
        while not address.exists():
            if process.poll() is not None:
                sys.exit("rehearsal: the libraries cannot be imported")
            time.sleep(0.1)
        yield environment
    finally:
        process.terminate()
        process.wait()


def run(cores: int, targets: list[str], environment: dict[str, str]) -> tuple[Counter[str], bool]:
    """Run the workflow; return the finished jobs by rule, and whether any job did not finish."""
    command = ["snakemake", f"--cores={cores}", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(FOLDER), "--scheduler=greedy", "--nolock"]
    # After each job that it starts, Snakemake 9 rechecks all ready jobs, then again at an interval
    # of a second by default, which would soon take most of its time.
    command += ["--max-jobs-per-timespan=10000/20s", "--scheduler-subsample=20"]
    command += ["--rerun-incomplete", "--keep-going", "--show-failed-logs"]
    command += ["--quiet", "rules", "reason", "host", "--"]
    jobs: Counter[str] = Counter()
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, *targets],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            log.write(line)
            if finished := re.search(r"Finished jobid: \d+ \(Rule: (\w+)\)", line):
                jobs[finished[1]] += 1
            elif re.search(r"Error in (file|rule)|revela: error|\b\d*0 of \d+ steps", line):
                print(line, end="", flush=True)
    return jobs, process.returncode != 0


def report(jobs: Counter[str], seconds: float, processor: float, everything: bool) -> None:
    """Print jobs by rule and the time; with `--all`, also rules without a job and some tables."""
    for rule, count in jobs.most_common():
        print(f"{rule:10}{count:5}")
    print(f"{'total':10}{jobs.total():5} jobs in {seconds / 60:.1f} minutes")
    print(f"{processor / 60:.1f} minutes of processor time")
    if not everything:
        return
    workflow = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    if idle := set(re.findall(r"^rule (\w+):", workflow, re.MULTILINE)) - set(jobs):
        print(f"rules without a job in config.yaml: {', '.join(sorted(idle))}")
    tables = [FOLDER / f"results/tables/{name}.csv" for name in SHOWN]
    made = [str(path) for path in tables if path.exists()]
    if made:
        subprocess.run(["revela", "show", *made], check=True)


if __name__ == "__main__":
    main()
