"""Length-prefixed messages over a stream socket."""

from __future__ import annotations

import socket
import struct

START = struct.Struct(
    "<dI"
)  # to a zygote: seconds after which the judge is killed, packages to preload as bits
_HEADER = struct.Struct("<I")


class Closed(Exception):
    """The other side is gone."""


class TooLarge(Exception):
    """A message above the limit was announced."""


def send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(_HEADER.pack(len(data)) + data)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Never reads beyond ``size``: what follows belongs to another process."""
    if size <= 65536:
        data = _receive(sock, size)
        if len(data) == size:
            return data
        parts, missing = [data], size - len(data)
    else:
        parts, missing = [], size
    while missing:
        data = _receive(sock, min(missing, 1 << 20))
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _receive(sock: socket.socket, size: int) -> bytes:
    try:
        data = sock.recv(size)
    except ConnectionResetError as error:
        raise Closed from error
    if not data and size:
        raise Closed
    return data


def receive(sock: socket.socket, limit: int = 1 << 31) -> bytes:
    (size,) = _HEADER.unpack(receive_exactly(sock, _HEADER.size))
    if size > limit:
        raise TooLarge(f"{size} bytes, at most {limit} are allowed")
    return receive_exactly(sock, size)
