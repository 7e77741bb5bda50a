"""Where gpuctl keeps what it has on this node."""

import os
from pathlib import Path

from remote.shared.constants import NODE_FOLDER

NODE_HOME = Path(os.path.expanduser("~")) / NODE_FOLDER
