"""A Lightning model, as its own guide writes one, on as many nodes as there are.

    gpuctl train --pip lightning lightning_two_nodes.py

`num_nodes` and `devices` are all that a Lightning script needs for several nodes. They have to be those that the
ranks were started with, or Lightning waits for ranks that never come.
"""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

RANKS_OF_A_NODE = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
NODES = int(os.environ.get("WORLD_SIZE", "1")) // RANKS_OF_A_NODE


class Line(lightning.LightningModule):
    """y = 3x + 2, from points with a little noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        """Compute the loss, and tell it."""
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Choose the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
x = torch.rand(256, 1)
points = TensorDataset(x, 3 * x + 2 + 0.01 * torch.randn(256, 1))
trainer = lightning.Trainer(
    accelerator="auto",
    devices=RANKS_OF_A_NODE,
    num_nodes=NODES,
    strategy="ddp",
    max_epochs=5,
    logger=lightning.pytorch.loggers.CSVLogger("logs"),
    log_every_n_steps=1,
    enable_progress_bar=False,
)
trainer.fit(Line(), DataLoader(points, batch_size=16))
print(f"ranks {trainer.world_size}, loss {trainer.callback_metrics['loss']:.4f}")
