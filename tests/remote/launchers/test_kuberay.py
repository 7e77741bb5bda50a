"""Test the environment of a driver in a pod, by which it joins KubeRay's Ray."""

import json
import subprocess
import sys
from dataclasses import replace

from node_facts import facts
from ray_samples import IDS, machine, run_of

from remote.launchers import kuberay
from remote.launchers.rank_command import Script
from remote.launchers.ray import launcher


def test_driver_finds_the_head_and_ray_gets_its_interpreter_and_variables() -> None:
    run, result = run_of(2, 2), {"c-0": facts(), "c-1": facts()}
    service = kuberay.KubeRayService(head="head.ns.svc:6379", ids=dict(IDS), cpus={"c-0": 3.0, "c-1": 1.0})
    job = Script(kind="built-in", target="train")
    of = {
        node.name: service.launch(
            run, node, job, result, cores={"c-0": 8, "c-1": 8}, cwd="/code", env={"KEY": "secret"}
        )
        for node in run.nodes
    }
    assert "RAY_ADDRESS" not in of["c-1"]["env"]
    environment = of["c-0"]["env"]
    assert (environment["RAY_ADDRESS"], environment["RAY_AUTH_MODE"]) == ("head.ns.svc:6379", "token")
    assert "RAY_AUTH_TOKEN_PATH" not in environment, "the container has the token"
    inputs = json.loads(environment["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]
    assert inputs["env_vars"] == {
        "GPUCTL_NODE_HOME": "/home/ubuntu/.gpuctl-node",
        "GLOO_SOCKET_IFNAME": "ens3",
        "NCCL_SOCKET_IFNAME": "=ens3",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }
    assert "--layout=1afe:2,07c2:2" in of["c-0"]["argv"]
    assert "--cpus-per-rank=0.5" in of["c-0"]["argv"], "of what Ray gives away, not of the cores"
    assert of["c-0"]["env"]["OMP_NUM_THREADS"] == "4"


def test_ray_takes_the_images_python_where_the_environment_is_not() -> None:
    for python, values in ((sys.executable, sys.executable), ("/no/such python", "python")):
        inputs = json.loads(kuberay.way_to("h:1", python, {})["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]
        output = subprocess.run(
            ["bash", "-c", f"python() {{ :; }}; echo {inputs['py_executable']}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert output.stdout == f"{values}\n"


def test_environment_of_pods_has_their_very_ray() -> None:
    pods = [replace(machine(rank, f"10.0.0.{rank}"), transport="pod") for rank in (0, 1)]
    assert launcher.requirements(pods) == ("torch", "ray[default,train]==2.60.0")
    assert launcher.requirements([machine(0, "10.0.0.1")]) == ("torch", "ray[default,train]>=2.60")
    shown = launcher.planned(pods, {"c-0": facts(), "c-1": facts()})
    assert not shown.daemons
