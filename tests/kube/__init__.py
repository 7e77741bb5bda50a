"""A real Kubernetes API server, with a kubelet whose pods are processes in namespaces.

`build.sh` builds the server once, from Debian's sources. Real are: etcd, the API server, the scheduler, and the
controllers for namespaces and for what has lost its owner. Played are: the kubelet, the nodes, and KubeRay's
operator, whose program is in an image alone.
"""
