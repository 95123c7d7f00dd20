"""Payloads as messages of Flower's Fleet API. Imports Flower, and no torch.

A small payload travels within the message: one request brings it, one returns the reply. The
content of a large one is cut into pieces, which travel one by one as objects of the Fleet API.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.recorddict_pb2 import RecordDict
from google.protobuf.message import DecodeError

from fedpbc.deployment.protocol.messages import MessageError, Payload
from fedpbc.deployment.protocol.records import from_records, to_records

__all__ = ["SERVER", "joined", "most_pieces", "pack", "piece_name", "pieces_of", "unpack"]

SERVER = 1
"""The server's own number among nodes, as in Flower."""
LARGEST_INLINE = 2**22
"""Bytes of the vectors of a message that travels whole."""
PIECE_SIZE = 2**24


def pack(payload: Payload, metadata: Metadata) -> tuple[Message, list[bytes]]:
    """Convert a payload to a message, and the pieces of its content if it is large."""
    content = recorddict_to_proto(to_records(payload))
    if payload.vector_bytes <= LARGEST_INLINE:
        return Message(metadata=metadata, content=content), []
    serialized = content.SerializeToString()
    pieces = [serialized[i : i + PIECE_SIZE] for i in range(0, len(serialized), PIECE_SIZE)]
    return Message(metadata=metadata), pieces


def unpack(message: Message) -> Payload:
    """Convert a message that travelled whole; a MessageError if it is malformed."""
    try:
        return from_records(recorddict_from_proto(message.content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MessageError(f"unreadable content ({type(error).__name__})") from None


def joined(pieces: Sequence[bytes]) -> Payload:
    """Convert the pieces of a content back; a MessageError if they are malformed."""
    content = RecordDict()
    try:
        content.ParseFromString(b"".join(pieces))
    except DecodeError:
        raise MessageError("unreadable content") from None
    return unpack(Message(content=content))


def most_pieces(size: int) -> int:
    """Into how many pieces a content of so many bytes is cut."""
    return -(-size // PIECE_SIZE)


def piece_name(piece: bytes) -> str:
    """The id of a piece: a checksum, so that whoever fetches it can verify it."""
    return sha256(piece).hexdigest()


def pieces_of(message: str, pieces: Sequence[bytes]) -> ObjectTree:
    """The tree of objects that announces the pieces of a message."""
    children = [ObjectTree(object_id=piece_name(piece)) for piece in pieces]
    return ObjectTree(object_id=message, children=children)
