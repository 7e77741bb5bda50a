"""`gpuctl manifests`: a job as Kubernetes' own objects."""

import re

import click

from gpuctl.app import App
from gpuctl.command_line.options import TAIL, common_options
from gpuctl.errors import Usage

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@click.command(context_settings={**TAIL, "ignore_unknown_options": True})
@common_options
@click.option(
    "--mode",
    type=click.Choice(["torchrun", "ray"]),
    default="torchrun",
    help="JobSet or RayJob (default: torchrun).",
)
@click.option("--name", default="training", metavar="NAME", help="Name of the job (default: training).")
@click.option(
    "--nnodes", type=click.IntRange(1), default=1, metavar="N", help="Pods, one a node (default: 1)."
)
@click.option(
    "--gpus", type=click.IntRange(0), metavar="N", help="GPUs of each pod (default: those of --shape)."
)
@click.option(
    "--shape", metavar="TYPE", help="Instance type of the nodes, such as g5.12xlarge (default: any)."
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="The container's image; torchrun has to be in it (default: Ray's, with --mode ray).",
)
@click.option("--namespace", metavar="NAME", help="Namespace (default: kubectl's).")
@click.option("--queue", metavar="NAME", help="Queue of Kueue that the job is to wait in.")
@click.option("--pip", multiple=True, metavar="PACKAGE", help="Install it before the job starts. (ray)")
@click.option(
    "--working-dir", metavar="URL", help="A zip with the project, such as s3://…/project.zip. (ray)"
)
@click.option("-m", "module", metavar="MODULE", help="Run this module in place of a script.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def command(
    app: App,
    mode: str,
    name: str,
    nnodes: int,
    gpus: int | None,
    shape: str | None,
    image: str | None,
    namespace: str | None,
    queue: str | None,
    pip: tuple[str, ...],
    working_dir: str | None,
    module: str | None,
    words: tuple[str, ...],
) -> None:
    """Write a job as Kubernetes' own objects, to be applied without gpuctl.

    \b
    gpuctl manifests --shape g5.12xlarge --nnodes 2 --image my/image:1 train.py --epochs 3 | kubectl apply -f -
    gpuctl manifests --mode ray --gpus 1 --nnodes 4 --pip torch --working-dir s3://bucket/project.zip train.py
    gpuctl manifests --queue research --image my/image:1 -m my.training > job.yaml

    A script for torchrun becomes a JobSet, one for Ray a RayJob. It is in the image, or in the zip.
    No cluster is asked.
    """
    from provision.kubernetes.job_manifests import JobManifest, document, text
    from provision.pricing.catalog import gpus_of

    started = [*(["-m", module] if module else []), *words]
    if not started:
        raise Usage("Name the script that the job runs, or a module with -m. It has to be in the image.")
    if NAME.fullmatch(name) is None:
        raise Usage(
            f"--name {name} can't be a job's name: use at most 40 of a-z, 0-9 and -, a letter or digit at both ends."
        )
    if mode == "torchrun" and image is None:
        raise Usage("A JobSet needs --image, an image with torchrun and the script in it.")
    if mode == "torchrun" and (pip or working_dir):
        raise Usage("--pip and --working-dir are Ray's: leave them out, or give --mode ray.")
    if gpus is None and shape is not None and gpus_of(shape) is None:
        raise Usage(f"How many GPUs a {shape} has is not known here: say it with --gpus.")
    job = JobManifest(
        name=name,
        mode="ray" if mode == "ray" else "torchrun",
        command=started,
        nodes=nnodes,
        gpus=gpus if gpus is not None else (gpus_of(shape) or 0) if shape else 0,
        image=image,
        namespace=namespace,
        shape=shape,
        queue=queue,
        pip=pip,
        working_dir=working_dir,
    )
    documents = [document(job)]
    if mode == "ray" and not (image or working_dir):
        app.output.say(
            "note: Ray's own image has no script of yours: name an --image that has it, or a zip with --working-dir"
        )
    if job.gpus == 0:
        app.output.say(
            "note: neither --gpus nor --shape says that the pods have GPUs: the job trains on CPUs"
        )
    if app.options.json:
        app.output.json({"objects": documents})
    else:
        app.output.text(text(documents).rstrip())
