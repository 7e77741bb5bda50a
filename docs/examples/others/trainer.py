"""Hugging Face's Trainer with a tiny language model of random weights: nothing is downloaded.

    gpuctl train --pip accelerate --pip transformers trainer.py

Neither `accelerate launch` nor a configuration of it is needed.
"""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
LENGTH = 32


class Text(Dataset[dict[str, torch.Tensor]]):
    """Pieces of a text, a byte a token."""

    def __init__(self, text: str) -> None:
        tokens = torch.tensor(list(text.encode()))
        self.pieces = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="trainer",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=2,
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        # Without this, and without a GPU, each rank would train alone, and say nothing.
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Text(TEXT),
)
done = trainer.train()
print(f"ranks {trainer.args.world_size}, loss {done.training_loss:.4f}")
