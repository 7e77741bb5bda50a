"""IAM, which is moto's, with the few policies of AWS's own that clusters need: all of them would take a second."""

from tests.fakes.aws_proxy.moto_app import ACCOUNT

POLICIES = (
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
)
_DATA = {
    "DefaultVersionId": "v1",
    "Path": "/",
    "Document": {},
    "CreateDate": "2026-01-01T00:00:00+00:00",
    "UpdateDate": "2026-01-01T00:00:00+00:00",
}


def know_policies() -> None:
    """Let moto know the policies."""
    from moto.iam.models import AWSManagedPolicy, iam_backends

    backend = iam_backends[ACCOUNT]["aws"]
    for name in POLICIES:
        policy = AWSManagedPolicy.from_data(name, ACCOUNT, "aws", _DATA)
        backend.managed_policies.setdefault(policy.arn, policy)
