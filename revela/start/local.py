"""Checks the local files that a configuration names, and those of finished trainings."""

from pathlib import Path

from revela.common.errors import RevelaError, errors_at
from revela.common.outputs import read_json
from revela.config import Config, paths
from revela.config.evaluation import FolderBenchmark
from revela.config.names import ModelRef
from revela.evaluation.collections import collection_files
from revela.retriever.source import Source, model_files
from revela.text.files import corpus_files


def check_local(config: Config) -> None:
    """Check that the files and folders named by the entries exist.

    Raises:
        RevelaError: one is missing or incomplete; the message begins with the key.
    """
    if (results := Path("results")).exists() and not results.is_dir():
        raise RevelaError(f"{results}: is a file, but results need a folder with this name")
    for name, corpus in config.corpora.items():
        with errors_at(f"corpora.{name}"):
            for file in corpus_files(corpus):
                if {"{", "}"} & set(str(file)):
                    raise RevelaError(f"{file}: rename it: braces are Snakemake wildcards")
    for name, entry in config.batches.items():
        if entry.file and not Path(entry.file).is_file():
            raise RevelaError(f"batches.{name}.file: {entry.file}: no such file")
        if entry.file and entry.file.endswith(".parquet"):
            raise RevelaError(f"batches.{name}.file: {entry.file}: must be JSON lines, not Parquet")
    for name, suite in config.benchmarks.items():
        if isinstance(suite, FolderBenchmark):
            for task in suite.tasks:
                with errors_at(f"benchmarks.{name}"):
                    collection_files(Path(suite.path, task), suite.split)
    for section in ("experiments", "models"):
        for name, entry in getattr(config, section).items():
            folders = config.local_models(section, name)
            for key, used in entry:
                if not isinstance(used, ModelRef) or Path(used) not in folders:
                    continue
                with errors_at(f"{section}.{name}.{key}"):
                    source = Source(used)
                    model_files(Path(source.name))
                    if key != "language_model":
                        source.check_is_encoder()
                    elif not source.base or source.base.folder:  # else its base is on the hub
                        source.check_is_language_model()


def check_trained(config: Config) -> None:
    """Check that all files of finished trainings exist; Snakemake checks their folders only.

    Raises:
        RevelaError: one is missing.
    """
    for name in config.experiments:
        retriever = Path(paths.made("experiments", name))
        manifest = retriever.with_name("manifest.json")
        done = retriever.is_dir() and manifest.exists()
        for written in read_json(manifest).get("files", []) if done else ():
            if not (file := retriever.parent / written).exists():
                advice = f"restore it, or remove {retriever} to train again"
                raise RevelaError(f"{file}: missing: {advice}")
