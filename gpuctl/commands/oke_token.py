"""`gpuctl oke-token`: a credential for kubectl and official clients, as a kubeconfig of ours asks for it. Hidden."""

import json

import click


@click.command(hidden=True)
@click.option("--cluster-id", required=True, help="OCID of the Kubernetes cluster.")
@click.option("--region", required=True, help="Its region.")
@click.option("--profile", help="Profile of the SDK's configuration.")
def command(cluster_id: str, region: str, profile: str | None) -> None:
    """Print a credential for a cluster of OKE: `client.authentication.k8s.io` has its form."""
    from provision.oci import credentials
    from provision.oke import tokens
    from provision.records import Target
    from provision.rented.managed_kubernetes.api_server import credential

    found = credentials.find(Target(provider="oke", region=region, profile=profile))
    click.echo(json.dumps(credential(*tokens.make(found, cluster_id))))
