"""The policy statements that a group needs for what gpuctl does, as an administrator types them.

Sources:
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/corepolicyreference.htm (machines, disks,
  network, pools, autoscaling)
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/iampolicyreference.htm (compartments, tenancies)
- https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/contengpolicyreference.htm (OKE)
- https://docs.oracle.com/en-us/iaas/Content/General/Concepts/servicelimits.htm (limits)

A test compares them with the calls that a cluster makes.
"""

MACHINES = (
    "manage instance-family in compartment id {compartment}",
    "manage volume-family in compartment id {compartment}",
    "manage compute-clusters in compartment id {compartment}",
    "inspect work-requests in compartment id {compartment}",
    "inspect compartments in tenancy",
)
"""For machines, their disks, the RDMA network of shapes with RDMA, and the reason of a launch that failed."""
SHARED_NETWORK = (*MACHINES, "manage virtual-network-family in compartment id {compartment}")
"""For machines in the network that gpuctl creates."""
GIVEN_SUBNET = (
    *MACHINES,
    "read virtual-network-family in compartment id {compartment}",
    "manage network-security-groups in compartment id {compartment}",
    "use vnics in compartment id {compartment}",
    "use vnics in compartment id {subnet}",
    "use subnets in compartment id {subnet}",
    "manage vcns in compartment id {vcn}",
)
"""For machines in a given subnet: a security group is created in its VCN, which needs rights to both.

Placeholders: the compartments of the cluster, of the subnet and of its VCN.
"""
KUBERNETES = (
    *SHARED_NETWORK,
    "manage cluster-family in compartment id {compartment}",
    "manage load-balancers in compartment id {compartment}",
)
"""For a cluster of provider `oke`, and for load balancers that controllers in it created."""
TIME_LIMIT = (
    "manage compute-management-family in compartment id {compartment}",
    "manage auto-scaling-configurations in compartment id {compartment}",
)
"""For `--ttl`: an instance pool with its configuration, and the schedule that ends its machines."""
TIME_LIMIT_LISTS = (
    "management.list_instance_pools",
    "management.list_instance_configurations",
    "autoscaling.list_auto_scaling_configurations",
)
"""Lists that show, without a change, whether a right for `--ttl` is missing."""
HINTS = (
    "inspect resource-availability in tenancy",
    "manage compute-capacity-reports in tenancy",
    "manage app-catalog-listing in tenancy",
    "inspect tenancies in tenancy",
)
"""For room under the limits, reports of capacity, images of the marketplace, and the subscribed regions."""
