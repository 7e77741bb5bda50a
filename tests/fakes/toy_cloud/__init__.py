"""A whole cloud in one folder: the template for a new one.

Its account is in memory, and its machines are real SSH servers on loopback. The line that adds it stands here, as
gpuctl's own tables have no toys; another cloud's stands in `provision/clouds.py`.
"""

from provision.clouds import CLOUDS

CLOUDS["toy"] = "tests.fakes.toy_cloud.description"
