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

    @property
    def key_path(self) -> Path:
        """The cluster's private key."""
        return self.path / "keys" / "id_ed25519"

    @property
    def known_hosts_path(self) -> Path:
        """The pinned host keys of the cluster's machines."""
        return self.path / "known_hosts"

    @property
    def ssh_config_path(self) -> Path:
        """The configuration with which plain `ssh` reaches the machines."""
        return self.path / "ssh_config"

    @property
    def kubeconfig_path(self) -> Path:
        """Return the kubeconfig of the cluster's own Kubernetes, for clusters whose provider made it."""
        return self.path / "kubeconfig"

    @property
    def ray_token_path(self) -> Path:
        """The token of the cluster's Ray, once it was started."""
        return self.path / "keys" / "ray_token"

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
