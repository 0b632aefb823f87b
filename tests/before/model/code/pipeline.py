"""What is trained: put your own data, model and loss here."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline


class Spirals(Pipeline):
    def __init__(self, width=32):  # pipeline.args of conf/spirals.yaml
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
