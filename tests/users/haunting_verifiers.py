"""Verifiers that rate well, and leave something behind that harms what comes after."""

import ctypes
import functools
import json
import re
import threading
import time
from pathlib import Path


def _hog(path: str) -> None:
    time.sleep(0.3)
    Path(path).touch()
    re.match(r"(a+)+$", "a" * 45 + "b")  # keeps the interpreter for years


def gives_up_on_a_thread(completion: str, row: dict[str, str]) -> float:
    """As verifiers do that have a deadline of their own. The completion is a file that appears with the harm."""
    thread = threading.Thread(target=_hog, args=(completion,), daemon=True)
    thread.start()
    thread.join(0.1)
    return 1.0


class Late(BaseException):
    pass


def _shoot(thread: int, path: str) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Late))
    Path(path).touch()


def is_interrupted_too_late(completion: str, row: dict[str, str]) -> float:
    """As time limits do that raise in the verifier's thread, here when it has long returned."""
    threading.Timer(1.0, _shoot, (threading.get_ident(), completion)).start()
    return 1.0


def replaces_functions(completion: str, row: dict[str, str]) -> dict[str, float]:
    """As orjson's dumps, which returns bytes; as freezegun, which stops the clock; and letters beyond ASCII."""
    dumps = functools.partial(json.dumps, ensure_ascii=False)
    json.dumps = lambda value, **options: dumps(value, **options).encode()  # type: ignore[assignment]
    json.loads = lambda *_, **__: None
    time.monotonic = lambda: 0.0
    time.sleep = lambda seconds: None
    return {"länge": 0.5, "recht": 0.5}
