"""Messages between the pool and its processes: 4 bytes of length, then pickle to a process and JSON from it.

Messages from a process are JSON, not pickle, because users' code runs there. It may also replace functions of modules,
such as json.dumps; what is bound here keeps the original.
"""

import asyncio
import json
import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
_encode = json.JSONEncoder().encode
_load = pickle.loads


def pack_case(number: int, case: tuple[Any, ...]) -> bytes:
    """A case to rate, as sent to a process."""
    return _framed(pickle.dumps((number, case)))


def pack_message(message: dict[str, Any]) -> bytes:
    """A message, as sent by a process. Raises TypeError, ValueError or RecursionError for what JSON cannot hold."""
    return _framed(_encode(message).encode("ascii"))


def receive_case(connection: socket.socket) -> tuple[int, tuple[Any, ...]]:
    """The next case. Raises EOFError if the pool is gone."""
    number, case = _load(_exactly(connection, _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]))
    return number, case


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message of a process. Raises IncompleteReadError or OSError if the process is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: dict[str, Any] = json.loads(await reader.readexactly(length))
    return message


def _framed(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
