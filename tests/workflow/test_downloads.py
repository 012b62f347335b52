"""The hub: one rule downloads data sets, others need no net, and all say which commit they read."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from revela.retriever.source import Source
from tests.conftest import TEXTS
from tests.rehearsal.hub import environment, serving
from tests.workflow.test_workflow import ROOT, snakemake

HERE = ("--snakefile", str(ROOT / "Snakefile"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = f"""
corpora:
  posts: {{source: hub, dataset: some/posts, revision: {COMMIT}}}
  manuals: {{source: hub, dataset: some/manuals, file: manuals.json}}
batches:
  ready: {{hub: some/batches, batch_size: 2}}
"""
PINNED = f"""
corpora:
  notes: {{source: files, path: notes.jsonl}}
pairs:
  notes: {{corpora: [notes], num_pairs: 8, negatives: 1}}
experiments:
  pinned:
    objective: {{name: contriever}}
    data: notes
    retriever: some/model@{COMMIT}
    lora: {{rank: 2}}
    batches_per_step: 2
    batches_per_device: 2
    warmup_steps: 1
"""
CHUNKS = ["results/chunks/posts.parquet", "results/chunks/manuals.parquet"]
DOWNLOADS = [f"results/downloads/{name}.json" for name in ("corpora/posts", "batches/ready")]


@pytest.fixture(scope="module")
def hub(tmp_path_factory, backbone) -> Path:
    """A hub of 3,000 posts, one of which is a broken line, manuals in an array, a model."""
    folder = tmp_path_factory.mktemp("hub")
    for name in ("posts", "manuals", "batches"):
        (folder / "datasets/some" / name).mkdir(parents=True)
    rows = [{"text": f"{TEXTS[n % 5]} Post {n}."} for n in range(3000)]
    lines = [json.dumps(row) + "\n" for row in rows]
    lines[1499] = lines[1499][:30] + "\n"
    (folder / "datasets/some/posts/posts.jsonl").write_text("".join(lines))
    (folder / "datasets/some/manuals/manuals.json").write_text(json.dumps(rows[:40], indent=1))
    (folder / "datasets/some/batches/train.jsonl").write_text('["a", "b"]\n["c", "d"]\n')
    shutil.copytree(backbone, folder / "models/some/model")
    return folder


def test_what_is_downloaded_over_a_broken_connection_is_read_without_net(hub, tmp_path):
    """A broken line is skipped, with its place and the commit in the manifest."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (hub / "datasets/some/posts/.breaks").touch()
    with serving(hub) as address:
        online = environment(address, tmp_path / "cache")
        manuals = "results/downloads/corpora/manuals.json"
        result = snakemake(tmp_path, *HERE, *DOWNLOADS, manuals, **online)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not (hub / "datasets/some/posts/.breaks").exists()
    assert "Trying to resume" in (tmp_path / "results/logs/download/corpora.posts.log").read_text()

    offline = online | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    result = snakemake(tmp_path, *HERE, *CHUNKS, "results/batches/ready.parquet", **offline)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads((tmp_path / "results/chunks/posts.manifest.json").read_text())
    assert found["commits"] == {"some/posts": COMMIT}
    assert (found["documents"], found["skipped"]["count"]) == (2999, 1)
    (broken,) = found["skipped"]["examples"]
    assert broken.startswith("some/posts/posts.jsonl:1500: broken JSON: ")
    documents = pq.read_table(tmp_path / CHUNKS[0])["document"].to_pylist()
    assert documents[-1] == "some/posts/posts.jsonl:3000"
    ready = pq.read_table(tmp_path / "results/batches/ready.parquet")
    assert ready["texts"].to_pylist() == [["a", "b"], ["c", "d"]]
    shutil.rmtree(tmp_path / "cache")
    gone = snakemake(tmp_path, *HERE, "--force", CHUNKS[0], **offline)
    assert gone.returncode == 1
    hint = "remove results/downloads/corpora/posts.json to download it again"
    assert hint in gone.stdout + gone.stderr


def test_a_training_says_at_which_commit_it_read_its_backbone(hub, tmp_path):
    (tmp_path / "config.yaml").write_text(PINNED)
    rows = [{"text": f"{TEXTS[n % 5]} Note {n}."} for n in range(20)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(hub) as address:
        online = environment(address, tmp_path / "cache")
        result = snakemake(tmp_path, *HERE, "results/models/pinned/retriever", **online)
    assert result.returncode == 0, result.stdout + result.stderr
    trained = tmp_path / "results/models/pinned"
    assert json.loads((trained / "manifest.json").read_text())["commits"] == {"some/model": COMMIT}
    base = Source(str(trained / "retriever")).base
    assert (base.name, base.revision) == ("some/model", COMMIT)
