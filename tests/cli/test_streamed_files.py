"""Files of others, and files that DVC knows in an object store, as the data of true runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_object_store import Bucket, bucket
from tests.projects import REPOSITORY, Project, packages

pytestmark = [pytest.mark.long, pytest.mark.ray]

__all__ = ["bucket"]
PIPELINE = """
import torch
from torch import nn
from torch.nn import functional as F
from orchestrator import Files, Pipeline

class Rows(Pipeline):
    def __init__(self, place, kind="files"):
        self.place, self.kind = place, kind
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    def datasets(self):
        if self.kind == "litdata":
            import litdata
            return litdata.StreamingDataset(self.place), None
        if self.kind == "mds":
            from streaming import StreamingDataset
            return StreamingDataset(local=self.place, shuffle=False, batch_size=1), None
        return Files(self.place), None
    def collate(self, items):
        rows = [torch.as_tensor(each["x"], dtype=torch.float32) for each in items]
        return torch.stack(rows), torch.tensor([int(each["id"]) % 3 for each in items])
    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])
"""
CONF = """
pipeline: {target: "rows:Rows"}
run: {steps: 8}
data: {batch_size: 12, shards: 4}
optimizer: {name: sgd, lr: 0.05}
cluster: {workers: 2}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "rows.py").write_text(PIPELINE)
    (tmp_path / "conf" / "rows.yaml").write_text(CONF)
    (tmp_path / ".gitignore").write_text(".orchestrator\n/data/*\n!/data/*.dvc\n")
    made = Project(tmp_path)
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "rows")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    yield made
    assert made.leftovers() == []


def _digest(project: Project, place: str, *settings: str) -> str:
    done = project.run("conf=rows", f"pipeline.args.place={place}", f"data.inputs=[{place}]", "output=json", *settings)
    assert done.code == 0, done.err
    return str(done.report["digest"])


