"""The wire format."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.transports import frames
from orchestrator.comm.transports.base import ProtocolError, Tag
from orchestrator.comm.transports.frames import Frame
from orchestrator.numerics import lossless_packing

TAG = Tag(1, 2, 3, 4, 5, 6)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**64 - 1)
tags = st.builds(Tag, int64, int64, int32, int32, int32, int32)
kinds = st.sampled_from([frames.INLINE, frames.REGION, frames.FAREWELL])
dtypes = st.sampled_from(frames.DTYPES)


@given(st.builds(Frame, kinds, tags, dtypes, natural, int64, st.integers(0, 2**16 - 1), natural, st.just(0)))
def test_a_header_says_what_was_meant(frame: Frame) -> None:
    header = frames.encode(frame)
    assert len(header) == frames.HEADER_BYTES
    assert frames.decode(header) == frame


@given(tags, st.sampled_from(lossless_packing.DTYPES), st.integers(0, 2**50), int64, st.data())
def test_a_narrow_frame_says_how_many_bytes_follow(
    tag: Tag, dtype: torch.dtype, elements: int, note: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(lossless_packing.least_bytes(elements), lossless_packing.most_bytes(elements)))
    frame = Frame(frames.PACKED, tag, dtype, elements, note, packed_bytes=size)
    assert frames.decode(frames.encode(frame)) == frame


@pytest.mark.parametrize(
    ("dtype", "elements", "size"),
    [(torch.float32, 512, 512), (torch.float64, 513, 15), (torch.float64, 512, 8 * 512 + 9), (torch.int64, 2**62, 512)],
)
def test_more_or_fewer_bytes_than_so_many_numbers_can_take_are_a_fault(
    dtype: torch.dtype, elements: int, size: int
) -> None:
    """Before any memory is taken for them."""
    with pytest.raises(ProtocolError, match=f"{elements} x {dtype} are never narrowed to {size} bytes"):
        frames.decode(frames.encode(Frame(frames.PACKED, TAG, dtype, elements, packed_bytes=size)))


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
