"""The files of a cluster's folder with which its machines are reached."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from inventories.disk import files


@dataclass(frozen=True)
class ClusterFiles:
    """Paths in the folder of a cluster, which may not exist yet."""

    path: Path

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.path.name

    key_path = files.Inside("keys", "id_ed25519")
    """The cluster's private key."""
    known_hosts_path = files.Inside("known_hosts")
    """The pinned host keys of the cluster's machines."""
    ssh_config_path = files.Inside("ssh_config")
    """The configuration with which plain `ssh` reaches the machines."""
    kubeconfig_path = files.Inside("kubeconfig")
    """The kubeconfig of the cluster's own Kubernetes, for clusters whose provider made it."""
    ray_token_path = files.Inside("keys", "ray_token")
    """The token of the cluster's Ray, once it was started."""

    def ray_token(self) -> str:
        """The token that a client of the cluster's Ray needs, made the first time. Only under the lock."""
        if not self.ray_token_path.exists():
            self.make()
            files.write_atomic(self.ray_token_path, secrets.token_hex(32).encode())
        return self.ray_token_path.read_text()

    def make(self) -> None:
        """Make the folder and its `keys/`. Idempotent."""
        files.private_dir(self.path)
        files.private_dir(self.key_path.parent)
