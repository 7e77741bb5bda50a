"""moto in this process, called without a socket, and its own objects where a question to it would be slow."""

import io
import os
from typing import Any, cast
from urllib.parse import urlencode

from botocore.model import Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from tests.fakes.aws_proxy import wire
from tests.fakes.aws_proxy.errors import ApiError

# Its thousand images are of no use here, and read when it is imported.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

ACCOUNT = "123456789012"
KEY = "AKIAMOTO"

Reply = tuple[int, dict[str, str], bytes]


class Moto:
    """moto's application. Callers hold a lock: it is not thread-safe."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._serializer = create_serializer("ec2", include_validation=False)
        self._parser = create_parser("ec2")

    def raw(self, service: str, region: str, headers: dict[str, str], body: bytes) -> Reply:
        """Pass on a request as it came: POST /."""
        scope = f"AWS4-HMAC-SHA256 Credential={KEY}/20260701/{region}/{service}/aws4_request"
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/",
            "QUERY_STRING": "",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": f"{service}.{region}.amazonaws.com",
            "HTTP_AUTHORIZATION": f"{scope}, SignedHeaders=host, Signature=00",
            "CONTENT_TYPE": headers.get("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        if target := headers.get("x-amz-target"):
            environ["HTTP_X_AMZ_TARGET"] = target
        started: list[Any] = []
        chunks = self._app(environ, lambda status, result, *_: started.extend((status, result)))
        data = b"".join(chunks)
        return int(started[0].split()[0]), {name.lower(): value for name, value in started[1]}, data

    def ec2(self, region: str, form: dict[str, str]) -> bytes:
        """Pass a call of EC2 to moto unchanged. Raises ApiError for moto's refusals and failures."""
        body = urlencode(form).encode()
        try:
            status, _, data = self.raw("ec2", region, {}, body)
        except NotImplementedError as error:
            raise ApiError("UnsupportedOperation", f"moto can't do this: {error}") from error
        if status >= 400:
            reply = {"status_code": status, "headers": {}, "body": data}
            result = self._parser.parse(reply, cast(Shape, None))["Error"]
            if status >= 500 or not result.get("Code"):
                raise ApiError("UnsupportedOperation", f"moto answered {status}: {data[:500]!r}")
            raise ApiError(result["Code"], result["Message"], status)
        return data

    def result(self, operation: str, data: bytes) -> dict[str, Any]:
        """Parse a response into boto3's form."""
        shape = wire.operation(operation).output_shape
        reply = {"status_code": 200, "headers": {}, "body": data}
        result: dict[str, Any] = self._parser.parse(reply, cast(Shape, shape))
        result.pop("ResponseMetadata", None)
        return result

    def ask(self, region: str, operation: str, **params: Any) -> dict[str, Any]:
        """Call EC2 on the proxy's own behalf."""
        model = wire.operation(operation)
        form = self._serializer.serialize_to_request(params, model)["body"]
        return self.result(operation, self.ec2(region, form))

    def backend(self, region: str) -> Any:
        """moto's objects of a region."""
        return ec2_backends[ACCOUNT][region]

    def reset(self) -> None:
        """Forget everything."""
        BackendDict.reset()
