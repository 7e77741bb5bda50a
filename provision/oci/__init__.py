"""Oracle Cloud Infrastructure behind the protocol of `provision.cloud.interface`; `cloud.connect` is the way in."""
