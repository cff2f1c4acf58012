"""PyTorch's DataLoader with four workers, whose batches of MIB each go through /dev/shm.

usage: dataloader.py BATCHES MIB
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples of a given size, made when they are asked for."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._count, self._size_bytes = count, size_bytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self._size_bytes,), index % 100, dtype=torch.uint8)


def main() -> None:
    """Take every batch and keep it, as a slow training step with a long queue does."""
    count, mib = int(sys.argv[1]), int(sys.argv[2])
    loader = DataLoader(Samples(count, mib << 20), batch_size=1, num_workers=4, prefetch_factor=4)
    kept = []
    try:
        for batch in loader:
            kept.append(batch)
    except RuntimeError as error:
        print(f"RuntimeError: {error}", file=sys.stderr, flush=True)
    print("done", len(kept), flush=True)
    time.sleep(1000)


main()
