"""Where the ranks of one machine find each other: a store that listens on the loopback interface alone.

torch's own meeting places listen on every interface, and read pickles from there.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

ADDRESS = "127.0.0.1"
LOOPBACK = "loopback"
"""The name for torchrun."""


class Loopback(StaticTCPRendezvous):
    """A meeting of one launcher with itself; its ranks use the same store."""

    def __init__(self, run_id: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((ADDRESS, 0))
            listener.listen(1024)
            port = listener.getsockname()[1]
            self._on_loopback = TCPStore(
                ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        super().__init__(ADDRESS, port, rank=0, world_size=1, run_id=run_id, timeout=0)

    def get_backend(self) -> str:
        return LOOPBACK

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self._on_loopback, 0, 1, RendezvousStoreInfo(ADDRESS, self.master_port))


def _make(parameters: RendezvousParameters) -> Loopback:
    return Loopback(parameters.run_id)


rendezvous_handler_registry.register(LOOPBACK, _make)
