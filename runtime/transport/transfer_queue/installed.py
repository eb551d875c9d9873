"""Whether TransferQueue is installed."""

from importlib.util import find_spec


class TransferQueueMissing(RuntimeError):
    """TransferQueue is not installed in this environment."""

    def __init__(self) -> None:
        super().__init__(
            "data_plane.name is transfer_queue, and TransferQueue is not installed in this environment; "
            "in your clone: pip install -c constraints.txt -e '.[train,transfer-queue]'; or set data_plane.name: "
            "object_store"
        )


def check_transfer_queue_installed() -> None:
    """Raise TransferQueueMissing if it is not installed. Does not import it, which would import torch."""
    if find_spec("transfer_queue") is None:
        raise TransferQueueMissing
