"""Files of data sets on the hub: one step downloads them, all others read them from its cache."""

from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, check_name
from revela.common.hub import explained, repository_files
from revela.common.outputs import read_json, write_json
from revela.config.text import HubFiles


def files_on_hub(wanted: HubFiles) -> tuple[str, dict[str, int]]:
    """Return the commit of a data set, and its files in order with their sizes in bytes.

    Raises:
        RevelaError: the hub cannot be reached or denies access, or there is no such split or file.
    """
    import datasets

    name = wanted.dataset
    commit, sizes = repository_files("data set", name, wanted.revision)
    with explained("data set", name):
        names = [wanted.file] if wanted.file else []
        if not names:
            builder = datasets.load_dataset_builder(name, wanted.subset, revision=commit)
            splits: Any = builder.config.data_files or {}
            check_name(f"data set {name!r}", "split", wanted.split, [*splits])
            start = f"hf://datasets/{name}@{commit}/"
            names = [file.removeprefix(start) for file in splits[wanted.split]]
        for file in names:
            check_name(f"data set {name!r}", "file", file, sizes)
    return commit, {file: sizes[file] for file in names}


def download(wanted: HubFiles, output: Path) -> dict[str, str]:
    """Download files into the hub's cache, list them in a JSON file, and return their commit."""
    from huggingface_hub import hf_hub_download

    name = wanted.dataset
    commit, files = files_on_hub(wanted)
    with explained("data set", name):
        for file in files:
            hf_hub_download(name, file, repo_type="dataset", revision=commit)
    write_json(output, {"dataset": name, "commit": commit, "files": list(files)})
    return {name: commit}


def downloaded(listing: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the commit of a listed data set, and its files in the hub's cache by their names."""
    from huggingface_hub import try_to_load_from_cache

    listed = read_json(listing)
    name, commit, files = listed["dataset"], listed["commit"], {}
    for file in listed["files"]:
        path = try_to_load_from_cache(name, file, repo_type="dataset", revision=commit)
        if not isinstance(path, str):
            advice = f"remove {listing} to download it again"
            raise RevelaError(f"{name}/{file}: is no longer in the hub's cache; {advice}")
        files[f"{name}/{file}"] = Path(path)
    return {name: commit}, files
