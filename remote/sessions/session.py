"""An open connection to a node: shell commands, and conversations with our part there."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Self

from inventories import clocks
from inventories.clocks import Watch, awake_s, wait_awake
from inventories.machine import Machine
from remote.errors import BadAnswer, ConnectionLost, DiskFull, HomeNotWritable, NodeFailed
from remote.sessions import login_shell, node_payload
from remote.sessions.limits import ANSWER_BYTES, SLOWEST_BYTES_PER_S, BoundedStream, Bounds, Endless, buffered
from remote.sessions.login_shell import DECOY_COUNT, Greeting
from remote.shared import frames
from remote.shared.constants import DISK_FULL, FAILED, NOT_WRITABLE, PROGRAM_GONE
from remote.shared.greeting import BEGIN
from remote.transport import NO_STATUS, Process, Transport

STATUS_TIMEOUT_S = 10.0
"""After the end of a command's output its exit status follows at once; a broken link never sends one."""
SEND_BYTES = 32 * 1024
MAX_ERROR_BYTES = 1024 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Of a longer line the listener gets parts."""
KILLED = 128 + 9
"""Exit status of a command that SIGKILL ended."""
KEPT_BYTES = 64 * 1024 * 1024
"""The maximum that is kept of a stream with a listener, who has had all lines."""
NEVER_HEARD = (
    " Logging in worked, and the first larger amount of data brought no answer. If that is so each time, large "
    "packets are lost on the way, as over some VPNs: lower this computer's MTU (sudo ip link set dev IFACE mtu 1400)."
)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended."""

    exit_code: int
    """Negative: the connection or the process died of a signal."""
    stdout: bytes
    stderr: bytes


