"""The program that stands between the API server and a command in a pod.

Input comes in parts: their size as SIZE, then its bytes; a part of size 0 is the input's end, which `exec` has
no word for. `run COMMAND` gives it to a shell command, whose output and exit status are the program's own; `connect
HOST PORT` to a port, after CONNECTED on the standard output. Commands may open many files, as loaders of data do:
containers' own limit is 1024 with CRI-O.
"""

SIZE = ">I"
CONNECTED = b"+"

PROGRAM = """
import os, resource, socket, struct, subprocess, sys, threading
def parts():
    read = sys.stdin.buffer.read
    while True:
        head = read(4)
        size = struct.unpack(">I", head)[0] if len(head) == 4 else 0
        part = read(size)
        if not size or len(part) < size:
            return
        yield part
def pump(write, end):
    try:
        for part in parts():
            write(part)
    except OSError:
        pass
    try:
        end()
    except OSError:
        pass
def feed(write, end):
    threading.Thread(target=pump, args=(write, end), daemon=True).start()
def allow_files(most=65536):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
if sys.argv[1] == "run":
    allow_files()
    child = subprocess.Popen(["sh", "-c", sys.argv[2]], stdin=subprocess.PIPE, bufsize=0)
    def write(part):
        while part:
            part = part[child.stdin.write(part):]
    feed(write, child.stdin.close)
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)
try:
    peer = socket.create_connection((sys.argv[2], int(sys.argv[3])))
except OSError as error:
    sys.exit(str(error))
os.write(1, b"+")
feed(peer.sendall, lambda: peer.shutdown(socket.SHUT_WR))
while True:
    data = peer.recv(65536)
    if not data:
        os._exit(0)
    while data:
        data = data[os.write(1, data):]
"""
"""It needs Python 3.6 and nothing else. A connection that ends without the input's end ends the input."""
