"""The bytes of a journal file: a header, then frames. Pure functions; files are read and written elsewhere.

::

    header   "HERMESJ1" · format u16 · shard u32 · term (epoch u64, counter u64)
             · end of the previous term (lsn u64, epoch u64, counter u64, chain 16 bytes) · marker 8 bytes · CRC32 u32
    frame    marker 8 bytes · kind u32 (1 group, 2 seal, 3 next) · records u32 · first lsn u64 · payload bytes u64 · CRC32 u32
             · payload
    payload  of a group: per record its length u32 and its bytes; of the others: a text for people

A seal ends a term, a `next` ends a file whose term goes on in another one; nothing after either counts. The header of such a
file names the end of the file before as the end of "the previous term", which is then its own.

All numbers are little-endian. The CRC covers everything of its header or frame but itself. The marker is random per file, so
text that a customer sends can never look like a frame. The chain is blake2b-128 over the chain before and the payload of each
group; it starts with the chain of the previous term, or 16 zero bytes, which a `Position` shows as an empty text.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_spark.state.records import Position, TermId

FORMAT = 1
MARKER_BYTES = 8
GROUP, SEAL, NEXT = 1, 2, 3

_MAGIC = b"HERMESJ1"
_HEADER = struct.Struct("<8sHIQQQQQ16s8s")
_FRAME = struct.Struct("<8sIIQQ")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_KIND = struct.Struct("<I")
_NO_CHAIN = bytes(16)

HEADER_BYTES = _HEADER.size + _CRC.size
FRAME_HEAD_BYTES = _FRAME.size + _CRC.size


class Header(NamedTuple):
    """What a file says about itself."""

    shard: int
    term: TermId
    previous: Position
    """End of the file before, mostly of the term before; the first LSN of this file is one higher."""
    marker: bytes

    @property
    def start(self) -> Position:
        """The position before the first record of this file."""
        return Position(self.previous.lsn, self.term, self.previous.chain)


class FrameHead(NamedTuple):
    """A frame without its payload; not yet trusted."""

    kind: int
    records: int
    first_lsn: int
    payload_bytes: int
    crc: int
    crc_of_head: int
    """CRC32 over the head, to be continued with the payload."""

    def admits(self, payload: bytes) -> bool:
        """True when the frame is whole: the payload has its length and the CRC fits."""
        return len(payload) == self.payload_bytes and zlib.crc32(payload, self.crc_of_head) == self.crc


def encode_header(header: Header) -> bytes:
    """`HEADER_BYTES` bytes."""
    previous = header.previous
    data = _HEADER.pack(
        _MAGIC,
        FORMAT,
        header.shard,
        header.term.epoch,
        header.term.counter,
        previous.lsn,
        previous.term.epoch,
        previous.term.counter,
        _chain_bytes(previous.chain),
        header.marker,
    )
    return data + _CRC.pack(zlib.crc32(data))


def decode_header(data: bytes) -> Header | None:
    """The header at the start of `data`, or None if there is no whole one of this format."""
    if len(data) < HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        return None
    magic, version, shard, epoch, counter, lsn, epoch_before, counter_before, chain, marker = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT:
        return None
    previous = Position(lsn, TermId(epoch_before, counter_before), _chain_text(chain))
    return Header(shard, TermId(epoch, counter), previous, marker)


def encode_group(marker: bytes, first_lsn: int, records: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The (frame head, payload) of one group; written one after the other."""
    payload = b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record))
    return _frame_head(marker, GROUP, len(records), first_lsn, payload), payload


def encode_seal(marker: bytes, by: TermId) -> bytes:
    """The frame that ends a term; `by` is the term that comes after it."""
    payload = f"sealed by term {by.epoch}-{by.counter}".encode()
    return _frame_head(marker, SEAL, 0, 0, payload) + payload


def encode_next(marker: bytes, first_lsn: int) -> bytes:
    """The frame that ends a file whose term goes on in the file that begins with `first_lsn`."""
    payload = f"goes on with record {first_lsn}".encode()
    return _frame_head(marker, NEXT, 0, 0, payload) + payload


def decode_frame_head(data: bytes, marker: bytes) -> FrameHead | None:
    """The frame head at the start of `data`, or None if there is none of this file."""
    if len(data) < FRAME_HEAD_BYTES or not data.startswith(marker):
        return None
    _, kind, records, first_lsn, payload_bytes = _FRAME.unpack_from(data)
    if kind not in (GROUP, SEAL, NEXT):
        return None
    return FrameHead(
        kind, records, first_lsn, payload_bytes, _CRC.unpack_from(data, _FRAME.size)[0], zlib.crc32(data[: _FRAME.size])
    )


def is_cut_seal(data: bytes, marker: bytes) -> bool:
    """Whether `data`, which lies before a frame, is the beginning of a seal: shorter than it should be, not altered."""
    begin = marker + _KIND.pack(SEAL)
    if data[: len(begin)] != begin[: len(data)]:
        return False
    head = decode_frame_head(data, marker)
    return head is None or len(data) < FRAME_HEAD_BYTES + head.payload_bytes


def split_payload(payload: bytes) -> Iterator[memoryview]:
    """The records of a group whose CRC was right, in order. Raises `struct.error` when it is built wrongly all the same."""
    view, at = memoryview(payload), 0
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        yield view[at : at + length]
        at += length


def next_chain(chain: str, payload: bytes) -> str:
    """The chain (32 hex digits) after a group."""
    return hashlib.blake2b(_chain_bytes(chain) + payload, digest_size=16).hexdigest()


def _frame_head(marker: bytes, kind: int, records: int, first_lsn: int, payload: bytes) -> bytes:
    head = _FRAME.pack(marker, kind, records, first_lsn, len(payload))
    return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head)))


def _chain_bytes(chain: str) -> bytes:
    return bytes.fromhex(chain) if chain else _NO_CHAIN


def _chain_text(chain: bytes) -> str:
    return "" if chain == _NO_CHAIN else chain.hex()