def test_what_other_packages_wrote_and_read_gives_the_same_bits(project: Project) -> None:
    """Also by their own data sets, which say that they are streams."""
    project.variables["PYTHONPATH"] = f"{REPOSITORY}:{packages('streams')}"
    project.variables["PYTHONWARNINGS"] = "ignore"
    digests = {}
    for kind in ("mds", "litdata"):
        made = subprocess.run(
            [sys.executable, "-c", f"from tests.data.files.foreign import write; write({kind!r}, 'data/{kind}')"],
            cwd=project.path,
            env=project.environment(),
            check=False,
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        own = ("cluster.workers=1", f"pipeline.args.kind={kind}")
        digests[f"{kind} itself"] = _digest(project, f"data/{kind}", *own)
        assert project.run(f"index=data/{kind}").code == 0
        digests[kind] = _digest(project, f"data/{kind}", "cluster.workers=3")
    assert len(set(digests.values())) == 1, digests


def test_versions_that_dvc_has_noted_are_read_after_the_bucket_has_changed(project: Project, bucket: Bucket) -> None:
    project.variables.update(bucket.access)
    bucket._call("PUT", "?versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    for file in range(6):
        rows = [{"id": row, "x": [file, row, 1, 2]} for row in range(10 + file)]
        bucket._call("PUT", f"/corpus/{file}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    dvc = [sys.executable, "-m", "dvc"]
    imports = ("import-url", "-q", "--version-aware", "--no-download", "s3://bucket/corpus", "data/corpus")
    for command in (("init", "-q"), imports):
        subprocess.run([*dvc, *command], cwd=project.path, env=project.environment(), check=True)
    indexed = project.run("index=data/corpus.dvc", "output=json")
    assert (indexed.report["files"], indexed.report["samples"]) == (6, 75)
    bucket._call("PUT", "/corpus/0.jsonl", b'{"id": 0, "x": [9, 9, 9, 9]}\n')
    listed = "data/corpus.json"
    (project.path / ".gitignore").write_text(".orchestrator\n")
    subprocess.run(["git", "add", "-A"], cwd=project.path, check=True)
    subprocess.run(["git", "commit", "-qm", "data"], cwd=project.path, check=True)
    settings = ("data.order={name: blocks, files: 2}", "data.cache_gb=0.000002", f"data.cache_folder={project.path}/.c")
    begun = project.run(
        "conf=rows", f"pipeline.args.place={listed}", f"data.inputs=[{listed}]", "output=json", *settings
    )
    assert begun.code == 0, begun.err
    assert begun.report["files_read"] == {"read": 6, "of": 6}
    card = (project.path / ".orchestrator" / begun.report["run_id"] / "card.md").read_text()
    assert "`data/corpus.json` lists 6 files of" in card
    assert "Files of the training set: 6 of 6 read." in card
    again = project.run("rerun=last", "cluster.workers=3", "topology=tree", "output=json")
    assert (again.report["verdict"], again.report["differences"]) == ("exact", []), again.err
    bucket._call("DELETE", f"/corpus/3.jsonl?versionId={_version(project.path / listed, '3.jsonl')}")
    shutil.rmtree(project.path / ".c")
    lacking = project.run("rerun=last", "output=json")
    assert lacking.code != 0
    assert re.search(r"s3://bucket/corpus/3\.jsonl cannot be read", lacking.err)
    assert "Traceback" not in lacking.err


def _version(manifest: Path, name: str) -> str:
    at = next(file[4] for file in json.loads(manifest.read_text())["files"] if file[0] == name)
    return str(at).partition("=")[2]


def test_a_reader_of_ones_own_as_the_page_has_it(project: Project) -> None:
    page = (REPOSITORY / "docs" / "streaming.md").read_text()
    code = re.findall(r"```python variants/table\.py\n(.*?)```", page, re.S)[0]
    command = re.findall(r"```bash\npython -m orchestrator index=data/tables (.*?)\n```", page)[0]
    (project.path / "variants").mkdir()
    (project.path / "variants" / "table.py").write_text(code)
    (project.path / "data" / "tables").mkdir()
    for file in range(3):
        (project.path / "data" / "tables" / f"{file}.csv").write_text("id;x\n" + f"{file};1\n" * 20)
    reader = command.removeprefix("reader='").removesuffix("'")
    indexed = project.run("index=data/tables", f"reader={reader}", "output=json")
    assert (indexed.report["reader"], indexed.report["samples"]) == ("variants.table:rows", 60)
    assert indexed.report["call"] == "Files('data/tables', reader='variants.table:rows')"
    with (project.path / "rows.py").open("a") as pipeline:
        pipeline.write("\nclass Tables(Rows):\n    def datasets(self):\n")
        pipeline.write(
            "        return Files(self.place, reader='variants.table:rows'), None\n    def collate(self, items):\n"
        )
        pipeline.write("        return super().collate([{**each, 'x': [each['x']] * 4} for each in items])\n")
    assert _digest(project, "data/tables", "pipeline.target=rows:Tables")


def test_data_come_from_a_remote_that_keeps_versions_also_if_they_were_pushed_after_the_run(
    project: Project, bucket: Bucket
) -> None:
    project.variables.update(bucket.access)
    bucket._call("PUT", "?versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    (project.path / ".gitignore").write_text(".orchestrator\n")
    (project.path / "data" / "rows").mkdir()
    for file in range(2):
        rows = [{"id": row, "x": [file, row, 1, 2]} for row in range(12)]
        (project.path / f"data/rows/{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def dvc(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "dvc", *arguments], cwd=project.path, env=project.environment(), check=True
        )

    assert project.run("index=data/rows").code == 0
    dvc("init", "-q")
    dvc("remote", "add", "-q", "-d", "far", "s3://bucket/far")
    dvc("remote", "modify", "far", "version_aware", "true")
    dvc("add", "-q", "data/rows")
    _digest(project, "data/rows")
    dvc("push", "-q")
    shutil.rmtree(project.path / ".dvc/cache")
    shutil.rmtree(project.path / "data/rows")
    again = project.run("rerun=last", "output=json")
    assert again.code == 0, again.err
    assert "data/rows: from the remote" in again.err