class Node:
    """An open connection to a machine."""

    def __init__(self, machine: Machine, transport: Transport) -> None:
        self.machine = machine
        self.python = machine.python or "python3"
        self.transport = transport
        self._booted = False
        self.answered = False
        """Whether the node's part has answered."""
        self.takes_lines = True
        """Whether the login shell may read from the sent bytes; unknown counts as yes."""
        self._trusts_greeting = True
        """Whether a machine that says it has the nodes' part is not sent it."""
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Detached processes on the node keep running."""
        self.transport.close()

    def run(
        self,
        command: str,
        on_line: Callable[[str, bytes], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Completed:
        """Run a shell command to its end, without input. Raises ConnectionLost where the link breaks or time is over.

        `on_line` gets `stdout` or `stderr` and each line as it comes, without its end, from two threads. Its errors
        are raised here, and nothing more of the command is heard. `timeout_s`: after this time its output is not
        read any longer; `None`: a person waits for it.
        """
        greeting = Greeting(shell_runs=self.machine.transport != "ssh")
        process = self.transport.start(command if greeting.shell_runs else login_shell.marked(command))
        timed_out = Event()

        def give_up() -> None:
            timed_out.set()
            process.close()

        late = clocks.Timer(timeout_s or 0.0, give_up)
        late.daemon = True
        if timeout_s is not None:
            late.start()
        listener = _Listener(on_line, process.close) if on_line else None
        stderr: list[bytes] = []
        # The output for a person is kept up to a limit; a command without a listener prints little.
        limit = MAX_ERROR_BYTES if timeout_s is not None else KEPT_BYTES if listener else None

        def read_errors() -> None:
            with suppress(OSError):  # the reader of the other stream reports it
                _read(process.recv_stderr, stderr, "stderr", listener, limit)

        errors = Thread(target=read_errors, daemon=True)
        errors.start()
        stdout: list[bytes] = []
        try:
            process.end_input()
            _read(login_shell.after_mark(process.recv, greeting), stdout, "stdout", listener, limit)
            errors.join()
            code = wait_awake(process.exit_status, STATUS_TIMEOUT_S)
            broken = code is None or (code == NO_STATUS and not self.transport.is_open())
            # By its time alone nothing is known of its end; a status that came all the same is its own.
            overdue = timed_out.is_set() and code in (None, NO_STATUS)
        except OSError as error:
            # To close it is how a listener's error and the end of the time are heard of.
            if not (timed_out.is_set() or (listener and listener.error)):
                raise ConnectionLost(
                    f"{self.name}: the connection broke during `{command}`: {error}."
                ) from error
            code, broken, overdue = None, True, timed_out.is_set()
        finally:
            late.cancel()
            process.close()
        if listener and listener.error:
            raise listener.error
        if overdue:
            raise ConnectionLost(f"{self.name}: `{command}` did not end within {timeout_s:.0f} s.")
        if broken or code is None:
            raise ConnectionLost(f"{self.name}: the connection broke during `{command}`.")
        if not greeting.shell_runs and code >= 0:
            message = b"".join(stderr).decode(errors="replace")
            raise login_shell.shell_failure(self.machine, greeting, code, message)
        return Completed(exit_code=code, stdout=b"".join(stdout), stderr=b"".join(stderr))

    def call(self, command: str, request: dict[str, Any], *, timeout_s: float = 60) -> dict[str, Any]:
        """Send one request to the node's part, and return its one answer, all within `timeout_s`."""
        bounds = Bounds(total_s=timeout_s, max_bytes=ANSWER_BYTES)
        with self.stream(command, request, timeout_s=timeout_s, bounds=bounds) as talk:
            answer: dict[str, Any] | None = None
            for header, _ in talk.frames():
                if answer is not None:
                    raise BadAnswer(f"{self.name}: expected one answer to {command}, got more.")
                answer = header
        if answer is None:
            raise BadAnswer(f"{self.name}: expected one answer to {command}, got none.")
        return answer

    def stream(
        self,
        command: str,
        request: dict[str, Any],
        *,
        timeout_s: float | None = 60,
        bounds: Bounds,
        window_bytes: int | None = None,
    ) -> "Conversation":
        """Start a command of the node's part; the conversation must be closed (it is a context manager).

        `timeout_s`: how long the node may say nothing. `bounds`: how much it may say, and until when.
        `window_bytes`: the maximum of the node's data in transfer, so that what else is said on
        the connection gets through a slow link, too. `None`: as much as is usual, 2 MB by SSH.
        """
        document = frames.encode(request)
        with self._lock:
            is_first = not self._booted
            command_for = node_payload.first_command if is_first else node_payload.next_command
            line = command_for(self.python, command)
            try:
                process = self.transport.start(line, window_bytes=window_bytes, awaits_input=True)
            except ConnectionLost as error:
                if self.answered:
                    raise
                raise ConnectionLost(f"{error}{NEVER_HEARD}") from error
            self._booted = True
        talk = Conversation(self, command, process, timeout_s, bounds)
        try:
            if self.takes_lines:
                talk.wait_until_ready(login_shell.decoys(line))
            installed = is_first and talk.is_installed and self._trusts_greeting
            payload = node_payload.to_send(installed=installed) if is_first else b""
            talk.send_bytes(BEGIN + payload + document)
            if not (installed and talk.lost_program()):
                return talk
        except BaseException:
            process.close()
            raise
        process.close()
        self._booted = self._trusts_greeting = False
        return self.stream(command, request, timeout_s=timeout_s, bounds=bounds, window_bytes=window_bytes)

    def lost(self, event: str, greeting: Greeting) -> ConnectionLost:
        """Return the error of a conversation that broke off."""
        if self.answered:
            return ConnectionLost(f"{self.name}: {event}.")
        hint = login_shell.silence(self.machine, greeting)
        if greeting.ready:
            sent_little = greeting.installed and self._trusts_greeting
            hint = (
                " Logging in worked, and the first request brought no answer." if sent_little else NEVER_HEARD
            )
        return ConnectionLost(f"{self.name}: {event}.{hint}")


