"""A process without a network: Python's socket calls are recorded and refused, and the kernel ends it for any other.

An audit hook sees what Python code does. Native code (Chroma's engine, onnxruntime, the tokenizers) does not pass
through Python: there a seccomp filter, which needs no privileges, ends the process with SIGSYS at the system call.
Both hold for the threads that are started later, the filter for child processes too, and neither can be undone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
from typing import Any

attempts: list[str] = []
"""What Python code tried, in order."""

# Not bind: urllib3 binds a port of ::1 when it is imported, to see whether there is IPv6, and never listens on it.
CALLS = "connect getaddrinfo gethostbyname gethostbyaddr getnameinfo sendto sendmsg"
OUTWARD = frozenset(f"socket.{call}" for call in CALLS.split())

SYSTEM_CALLS = {
    # What seccomp calls the architecture; connect, listen, sendmsg, sendmmsg, io_uring_setup; sendto.
    "x86_64": (0xC000003E, (42, 50, 46, 307, 425), 44),
    "aarch64": (0xC00000B7, (203, 201, 211, 269, 425), 206),
}

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
NUMBER, ARCHITECTURE, DESTINATION = 0, 4, 16 + 4 * 8
SET_SECCOMP, MODE_FILTER, NO_NEW_PRIVILEGES = 22, 2, 38

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if true, how many if false, value."""


def refuse_python() -> None:
    """Record and refuse what Python code does with addresses."""
    sys.addaudithook(_record)


def refuse_native() -> None:
    """Let the kernel end the process at any call that would reach out or listen.

    Raises:
        OSError: the kernel does not take the filter, or this is no system whose calls are known here.
    """
    if sys.platform != "linux" or platform.machine() not in SYSTEM_CALLS:
        raise OSError(f"no system calls known for {sys.platform} on {platform.machine()}")
    instructions = filter_program(*SYSTEM_CALLS[platform.machine()])
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    program = ctypes.create_string_buffer(struct.pack("HP", len(instructions), ctypes.addressof(code)))
    control = ctypes.CDLL(None, use_errno=True).prctl
    control.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for arguments in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SET_SECCOMP, MODE_FILTER, ctypes.addressof(program), 0, 0)):
        if control(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_program(architecture: int, refused: tuple[int, ...], sendto: int) -> list[Instruction]:
    """End the process for each refused call, for a sendto that has an address, and for another architecture's calls."""
    end = (RETURN, 0, 0, KILL_PROCESS)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, architecture),
        end,
        (LOAD, 0, 0, NUMBER),
        *(instruction for number in refused for instruction in ((JUMP_IF_EQUAL, 0, 1, number), end)),
        (JUMP_IF_EQUAL, 0, 6, sendto),
        *(part for half in (0, 4) for part in ((LOAD, 0, 0, DESTINATION + half), (JUMP_IF_EQUAL, 1, 0, 0), end)),
        (RETURN, 0, 0, ALLOW),
    ]


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event in OUTWARD:
        attempts.append(f"{event} {[given for given in arguments if not isinstance(given, socket.socket)]}")
        raise OSError(f"refused: {event}")
