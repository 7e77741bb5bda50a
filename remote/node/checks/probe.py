"""Can the nodes reach each other? Each listens, and once all do, each connects to all others at once.

    → {"t": "listening", "address": …, "ports": [...], "taken": [...]}      where it listens; it waits for
    ← {"t": "peers", "targets": [...]}                        where the others do, tries them all, and says
    → {"t": "outcomes", "attempts": [...], "health": {...}}   the outcome; it listens on until
    ← {"t": "close"}                                          (or the end of input) all are done.

A connection counts only where the peer's own probe answers: the token of this probe is sent, the peer's name comes
back. One connection a peer also carries a payload both ways, which does not get through where a smaller MTU on the
way goes unreported.
"""

import asyncio
import errno
import math
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

from remote.node import listening, network
from remote.node.checks import health
from remote.node.process import allow_open_files
from remote.shared import frames
from remote.shared.constants import AT_ONCE, CONNECT_TIMEOUT_S, EXCHANGE_TIMEOUT_S, ROUND_S

OPEN_FILES = 8192
"""What all at once needs where a thousand nodes meet: 512 of ours, and as many of theirs as come."""
PAYLOAD_BYTES = 64 * 1024
REJECT_S = 1.0
"""A firewall rejects at once; that nobody has an address is not known before."""
LIFE_S = 60
"""No probe lives longer, but for the time that its attempts take, whatever becomes of the one who asked for it."""

OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.EPERM: "denied",
    errno.EACCES: "denied",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "no route",
}


def command_probe(request: Dict[str, Any], output: BinaryIO, incoming: Iterator[frames.Frame]) -> None:
    """`probe`: name, address, master (its address), token, rendezvous_port (or null), high_ports (how many)."""
    signal.alarm(LIFE_S)
    allow_open_files(OPEN_FILES)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_probe(request, output, incoming))


async def _probe(request: Dict[str, Any], output: BinaryIO, incoming: Iterator[frames.Frame]) -> None:
    loop = asyncio.get_event_loop()
    address = rank_address(request["address"], request["master"])
    sockets, taken = listen(address, None, int(request["high_ports"]))
    if request["rendezvous_port"] is not None:
        rendezvous = listen(request["address"], request["rendezvous_port"], 0)
        sockets, taken = rendezvous[0] + sockets, rendezvous[1] + taken
    serve = partial(_serve, name=request["name"], token=request["token"])
    servers = [await asyncio.start_server(serve, sock=one, backlog=AT_ONCE) for one in sockets]
    healthy = loop.run_in_executor(None, health.read, request["address"])
    ports = [one.getsockname()[1] for one in sockets]
    frames.write(output, {"t": frames.LISTENING, "address": address, "ports": ports, "taken": taken})
    told = await loop.run_in_executor(None, next, incoming, None)
    if told is None:
        return
    targets = told[0]["targets"]
    signal.alarm(LIFE_S + math.ceil(longest_s(len(targets))))
    places = asyncio.Semaphore(AT_ONCE)
    outcomes = await asyncio.gather(*(_outcome(target, request["token"], places) for target in targets))
    attempts = [dict(target, outcome=outcome) for target, outcome in zip(targets, outcomes)]
    frames.write(output, {"t": frames.OUTCOMES, "attempts": attempts, "health": await healthy})
    await loop.run_in_executor(None, next, incoming, None)
    for server in servers:
        server.close()


def longest_s(targets: int) -> float:
    """Return the maximum time of the attempts, seconds."""
    return math.ceil(targets / AT_ONCE) * ROUND_S


def rank_address(address: str, master: str) -> str:
    """Return the address at which gloo and NCCL listen: the first IPv4 address of the interface to the master.

    An interface can have several addresses; `address` may be the second one. Source: `getifaddrs` in gloo's
    `lookupAddrForIface` and in NCCL's `findInterfaces`.
    """
    if sys.platform != "linux" or address.startswith("127."):
        return address
    addresses, interface = network.ipv4_addresses(), network.route_interface(master)
    if address not in (each for _, each in addresses):
        return address
    return next((each for name, each in addresses if name == interface), address)


