"""`gpuctl eks-token`: a credential for kubectl and official clients, as a kubeconfig of ours asks for it. Hidden."""

import json

import click


@click.command(hidden=True)
@click.option("--name", required=True, help="Name of the Kubernetes cluster.")
@click.option("--region", required=True, help="Its region.")
@click.option("--profile", help="Profile of the SDK's configuration.")
def command(name: str, region: str, profile: str | None) -> None:
    """Print a credential for a cluster of EKS: `client.authentication.k8s.io` has its form."""
    from provision.eks import tokens
    from provision.rented.managed_kubernetes.api_server import credential

    click.echo(json.dumps(credential(*tokens.make(name, region, profile))))
