"""The region's offer through the SDK: shapes, platform images, and images of the marketplace."""

from oci.core import models
from oci.pagination import list_call_get_all_results as every

from tests.fakes.oci.account import DOMAINS

pytest_plugins = ["tests.fakes.oci.fixtures"]
H100 = "BM.GPU.H100.8"


def test_list_shapes_filters_by_domain_and_image(world):
    shapes = {shape.shape: shape for shape in every(world.compute.list_shapes, world.compartment).data}
    assert shapes["VM.GPU.A10.2"].gpus == 2
    h100 = shapes[H100]
    assert (h100.gpus, h100.rdma_ports, h100.is_billed_for_stopped_instance) == (8, 16, True)
    assert shapes["VM.GPU.B1.1"].gpu_description == "NVIDIA® B1"
    assert "BM.GPU.GB300.4" not in shapes
    existing = every(world.compute.list_shapes, world.compartment, availability_domain=DOMAINS[2]).data
    assert {"VM.GPU2.1", "BM.GPU4.8"}.isdisjoint(shape.shape for shape in existing)
    arm = world.image("Canonical-Ubuntu-24.04-aarch64-2026.06.27-0")
    fitting = every(world.compute.list_shapes, world.compartment, image_id=arm).data
    assert [shape.shape for shape in fitting] == ["BM.GPU.GB200.4"]


def test_list_images_filters_and_sorts(world):
    images = every(
        world.compute.list_images,
        world.compartment,
        operating_system="Canonical Ubuntu",
        operating_system_version="22.04",
        shape="VM.GPU.A10.1",
        sort_by="TIMECREATED",
        sort_order="DESC",
    ).data
    assert [image.display_name for image in images] == [
        f"Canonical-Ubuntu-22.04-{date}-0" for date in ("2026.06.26", "2026.05.29", "2026.03.31")
    ]
    result = world.compute.get_image(images[0].id).data
    assert (result.lifecycle_state, result.compartment_id, result.size_in_mbs) == ("AVAILABLE", None, 48128)
    plain = every(world.compute.list_images, world.compartment, shape="VM.Standard.E2.1.Micro").data
    assert not [image for image in plain if "GPU" in image.display_name or "aarch64" in image.display_name]


def test_marketplace_images_need_a_subscription(world, refused):
    subnet = world.subnet(world.vcn())
    compute = world.compute
    listings = every(compute.list_app_catalog_listings, display_name="NVIDIA GPU-Optimized VMI").data
    assert [listing.publisher_name for listing in listings] == ["NVIDIA"]
    listing = listings[0].listing_id
    versions = every(compute.list_app_catalog_listing_resource_versions, listing).data
    newest = max(versions, key=lambda version: version.time_published)
    version = compute.get_app_catalog_listing_resource_version(listing, newest.listing_resource_version).data
    assert "VM.GPU.A10.1" in version.compatible_shapes
    image = version.listing_resource_id
    refused(404, "NotAuthorizedOrNotFound", world.launch, subnet, image=image)
    terms = compute.get_app_catalog_listing_agreements(listing, version.listing_resource_version).data
    details = models.CreateAppCatalogSubscriptionDetails(
        compartment_id=world.compartment,
        listing_id=listing,
        listing_resource_version=version.listing_resource_version,
        oracle_terms_of_use_link=terms.oracle_terms_of_use_link,
        eula_link=terms.eula_link,
        time_retrieved=terms.time_retrieved,
        signature=terms.signature,
    )
    compute.create_app_catalog_subscription(details)
    mine = every(compute.list_app_catalog_subscriptions, world.compartment, listing_id=listing).data
    assert [item.listing_resource_id for item in mine] == [image]
    world.running(subnet, image=image, boot_gb=200)
    refused(400, "InvalidParameter", world.launch, subnet, image=image, boot_gb=100)
    details.signature = "forged"
    refused(400, "InvalidParameter", compute.create_app_catalog_subscription, details)
