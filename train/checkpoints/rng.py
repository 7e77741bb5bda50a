"""The state of this rank's random number generators."""

import torch
from torch import Tensor


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the CPU's generator, and of the GPU's where the device is one."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Continue with the random numbers that came after `rng_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
