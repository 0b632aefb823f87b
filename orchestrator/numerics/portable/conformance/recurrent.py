"""Recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from orchestrator.numerics.portable.conformance.drawing import Case


class _Packed(nn.Module):
    """An LSTM over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 20, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, torch.tensor([9, 6, 2]), batch_first=True)
        found: Tensor = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]
        return found


CASES: dict[str, Case] = {
    "rnn tanh": lambda d: d.both(d.module(nn.RNN(12, 20, batch_first=True)), d(4, 9, 12)),
    "rnn relu": lambda d: d.both(d.module(nn.RNN(12, 20, nonlinearity="relu")), d(9, 4, 12)),
    "gru": lambda d: d.both(d.module(nn.GRU(12, 20, 2, batch_first=True)), d(4, 9, 12)),
    "gru both ways": lambda d: d.both(d.module(nn.GRU(12, 20, bidirectional=True)), d(9, 4, 12)),
    "gru cell": lambda d: d.both(d.module(nn.GRUCell(12, 20)), d(5, 12), d(5, 20)),
    "lstm": lambda d: d.both(d.module(nn.LSTM(20, 24, batch_first=True)), d(8, 12, 20)),
    "lstm two layers": lambda d: d.both(d.module(nn.LSTM(20, 48, 2)), d(12, 8, 20)),
    "lstm both ways": lambda d: d.both(d.module(nn.LSTM(12, 20, bidirectional=True)), d(9, 4, 12)),
    "lstm projected": lambda d: d.both(d.module(nn.LSTM(12, 20, proj_size=8)), d(9, 4, 12)),
    "lstm without bias": lambda d: d.both(d.module(nn.LSTM(12, 20, bias=False)), d(9, 4, 12)),
    "lstm packed": lambda d: d.both(d.module(_Packed()), d(3, 9, 12)),
    "lstm cell": lambda d: d.both(d.module(nn.LSTMCell(12, 20)), d(5, 12)),
    "rnn cell": lambda d: d.both(d.module(nn.RNNCell(12, 20)), d(5, 12), d(5, 20)),
}
