"""Resources of a cluster on EKS beside those of EC2: how they are listed and deleted."""
