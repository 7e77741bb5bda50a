"""Work requests: the progress and the result of an operation that continues after its response."""

from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.store import Cloud, Resource, now

SCOPE = "coreservicesworkrequest"


def start(cloud: Cloud, operation: str, resource: Resource, action: str) -> Resource:
    """Keep a new work request, about one resource."""
    work = cloud.add(
        "workrequest",
        {
            "id": cloud.ocid(SCOPE),
            "operationType": operation,
            "status": "ACCEPTED",
            "compartmentId": resource.view["compartmentId"],
            "percentComplete": 0.0,
            "timeAccepted": now(),
        },
        own={
            "resources": [
                {
                    "actionType": "IN_PROGRESS",
                    "entityType": resource.kind,
                    "identifier": resource.id,
                    "entityUri": f"/{resource.kind}s/{resource.id}",
                }
            ],
            "action": action,
            "errors": [],
        },
    )
    work.view.pop("timeCreated")
    return work


def go(cloud: Cloud, work: Resource) -> None:
    """Mark the work request as started."""
    cloud.change(work, status="IN_PROGRESS", timeStarted=now(), percentComplete=10.0)


def done(cloud: Cloud, work: Resource) -> None:
    """Mark the work request as succeeded."""
    _finish(cloud, work, "SUCCEEDED", work.own["action"])


def fail(cloud: Cloud, work: Resource, code: str, message: str) -> None:
    """Mark the work request as failed."""
    work.own["errors"].append({"code": code, "message": message, "timestamp": now()})
    _finish(cloud, work, "FAILED", "RELATED")


def _finish(cloud: Cloud, work: Resource, status: str, action: str) -> None:
    work.own["resources"] = [{**resource, "actionType": action} for resource in work.own["resources"]]
    moment = now()
    cloud.change(
        work,
        status=status,
        percentComplete=100.0,
        timeStarted=work.view.get("timeStarted", moment),
        timeFinished=moment,
    )


def get(cloud: Cloud, request: Request) -> Reply:
    """GetWorkRequest."""
    work = cloud.get("workrequest", request.target)
    return Reply(
        body={**work.view, "resources": work.own["resources"]},
        headers={**shown(work).headers, "retry-after": "1"},
    )


def list_all(cloud: Cloud, request: Request) -> Reply:
    """ListWorkRequests: of a compartment, or of a resource."""
    expected = request.one("resourceId")
    rows = [
        (work.number, work.view)
        for work in cloud.all("workrequest")
        if expected is None or any(expected == resource["identifier"] for resource in work.own["resources"])
    ]
    return page(request, rows, size=cloud.settings.page_size, done=frozenset({"resourceId"}))


def list_errors(cloud: Cloud, request: Request) -> Reply:
    """ListWorkRequestErrors."""
    errors: list[View] = cloud.get("workrequest", request.target).own["errors"]
    return page(request, enumerate(errors), size=cloud.settings.page_size)


HANDLERS: dict[str, Handler] = {
    "GetWorkRequest": get,
    "ListWorkRequests": list_all,
    "ListWorkRequestErrors": list_errors,
}