def listen(
    address: str, rendezvous_port: Optional[int], high_ports: int
) -> Tuple[List[socket.socket], List[Dict[str, Any]]]:
    """Return sockets bound to the rendezvous port and to ports that the system picks.

    The second value has the ports that could not be bound.
    """
    sockets, busy = [], []
    ports = [0] * high_ports if rendezvous_port is None else [rendezvous_port] + [0] * high_ports
    for port in ports:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        # The ranks listen here right after us.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((address, port))
            # Now, and not when it is served: of two who may bind, the second may not listen.
            made.listen(AT_ONCE)
        except OSError as error:
            made.close()
            busy.append({"port": port, "problem": problem_of(error), "holder": holder_of(port)})
        else:
            sockets.append(made)
    return sockets, busy


def problem_of(error: OSError) -> str:
    """`in use`, `not ours` (the address is not of this machine), or the system's own words."""
    known = {errno.EADDRINUSE: "in use", errno.EADDRNOTAVAIL: "not ours"}
    return known.get(error.errno or 0, error.strerror or str(error))


def holder_of(port: int) -> Optional[str]:
    """Return the process that listens on a port: `command (pid 1)`; `None` if it can't be seen."""
    for row in listening.read() if port else []:
        if row["port"] == port and row["pid"] is not None:
            return "{} (pid {})".format(row["command"], row["pid"])
    return None


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, name: str, token: str
) -> None:
    """Send our name to a peer's probe, then return its payload. Strangers get nothing."""
    try:
        hello = await asyncio.wait_for(reader.readline(), EXCHANGE_TIMEOUT_S)
        if hello != token.encode() + b"\n":
            return
        writer.write(name.encode() + b"\n")
        data = b" "
        while data:
            data = await reader.read(PAYLOAD_BYTES)
            writer.write(data)
            await writer.drain()
    except (OSError, ValueError, asyncio.TimeoutError):
        return  # the peer reports the reason
    finally:
        writer.close()


async def _outcome(target: Dict[str, Any], token: str, places: asyncio.Semaphore) -> str:
    """Make one connection to a peer (the target: peer, address, port, payload), and return its outcome."""
    address = target["address"]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    async with places:
        began = time.monotonic()
        try:
            opening = asyncio.open_connection(address, target["port"], family=family)
            reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError:
            return "timeout"
        except OSError as error:
            return classify(error, time.monotonic() - began)
        try:
            return await _exchange(target, token, reader, writer)
        finally:
            # Before the peer does: the side that closes first keeps the port busy for a minute, and ours is nobody's.
            writer.close()


async def _exchange(
    target: Dict[str, Any], token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str:
    """Check who answers, and whether a payload comes back: `connected`, `stranger`, `silent` or `stalled`."""
    try:
        writer.write(token.encode() + b"\n")
        name = await asyncio.wait_for(reader.readline(), EXCHANGE_TIMEOUT_S)
    except asyncio.TimeoutError:
        return "silent"
    except (OSError, ValueError):
        return "stranger"
    if name != target["peer"].encode() + b"\n":
        return "stranger"
    if not target["payload"]:
        return "connected"
    sent = os.urandom(PAYLOAD_BYTES)
    try:
        writer.write(sent)
        back = await asyncio.wait_for(reader.readexactly(len(sent)), EXCHANGE_TIMEOUT_S)
    except (OSError, EOFError, asyncio.TimeoutError):
        return "stalled"
    return "connected" if back == sent else "stalled"


def classify(error: OSError, seconds: float) -> str:
    """Return the meaning of a failed connect. `seconds`: the time until it failed.

    `refused`: nobody listens, or a firewall says so; `rejected`: a firewall on the way or on the peer; `no host`:
    nobody has the address; `no route`; `denied`: our own side's firewall; `timeout`; `unresolved`: not an address.
    """
    if isinstance(error, socket.gaierror):
        return "unresolved"
    if error.errno == errno.EHOSTUNREACH:
        return "rejected" if seconds < REJECT_S else "no host"
    return OUTCOMES.get(error.errno or 0, error.strerror or str(error))