class Conversation:
    """A running command of the node's part: frames both ways."""

    def __init__(
        self, node: Node, command: str, process: Process, timeout_s: float | None, bounds: Bounds
    ) -> None:
        self._node = node
        self._command = command
        self._process = process
        self._stream = BoundedStream(process, bounds, silence_s=timeout_s)
        self._reader = buffered(self._stream)
        self._greeting = Greeting()
        self._counted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def wait_until_ready(self, decoys: bytes) -> None:
        """Block until the node's part speaks. Raises as `frames`, with the answer of the login shell."""
        with self._named_errors():
            with suppress(ConnectionError):  # it has ended: its answer says why
                self._send(decoys)
            login_shell.read_greeting(self._reader, self._greeting, self._node.name)
        if not self._greeting.ready:
            self._fail_if_it_ended(wait=True)

    @property
    def is_installed(self) -> bool:
        """Return whether the machine has the nodes' part, by its greeting."""
        return self._greeting.installed

    def lost_program(self) -> bool:
        """Return whether the machine, by its greeting, had the nodes' part, and has lost it. Raises as `frames`."""
        with self._named_errors():
            return (
                not self._read_count()
                and wait_awake(self._process.exit_status, STATUS_TIMEOUT_S) == PROGRAM_GONE
            )

    def _read_count(self) -> bytes:
        """Read how many lines the node's part left out before it began; empty where it ended."""
        count = self._reader.readline(frames.CHUNK_BYTES).strip()
        self._counted = True
        if count.isdigit():
            # If all lines were left, later commands need not wait for the greeting.
            self._node.takes_lines &= int(count) < DECOY_COUNT
        return count

    def wait_up_to(self, timeout_s: float) -> None:
        """Allow this silence of the command from now on."""
        self._stream.silence_s = timeout_s

    def bound(self, bounds: Bounds) -> None:
        """From now on these hold for what comes."""
        self._stream.bound(bounds)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes to the command's standard input."""
        try:
            self._send(data)
        except OSError as error:
            if not self._greeting.ready:
                with suppress(OSError, BadAnswer):
                    login_shell.read_greeting(self._reader, self._greeting, self._node.name)
            self._fail_if_it_ended()
            raise self._lost(f"the connection broke during {self._command}") from error

    def _send(self, data: bytes) -> None:
        """Send all data, like a socket's `sendall`, in a time that depends on its size."""
        silence_s = self._stream.silence_s
        began, sent = awake_s(), 0
        while sent < len(data):
            if silence_s is not None:
                left_s = began + silence_s + sent / SLOWEST_BYTES_PER_S - awake_s()
                if left_s <= 0:
                    raise TimeoutError(f"it takes {sent / (awake_s() - began):.0f} bytes a second")
                self._process.settimeout(min(silence_s, left_s))
            watch = Watch()
            try:
                accepted = self._process.send(data[sent : sent + SEND_BYTES])
            except TimeoutError:
                if watch.was_away():
                    continue
                raise
            if not accepted:
                raise OSError("the other side has closed it")
            sent += accepted

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send one frame."""
        self.send_bytes(frames.encode(header, body))

    def frames(self) -> Iterator[frames.Frame]:
        """The command's frames to their end.

        Raises ConnectionLost (link broken, or silent for longer than the timeout), NodeFailed with the
        command's own sentence, BadAnswer where something else speaks, or more than the bounds allow.
        """
        with self._named_errors():
            if not self._counted:
                login_shell.read_greeting(self._reader, self._greeting, self._node.name)
                if self._greeting.ready:
                    self._read_count()
            for frame in frames.decode(self._reader.readline, self._reader.read):
                self._node.answered = True
                yield frame
                self._stream.next_frame()
        self._fail_if_it_ended(wait=True)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Errors of the stream as ours."""
        try:
            yield
        except TimeoutError as error:
            raise self._lost(str(error)) from error
        except Endless as error:
            if not self._greeting.ready:
                raise self._lost(f"no answer to {self._command}: {error}") from error
            raise BadAnswer(
                f"{self._node.name}: its answer to {self._command} does not end: {error}. Something else than gpuctl "
                "may answer there, or it is out of order."
            ) from error
        except OSError as error:
            raise self._lost(f"the connection broke: {error}") from error
        except frames.CutFrame as error:
            self._fail_if_it_ended(wait=True)
            raise self._lost(str(error)) from error
        except frames.BadFrame as error:
            self._fail_if_it_ended()
            raise BadAnswer(f"{self._node.name}: {error}.") from error

    def _lost(self, event: str) -> ConnectionLost:
        return self._node.lost(event, self._greeting)

    def _fail_if_it_ended(self, *, wait: bool = False) -> None:
        """Raise the command's error if it ended badly."""
        process, name = self._process, self._node.name
        code = wait_awake(process.exit_status, STATUS_TIMEOUT_S if wait else 0.0)
        if code is None and not wait:
            return
        if code is None:
            raise self._lost(f"the connection broke during {self._command}")
        if code == 0 and self._greeting.ready:
            return
        message = _last_words(process).decode(errors="replace").strip()
        last = message.splitlines()[-1] if message else f"exit status {code}"
        if code < 0:
            raise self._lost(f"the connection broke during {self._command}")
        if code == KILLED and not message and self._node.machine.transport == "pod":
            why = "Ray in it did, as where the head is lost, or its memory was used up"
            raise self._lost(f"its container ended: {why}")
        if code == DISK_FULL:
            raise DiskFull(
                f"{name}: the disk is full: {last}. Free some space there "
                "(`gpuctl exec -- df -h`), or choose a larger --disk-gb."
            )
        if code == NOT_WRITABLE:
            raise HomeNotWritable(
                f"{name}: gpuctl keeps its files in the login user's home folder, and can't write there: {last}. Let "
                f"the user {self._node.machine.user} own the folder, or name another user (ansible_user) in the "
                "inventory."
            )
        if not self._greeting.ready:
            raise login_shell.failure(self._node.machine, self._node.python, self._greeting, code, message)
        said_why = code == FAILED
        raise NodeFailed(f"{name}: {last}." if said_why else f"{name}: {self._command} failed: {last}.")


