"""Names and numbers on which the client and the nodes' part agree.

`train.constants` repeats the job's names. Paths are relative: NODE_FOLDER's to a node's home folder, paths of a
run's files to the run's folder.
"""

FAILED = 90
"""Exit status of a node's command that failed with a sentence on standard error."""
DISK_FULL = 91
"""Exit status of a node's command that found no space left."""
NOT_WRITABLE = 92
"""Exit status of a node's command that may not write to gpuctl's folder, or on whose file system nothing can be
written."""
PROGRAM_GONE = 93
"""Exit status of a first command whose machine had the nodes' part at its greeting, and lost it since."""

# Folders on a node.
NODE_FOLDER = ".gpuctl-node"
"""All that gpuctl keeps on a node."""
PROGRAMS = "bin"
CODE = "code"
ASIDE = ".aside-"
"""In the name of a folder next to a project's, which takes files that runs wrote there; before it the project's name.
"""
OF_BENCH = "bench-"
"""Comes after that where they were a benchmark's runs."""
ENVIRONMENTS = "envs"
RAY = "ray"
RUNS = "runs"
UV = "uv"
WHEELS = "wheels"

QUEUE = "queue"
"""A folder for each node, with a file for each entry of its queue that waits or runs."""
NOTICES = "notices"
"""A file for each notice and target, with the state of its delivery."""

# Files of the watch that ends a machine after a time without use: `provision.rented.launch.idle_watch`.
IDLE_STATE = "/run/gpuctl-idle/state.json"
IDLE_PEERS = "idle-peers.json"
"""In NODE_FOLDER: addresses of the cluster's other machines."""
IDLE_KEEP = "idle-keep.json"
"""In NODE_FOLDER: the time before which the machine does not end."""

# Files and folders of a run.
RUN_RECORD = "run.json"
"""The record of the run, for computers that did not start it."""
LOGS = "logs"
METRICS = "metrics"
RANKS = "ranks"
USAGE = "usage"
HANGS = "hangs"
"""Files of the ranks and their watch for the case that the run hangs."""
HANG_REPORT = "hangs/report.json"
"""The ranks' activity on a node at the time when a lack of progress was noticed."""
RANK_DUMP = "hangs/nccl-{}"
"""What torch writes of a rank's collectives when one of NCCL's takes longer than its timeout."""
ENDING = "ending.json"
"""The ranks and processes that a node waits for while its part in a run ends."""
STOP_GRACE = "stop-grace.json"
"""The time that an order to stop gives the ranks to save."""
NOTIFIED = "notified"
"""The claim to send the run's notices."""
ARTIFACTS = "artifacts"
CHECKPOINTS = "checkpoints"
"""Where a run finds the checkpoints of an earlier one, and leaves its own."""
OUTPUTS = "outputs"
"""The folder on this computer for files that a run wrote into the project's folder."""
CODE_RECORD = "code.json"
"""Where the project lies on the node; written as the run begins."""
PARTS = "checkpoint-parts.json"
"""In a run's folder on the client: node → names of the checkpoint files that a script's ranks wrote there."""
PLACED_CHECKPOINTS = "{}.checkpoints"
"""Where they lie, by the run's folder, until its launch makes that folder and moves them in."""
RANK_LOG = "logs/rank-{}.log"
RANK_METRICS = "metrics/rank-{}.jsonl"
RANK_RECORD = "ranks/rank-{}.json"
RANK_BEGAN = "ranks/rank-{}.began"
RANK_ENDED = "ranks/rank-{}.ended"
PLACE = "place.json"
"""Data of a launcher for ranks that others start; it may hold secrets."""

# Environment variables.
RUN_ID_VARIABLE = "GPUCTL_RUN_ID"
RUN_DIR_VARIABLE = "GPUCTL_RUN_DIR"
JOB_ID_VARIABLE = "GPUCTL_JOB_ID"
"""The id of the job's first run: restarts, resumes and elastic changes keep it."""
METRICS_VARIABLE = "GPUCTL_METRICS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
LAUNCHED_VARIABLE = "GPUCTL_LAUNCHED_AT"
"""The time at which the node began to start its ranks, unix seconds. The ranks themselves do not get it."""
HOME_OUTPUTS = "HOME"
BESIDE_PROJECT = (HOME_OUTPUTS, RUN_DIR_VARIABLE)
"""In paths of outputs the first folder outside the project: in the home folder, in the run's folder."""
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable by which `ray.init` gets the environment of a driver's workers, as Ray's own job submission sets it."""
RAY_RESULTS = "ray_results"
"""In the home folder: where Ray Train and Ray Tune keep checkpoints unless a script names another place."""
COMMIT_VARIABLE = "GPUCTL_COMMIT"
"""The commit of the sent project. Not set: it has no commit."""
DIRTY_VARIABLE = "GPUCTL_DIRTY"
"""`1`: files that were sent are not as in that commit; else `0`."""
HANG_AFTER_VARIABLE = "GPUCTL_HANG_AFTER"
"""Seconds without progress after which a run counts as hung, or HANG_OFF. Not set: by the run's own past."""
HANG_OFF = "off"
NODE_VARIABLE = "GPUCTL_NODE"
NODE_HOME_VARIABLE = "GPUCTL_NODE_HOME"

NODE_ID_LABEL = "ray.io/node-id"
"""Label of each Ray node, by Ray itself."""
NAME_LABEL = "gpuctl-node"
"""Label of a Ray node: its name, for scripts that place their tasks."""
START_LABEL = "gpuctl-start"
"""Label of a Ray node: the start of its daemons. Ray may count earlier ones as alive for a while."""

# The preflight's probe.
RENDEZVOUS_PORTS = range(20000, 30000)
"""Below the ephemeral ports of Linux (32768) and macOS (49152), so that no outgoing connection takes one."""
CONNECT_TIMEOUT_S = 4.0
"""A lost SYN is sent again after 1 and 3 s, and after some 3 s it is known that nobody has an address."""
EXCHANGE_TIMEOUT_S = 8.0
"""For an answer on a connection: a node that is busy starts its probe late."""
AT_ONCE = 512
"""Connections that are tried at the same time."""
ROUND_S = CONNECT_TIMEOUT_S + 2 * EXCHANGE_TIMEOUT_S
"""How long these take at most."""

COMPILED_CODE = {"TORCHINDUCTOR_CACHE_DIR": "torch", "TRITON_CACHE_DIR": "triton"}
"""Variable that names a folder of compiled code → the folder's name in gpuctl's environment."""
