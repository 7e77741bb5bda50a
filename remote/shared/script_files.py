"""Files in which libraries of scripts keep their metrics: by their names, in the order in which they count."""

import re

FILES = 4
"""Of a kind, the largest: others are not read."""
NAMES = {
    "TensorBoard": re.compile(r"events\.out\.tfevents\.[^/]*$"),
    "Lightning": re.compile(r"(?:^|/)metrics\.csv$"),
    "Trainer": re.compile(r"(?:^|/)trainer_state\.json$"),
}
"""Hugging Face's Trainer keeps its state in each checkpoint."""
MAX_STATE_BYTES = 64 * 1000**2
"""Of the Trainer's state."""
RECORD_HEAD, RECORD_TAIL = 12, 4
"""Bytes around a record of TensorBoard: its length with a checksum, and its own checksum."""
