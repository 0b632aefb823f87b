"""The wire format."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.transports import frames
from orchestrator.transports.base import ProtocolError, Tag
from orchestrator.transports.frames import Frame

TAG = Tag(1, 2, 3, 4, 5)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**64 - 1)
tags = st.builds(Tag, int64, int64, int32, int32, int32)
kinds = st.sampled_from([frames.INLINE, frames.REGION, frames.FAREWELL])
dtypes = st.sampled_from(frames.DTYPES)


@given(st.builds(Frame, kinds, tags, dtypes, natural, int64, st.integers(0, 2**16 - 1), natural))
def test_a_header_says_what_was_meant(frame: Frame) -> None:
    header = frames.encode(frame)
    assert len(header) == frames.HEADER_BYTES
    assert frames.decode(header) == frame


@pytest.mark.parametrize("place", [0, 4, 5], ids=["magic", "kind", "dtype"])
def test_a_damaged_header_is_a_fault(place: int) -> None:
    header = bytearray(frames.encode(Frame(frames.INLINE, TAG)))
    header[place] = 99
    with pytest.raises(ProtocolError, match="no frame starts with"):
        frames.decode(header)


def test_a_dtype_without_a_code_is_named() -> None:
    with pytest.raises(TypeError, match=r"torch.complex64 cannot be sent; these can: torch.float32, "):
        frames.encode(Frame(frames.INLINE, TAG, torch.complex64))


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(struct.error):
        frames.encode(Frame(frames.INLINE, TAG._replace(chunk=2**31)))


def test_raw_bytes_are_the_tensors_own() -> None:
    tensor = torch.zeros(2, dtype=torch.int32)
    frames.raw(tensor)[0:2] = b"\x01\x01"
    assert tensor.tolist() == [257, 0]
    assert len(frames.raw(torch.empty(0))) == 0
