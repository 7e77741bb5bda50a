"""Oracle Cloud Infrastructure behind the protocol of `provision.cloud`; `cloud.connect` is the way in."""
