"""The files of the project that `new NAME` makes: path -> text, NAME in both being its name."""

from __future__ import annotations

_PREPARE = '''\
"""Makes the data: points on two spiral arms. `dvc repro` runs it, see dvc.yaml."""

import math
import random
from pathlib import Path

random.seed(0)
Path("data").mkdir(exist_ok=True)
with open("data/points.csv", "w") as file:
    for i in range(600):
        arm, radius = i % 2, random.random()
        angle = 3 * radius + math.pi * arm + random.gauss(0, 0.1)
        file.write(f"{radius * math.cos(angle)},{radius * math.sin(angle)},{arm}\\n")
'''
_PIPELINE = '''\
"""What is trained: put your own data, model and loss here."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline


class Spirals(Pipeline):
    def __init__(self, width=32):  # pipeline.args of conf/NAME.yaml
        self.width = width

    def model(self):
        first, second = nn.Linear(2, self.width), nn.Linear(self.width, self.width)
        return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(self.width, 2))

    def datasets(self):
        with open("data/points.csv") as file:
            rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
        inputs, labels = rows[:, :2], rows[:, 2].long()
        return TensorDataset(inputs[:500], labels[:500]), TensorDataset(inputs[500:], labels[500:])

    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def metrics(self, model, batch):
        inputs, labels = batch
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}
'''
_CONF = """\
run: {name: NAME, epochs: 20, seed: 0}
pipeline: {target: "pipeline:Spirals", args: {width: 32}}
# A shard is a part of each batch, computed by itself: 4 shards make 4 passes, and run on 1 to 4 workers with the same bits.
# Fewer shards are faster on few workers; another number of shards is another result.
data: {shards: 4, batch_size: 50, inputs: [data/points.csv]}
cluster: {workers: 2}
optimizer: {name: adam, lr: 0.01}
evaluation: {every: 50}
"""
_DVC = """\
stages:
  prepare:
    cmd: python prepare.py
    deps: [prepare.py]
    outs: [data/points.csv]
"""
_TEST = '''\
"""Run it by `python -m unittest`, or by pytest."""

import unittest

import orchestrator


class Trains(unittest.TestCase):
    def test_it_learns_and_no_number_of_workers_changes_a_bit(self):
        one = orchestrator.launch("conf/NAME.yaml", "cluster.workers=1")
        self.assertGreater(one.metrics["validation/accuracy"], 0.9)
        self.assertEqual(one.digest, orchestrator.launch("conf/NAME.yaml", "cluster.workers=3").digest)


if __name__ == "__main__":
    unittest.main()
'''
_README = """\
# NAME

    dvc repro                            # makes data/points.csv by prepare.py
    python -m orchestrator conf=NAME     # trains what conf/NAME.yaml says
    python -m orchestrator runs          # lists runs; `ui` shows them in a browser
    python -m orchestrator rerun=last    # repeats the newest one exactly
    python -m unittest
"""
_GITIGNORE = """\
.orchestrator
__pycache__/
.venv
.ipynb_checkpoints/
lightning_logs
mlflow.db
mlruns
"""
FILES = {
    "prepare.py": _PREPARE,
    "pipeline.py": _PIPELINE,
    "conf/NAME.yaml": _CONF,
    "dvc.yaml": _DVC,
    "test_training.py": _TEST,
    "README.md": _README,
    ".gitignore": _GITIGNORE,
}
