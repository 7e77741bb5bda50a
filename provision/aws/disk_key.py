"""The key that encrypts the machines' disks: EBS's default key of the account, which may be customer-managed.

gpuctl asks for encrypted disks and names no key, so EBS takes its default key. AWS starts no machine whose disk has a
key that the launching principal may not use: it ends the machine with `Client.InternalError`.
Sources: https://repost.aws/knowledge-center/kms-iam-ec2-permission (the error),
https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html (for users),
https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html (for the role).
"""

from provision.aws.api import Api
from provision.aws.errors import SCALING_ROLE, key_hint
from provision.errors import CloudError
from provision.findings import Finding

AWS_MANAGED = "alias/aws/ebs"


def finding(api: Api, *, scaling: bool = False) -> Finding:
    """Return the finding on the key of new disks, which may keep machines from starting.

    Args:
        api: Account and region.
        scaling: Auto Scaling launches the machines, as for EKS, and not the caller.
    """
    key = str(api.call("get_ebs_default_kms_key_id")["KmsKeyId"])
    if key.endswith(AWS_MANAGED):
        return Finding(what="", ok=True, detail=f"EBS encrypts disks with AWS's own key ({AWS_MANAGED}).")
    user = SCALING_ROLE if scaling else "you"
    try:
        described = api.call("describe_key", service="kms", again=True, KeyId=key)["KeyMetadata"]
    except CloudError as error:
        detail = f"EBS encrypts disks with the key {key}, and whether {user} may use it is not known. {error}"
        return Finding(what="", ok=None, detail=detail, fix=key_hint(scaling=scaling))
    if described["KeyManager"] == "AWS":
        return Finding(what="", ok=True, detail=f"EBS encrypts disks with AWS's own key {key}.")
    if described["KeyState"] != "Enabled":
        return Finding(
            what="",
            ok=False,
            detail=f"EBS encrypts disks with the key {key}, which is {described['KeyState']}: no machine can start.",
            fix="Enable the key in the KMS console, or choose another default key of EBS in the EC2 console.",
        )
    return Finding(
        what="",
        ok=None,
        detail=f"EBS encrypts disks with the customer-managed key {key}. Whether {user} may use it is not known.",
        fix=key_hint(scaling=scaling),
    )
