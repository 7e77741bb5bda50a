"""The server's side of a WebSocket (RFC 6455), over the socket of an HTTP request that asked for one."""

import base64
import hashlib
import struct
from http.server import BaseHTTPRequestHandler
from threading import Lock

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketServer:
    """Messages both ways. Raises EOFError where the client has gone."""

    def __init__(self, request: BaseHTTPRequestHandler, protocols: tuple[str, ...]) -> None:
        """Answer the handshake. Raises AssertionError for a client without a common protocol."""
        requests = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        chosen = next((protocol for protocol in protocols if protocol in requests), None)
        assert chosen is not None, f"no protocol of {protocols} is among {requests}"
        key = request.headers["Sec-WebSocket-Key"]
        request.send_response(101)
        request.send_header("Upgrade", "websocket")
        request.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        request.send_header("Sec-WebSocket-Accept", accept)
        request.send_header("Sec-WebSocket-Protocol", chosen)
        request.end_headers()
        self._input, self._output, self._lock = request.rfile, request.wfile, Lock()

    def send(self, message: bytes, kind: int = BINARY) -> None:
        size = len(message)
        if size < 126:
            length = bytes([size])
        elif size < 65536:
            length = b"\x7e" + struct.pack(">H", size)
        else:
            length = b"\x7f" + struct.pack(">Q", size)
        head = bytes([0x80 | kind]) + length
        with self._lock:
            self._output.write(head + message)
            self._output.flush()

    def receive(self) -> bytes:
        """Receive the next message, with its fragments joined."""
        whole = b""
        while True:
            first, second = self._exactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self._exactly(8))
            assert second & 0x80, "a client masks what it sends"
            mask = self._exactly(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self._exactly(size)))
            kind = first & 0x0F
            if kind == CLOSE:
                raise EOFError
            if kind == PING:
                self.send(data, PONG)
            elif kind != PONG:
                whole += data
                if first & 0x80:
                    return whole

    def _exactly(self, size: int) -> bytes:
        data = self._input.read(size)
        if len(data) < size:
            raise EOFError
        return data
