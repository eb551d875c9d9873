"""Paths that are no plain file, and files that no editor wrote: each command must refuse them, and not wait or fill
the memory."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.mutate import bomb, merge_bomb


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has at most 107 bytes
        listening.bind(path.name)
        os.chdir(here)
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


def _device(name: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.symlink_to(f"/dev/{name}")
        return path

    return make


def _of(content: bytes, times: int = 1) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        with path.open("wb") as file:
            for _ in range(times):
                file.write(content)
        return path

    return make


MEGABYTE = b"x" * 1_000_000
PLACES: dict[str, Callable[[Path], Path]] = {
    "missing": lambda path: path,
    "FIFO": _fifo,
    "socket": _socket,
    "folder": _folder,
    "symlink to itself": _loop,
    "/dev/zero": _device("zero"),
    "/dev/null": _device("null"),
    "empty": _of(b""),
    "NUL bytes": _of(b"\x00", 1000),
    "a line of 100 MB": _of(MEGABYTE, 100),
    "billion laughs": _of(bomb()),
    "merged laughs": _of(merge_bomb()),
    "100,000 brackets": _of(b"[", 100_000),
    "100,000 keys": _of(b"".join(b"key%d: 1\n" % number for number in range(100_000))),
    "UTF-16": _of("grpo: {max_num_steps: 1}\n".encode("utf-16")),
    "a binary": _of(bytes(range(256)), 40),
}
