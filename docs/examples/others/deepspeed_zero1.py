"""DeepSpeed's ZeRO-1 on CPUs or GPUs: each rank keeps its part of the optimizer's state alone.

    gpuctl train --pip deepspeed deepspeed_zero1.py

The `deepspeed` launcher is not needed.
"""

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}

deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
torch.manual_seed(torch.distributed.get_rank())
loss = torch.zeros(())
for step in range(40):
    x = torch.rand(8, 1, device=engine.device)
    loss = torch.nn.functional.mse_loss(engine(x), 3 * x + 2)
    engine.backward(loss)
    engine.step()
    if step % 10 == 9 and torch.distributed.get_rank() == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
engine.save_checkpoint("checkpoints")
torch.distributed.destroy_process_group()
