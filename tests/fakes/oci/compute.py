"""Compute without instances: shapes, images, compute clusters, console histories."""

from tests.fakes.oci import capacity
from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import getter, in_compartment, named
from tests.fakes.oci.errors import conflict, incorrect_state, invalid, not_found
from tests.fakes.oci.images import IMAGES, Image
from tests.fakes.oci.instances import HANDLERS as INSTANCES
from tests.fakes.oci.marketplace import HANDLERS as MARKETPLACE
from tests.fakes.oci.shapes import SHAPES
from tests.fakes.oci.store import PART_SHARE, Cloud, must_be_live

MAX_CONSOLE = 1_048_576


def list_shapes(cloud: Cloud, request: Request) -> Reply:
    """ListShapes: of the region or of one availability domain, optionally only the shapes that fit an image."""
    domain, image = request.one("availabilityDomain"), None
    if domain and not cloud.account.has_domain(domain):
        raise not_found()
    if identifier := request.one("imageId"):
        image = _image(identifier)
    rows = [
        (number, shape.view)
        for number, shape in enumerate(SHAPES.values())
        if (shape.offered_in(domain) if domain else shape.domains) and (image is None or image.fits(shape))
    ]
    done = frozenset({"availabilityDomain", "imageId", "compartmentId"})
    return page(request, rows, size=cloud.settings.page_size, done=done)


def _image(identifier: str) -> Image:
    image = IMAGES.get(identifier)
    if image is None:
        raise not_found()
    return image


def _shown_image(image: Image) -> View:
    return {**image.view, "compartmentId": None, "freeformTags": {}, "definedTags": {}}


def list_images(cloud: Cloud, request: Request) -> Reply:
    """ListImages: platform images are shown in every compartment."""
    name = request.one("shape")
    shape = SHAPES.get(name) if name else None
    if name and shape is None:
        raise not_found(f"shape {name} not found")
    rows = [
        (number, _shown_image(image))
        for number, image in enumerate(IMAGES.values())
        if image.listing_version is None and (shape is None or image.fits(shape))
        if not cloud.settings.lacks_image(image.name)
    ]
    done = frozenset({"compartmentId", "shape"})
    return page(request, rows, size=cloud.settings.page_size, done=done)


def get_image(cloud: Cloud, request: Request) -> Reply:
    """GetImage."""
    image = _image(request.target)
    if cloud.settings.lacks_image(image.name):
        raise not_found()
    return Reply(body=_shown_image(image))


def create_cluster(cloud: Cloud, request: Request) -> Reply:
    """CreateComputeCluster."""
    body = request.body
    in_compartment(cloud, body)
    if not cloud.account.has_domain(body["availabilityDomain"]):
        raise invalid(f"availabilityDomain is no availability domain: {body['availabilityDomain']}")
    cluster = cloud.add(
        "computecluster",
        {
            **named(body, "computecluster", len(cloud.all("computecluster")) + 1),
            "availabilityDomain": body["availabilityDomain"],
        },
        state="ACTIVE",
    )
    return shown(cluster, made=True)


def delete_cluster(cloud: Cloud, request: Request) -> Reply:
    """DeleteComputeCluster: refused while an instance is in it."""
    cluster = cloud.get("computecluster", request.target)
    must_be_live(cluster, "The compute cluster")
    for instance in cloud.where("instance"):
        if instance.own["cluster"] == cluster.id:
            raise conflict(f"The compute cluster {cluster.id} has the instance {instance.id}.")
    cloud.become(cluster, "DELETED")
    cloud.later(cloud.settings.terminate_s * PART_SHARE, lambda: cloud.forget(cluster))
    return Reply(status=204)


def list_clusters(cloud: Cloud, request: Request) -> Reply:
    """ListComputeClusters: a collection."""
    return page(request, cloud.rows("computecluster"), size=cloud.settings.page_size, wrap=True)


def capture_console(cloud: Cloud, request: Request) -> Reply:
    """CaptureConsoleHistory: the output of the instance's serial console so far; ready a little later."""
    instance = cloud.get("instance", request.body["instanceId"])
    must_be_live(instance, "The instance")
    history = cloud.add(
        "consolehistory",
        {
            **named(
                {**request.body, "compartmentId": instance.view["compartmentId"]},
                "consolehistory",
                len(cloud.all("consolehistory")) + 1,
            ),
            "availabilityDomain": instance.view["availabilityDomain"],
            "instanceId": instance.id,
        },
        state="REQUESTED",
        own={"text": _console(instance.view) + (cloud.hosts.said(instance.id) if cloud.hosts else "")},
    )

    def capture() -> None:
        if history.state == "REQUESTED":
            cloud.become(history, "SUCCEEDED")

    cloud.later(cloud.settings.launch_s * PART_SHARE, capture)
    return shown(history, made=True)


def _console(instance: View) -> str:
    lines = ["[    0.000000] Linux version 6.8.0-1030-oracle", "[    1.412345] NET: Registered PF_INET6"]
    if instance["lifecycleState"] == "RUNNING":
        lines += [
            "cloud-init[1021]: Cloud-init v. 25.1 running 'init'",
            "cloud-init[1188]: Cloud-init v. 25.1 finished. Datasource DataSourceOracle.",
            "",
            f"Ubuntu 22.04.5 LTS {instance['displayName']} ttyS0",
            "",
            f"{instance['displayName']} login: ",
        ]
    return "\r\n".join([*lines, ""])


def console_content(cloud: Cloud, request: Request) -> Reply:
    """GetConsoleHistoryContent: bytes, in parts if asked for."""
    history = cloud.get("consolehistory", request.target)
    if history.state != "SUCCEEDED":
        raise incorrect_state(f"The console history {history.id} is in state {history.state}.")
    data = str(history.own["text"]).encode()[-MAX_CONSOLE:]
    start = int(request.one("offset") or 0)
    part = data[start : start + int(request.one("length") or 10240)]
    return Reply(body=part, headers={"opc-bytes-remaining": str(max(0, len(data) - start - len(part)))})


def delete_console(cloud: Cloud, request: Request) -> Reply:
    """DeleteConsoleHistory."""
    cloud.forget(cloud.get("consolehistory", request.target))
    return Reply(status=204)


HANDLERS: dict[str, Handler] = {
    "ListShapes": list_shapes,
    "ListImages": list_images,
    "GetImage": get_image,
    "CreateComputeCapacityReport": capacity.report,
    "CreateComputeCluster": create_cluster,
    "GetComputeCluster": getter("computecluster"),
    "ListComputeClusters": list_clusters,
    "DeleteComputeCluster": delete_cluster,
    "CaptureConsoleHistory": capture_console,
    "GetConsoleHistory": getter("consolehistory"),
    "GetConsoleHistoryContent": console_content,
    "DeleteConsoleHistory": delete_console,
    **INSTANCES,
    **MARKETPLACE,
}
