"""Whether the Hugging Face hub answers: asked once and briefly, since `datasets` tries for half a minute."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread

ANSWER_S = 4.0
"""How long the hub is waited for; a name server that does not answer takes longer than any request."""


@contextmanager
def asking_hub() -> Iterator[str | None]:
    """Yields why the hub is not asked, or None if it answers. Until the end of the block `datasets` keeps to that.

    Data sets that are in its cache are found there either way.
    """
    import datasets
    from huggingface_hub import constants

    known = (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    reason = "HF_HUB_OFFLINE is set, so it was not asked: unset it where it can be reached" if any(known) else _asked()
    if reason is not None:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = known


def _asked() -> str | None:
    answers: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=lambda: answers.put(_answer()), daemon=True).start()
    try:
        return answers.get(timeout=ANSWER_S)
    except Empty:
        return f"no answer within {ANSWER_S:g} s: is there a network, or does it need a proxy (HTTPS_PROXY)?"


def _answer() -> str | None:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWER_S)
    except Exception as error:  # of many kinds, from the HTTP client and from proxies
        return f"{constants.ENDPOINT}: {type(error).__name__}: {str(error).strip():.200}"
    return None
