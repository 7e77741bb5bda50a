"""Names of container images."""

import pytest

from inventories.errors import InvalidInput
from provision.kubernetes.images import full_name


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("mine:1", "docker.io/library/mine:1"),
        ("rayproject/ray:2.52.0-py311-gpu", "docker.io/rayproject/ray:2.52.0-py311-gpu"),
        ("localhost/x", "localhost/x:latest"),
        ("registry:5000/team/x:1", "registry:5000/team/x:1"),
        ("1.dkr.ecr.us-east-1.amazonaws.com/a/b__c:t", "1.dkr.ecr.us-east-1.amazonaws.com/a/b__c:t"),
        (f"nvcr.io/a:1@sha256:{'0' * 64}", f"nvcr.io/a@sha256:{'0' * 64}"),
    ],
)
def test_full_name_has_registry_and_tag(image: str, full: str) -> None:
    assert full_name(image) == full


@pytest.mark.parametrize(
    "image", ["", "My/Image", "a b", "https://x.io/a", "a:", "a/", "/a", "a@sha256:0", "a:1:2"]
)
def test_full_name_refuses_what_no_image_can_have(image: str) -> None:
    with pytest.raises(InvalidInput, match="can't be the name of a container image"):
        full_name(image)