def _last_words(process: Process) -> bytes:
    """Return a command's standard error, within the time and the size that an error has."""
    output, limit = b"", awake_s() + STATUS_TIMEOUT_S
    try:
        while len(output) < MAX_ERROR_BYTES and (left_s := limit - awake_s()) > 0:
            process.settimeout(left_s)
            if not (data := process.recv_stderr(frames.CHUNK_BYTES)):
                break
            output += data
    except TimeoutError:
        return output  # the command has ended, and somebody else holds its standard error open
    return output


class _Listener:
    """Passes lines on. At the first failure `end` is called, and later lines are dropped."""

    def __init__(self, on_line: Callable[[str, bytes], None], end: Callable[[], None]) -> None:
        self._on_line = on_line
        self._end = end
        self.error: Exception | None = None

    def __call__(self, stream: str, line: bytes) -> None:
        if self.error is not None:
            return
        try:
            self._on_line(stream, line)
        except Exception as error:  # noqa: BLE001 - raised again by `Node.run`, in the caller's thread
            self.error = error
            self._end()


def _read(
    receive: Callable[[int], bytes],
    into: list[bytes],
    stream: str,
    on_line: Callable[[str, bytes], None] | None,
    most_bytes: int | None,
) -> None:
    """Read one of a command's streams to its end, cutting it into lines on the way where somebody listens.

    What comes after `most_bytes` is read, and not kept.
    """
    rest, size = b"", 0
    while data := receive(frames.CHUNK_BYTES):
        if most_bytes is None or size < most_bytes:
            into.append(data)
            size += len(data)
        if on_line is not None:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(stream, line)
            if len(rest) > MAX_LINE_BYTES:
                on_line(stream, rest)
                rest = b""
    if rest and on_line is not None:
        on_line(stream, rest)


def shell_command(words: tuple[str, ...]) -> str:
    """Return the command line of the words that a person typed after `--`.

    One word is a shell command line, several are an argv.
    """
    return words[0] if len(words) == 1 else shlex.join(words)
