"""The ranks of Ray's workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank, and where it is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int

    def variables(self, master: str) -> dict[str, str]:
        """Return the environment variables that torchrun sets. `master`: address and port of rank 0."""
        address, _, port = master.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }


def assign_ranks(workers: Sequence[tuple[str, int]], layout: Mapping[str, int]) -> list[Rank]:
    """Give each worker its rank: by node, then by its first GPU, as torchrun numbers them.

    `workers`: node and first GPU (0 without GPUs) of each; `layout`: workers of each node, in the nodes' order.
    Raises ValueError if Ray started them otherwise.
    """
    counts = {node: sum(node == at for at, _ in workers) for node in layout}
    if counts != layout or len(workers) != sum(layout.values()):
        raise ValueError(f"Ray started {counts} workers on the nodes, where {dict(layout)} were asked for")
    nodes = list(layout)
    order = sorted(range(len(workers)), key=lambda at: (nodes.index(workers[at][0]), workers[at][1], at))
    ranks: dict[int, Rank] = {}
    for rank, worker in enumerate(order):
        node = workers[worker][0]
        ranks[worker] = Rank(
            rank=rank,
            world_size=len(workers),
            local_rank=sum(ranks[before].node_rank == nodes.index(node) for before in order[:rank]),
            local_world_size=layout[node],
            node_rank=nodes.index(node),
        )
    return [ranks[worker] for worker in range(len(workers))]


def parse_layout(text: str) -> dict[str, int]:
    """Read how many ranks each node has from `1afe…:2,07c2…:2`: nodes by Ray's ids."""
    return {node: int(count) for node, _, count in (part.rpartition(":") for part in text.split(","))}
