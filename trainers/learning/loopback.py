"""Where the ranks of one machine find each other: a store that listens on the loopback interface alone.

torch's own meeting places listen on every interface, and read pickles from there.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo, rendezvous_handler_registry

ADDRESS = "127.0.0.1"
LOOPBACK = "loopback"
"""The name for torchrun."""


class Loopback(RendezvousHandler):
    """A meeting of one launcher with itself; its ranks use the same store."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((ADDRESS, 0))
            listener.listen(1024)
            port = listener.getsockname()[1]
            self._store = TCPStore(
                ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        self._place = RendezvousStoreInfo(ADDRESS, port)

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self._store, 0, 1, self._place)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return LOOPBACK

    def get_run_id(self) -> str:
        return self._run_id

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def shutdown(self) -> bool:
        self._is_closed = True
        return True


def _make(parameters: RendezvousParameters) -> Loopback:
    return Loopback(parameters.run_id)


rendezvous_handler_registry.register(LOOPBACK, _make)
