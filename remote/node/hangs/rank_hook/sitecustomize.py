"""Makes a rank's Python process report its activity, also while it hangs; the script is not changed.

Python imports it before the script, in the first Python process of a rank and not in its children. It takes
itself out of the way, imports the user's own `sitecustomize`, has all threads' stacks written to a file when
STACKS_SIGNAL comes, and starts torch's worker server on a Unix socket once `torch.distributed` has been imported.
It prints nothing but the stack at a crash of C code, as `python -X faulthandler` does, and notes its failures in a
file. At the end it lets gloo's threads come to rest. A file shows whether the process has made a store of torch for
several ranks, with which ranks join each other. It imports nothing of ours: it runs in the user's process.
"""

import os
import sys

if False:  # typing costs every rank's start its import
    from typing import Any, Callable

HOOK_VARIABLE = "GPUCTL_RANK_HOOK"
"""The files of this rank, without their suffixes: `.stacks`, `.sock`, `.problem`, `.alone` or `.joined`."""
STACKS_SIGNAL = 46
"""A real-time signal that no library is known to use: SIGUSR1 and SIGUSR2 are the user's."""
ALONE, JOINED = ".alone", ".joined"
"""Suffixes of the note on whether the process has made a store for several ranks."""
MOST_OF_A_SOCKETS_PATH = 107
STDERR = 2
HIGHEST = 1024
"""Descriptors from here on need more memory for the table of all."""
GLOO_THREAD = b"pt_gloo_runloop\n"
"""The name that torch gives to each thread that carries out gloo's exchanges."""
REST_S = 0.02
"""A thread that waits for the interpreter's lock looks again every 5 ms; one without work does not wake up."""
MOST_LOOKS = 100


def begin_as_told() -> None:
    """Leave no trace of this module where the user's process looks, then do its work."""
    folder = os.path.dirname(os.path.abspath(__file__))
    files = os.environ.pop(HOOK_VARIABLE, None)
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == folder and rest:
        os.environ["PYTHONPATH"] = rest
    elif first == folder:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != folder]
    if files is not None:
        begin(files)


def begin(files: str) -> None:
    """Make this process report its activity. Also called in a process that others have started."""
    _do(files, _let_gloo_rest_at_exit, _register_signal, _watch_torch_distributed, _note_alone)


def _do(files: str, *works: "Callable[[str], object]") -> None:
    for work in works:
        try:
            work(files)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script must go on
            note(files, error)


def note(files: str, problem: object) -> None:
    """Keep what went wrong; a full disk keeps nothing."""
    try:
        with open(files + ".problem", "a") as file:
            file.write("{}\n".format(problem))
    except OSError:
        return


def _let_gloo_rest_at_exit(files: str) -> None:  # noqa: ARG001
    """Have the process end only once gloo's threads have put down their last exchange.

    One that is still at it needs the interpreter's lock, which is not to be had once Python shuts down: the thread
    is ended in the middle of C++ code, which aborts the process, though all its work was done. The first registered
    function runs last: nothing of the script's is left to run then.
    """
    import atexit

    atexit.register(_let_gloo_rest)


def _let_gloo_rest() -> None:
    import time

    before = None
    for _ in range(MOST_LOOKS):
        now = _wakeups_of_gloo()
        if not now or now == before:
            return
        before = now
        time.sleep(REST_S)  # lets go of the interpreter's lock


def _wakeups_of_gloo() -> "dict[str, bytes]":
    """Return how often each of gloo's threads has waited; empty without such threads."""
    wakeups = {}
    tasks = "/proc/self/task"
    for thread in os.listdir(tasks) if os.path.isdir(tasks) else ():
        try:
            with open("{}/{}/comm".format(tasks, thread), "rb") as file:
                if file.read() != GLOO_THREAD:
                    continue
            with open("{}/{}/status".format(tasks, thread), "rb") as file:
                lines = [line for line in file if b"ctxt_switches" in line]
        except OSError:  # it has ended
            continue
        wakeups[thread] = b"".join(lines)
    return wakeups


def _register_signal(files: str) -> None:
    """Have STACKS_SIGNAL write the stacks of all threads, also while C code holds the interpreter's lock.

    A crash writes the stack to standard error, the rank's log: a script that finds faulthandler enabled keeps its
    own, and one that enables it later has its own way.
    """
    if not sys.platform.startswith("linux"):
        return
    import faulthandler
    import fcntl
    import resource
    import signal

    low = os.open(files + ".stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # faulthandler knows it by its number: scripts do not close a high one without a look.
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    max_files = HIGHEST if max_files == resource.RLIM_INFINITY else min(max_files, HIGHEST)
    handle = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(low, max_files - 64))
    os.close(low)
    in_use = signal.getsignal(STACKS_SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=STDERR, all_threads=False)
    faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True, chain=in_use)


def _note_alone(files: str) -> None:
    """Begin the note that the process has not joined others, which `_note_stores` renames."""
    with open(files + ALONE, "w"):
        return


def _watch_torch_distributed(files: str) -> None:
    """Call `_use_torch_distributed` when `torch.distributed` has been imported, by whoever does so."""
    import importlib.util

    if "torch.distributed" in sys.modules:
        _use_torch_distributed(files)
        return
    process = os.getpid()

    class Finder:
        """Looks out for the import of `torch.distributed`; once."""

        @staticmethod
        def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205, ARG004
            if name != "torch.distributed":
                return None
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            spec = importlib.util.find_spec(name)
            loader = None if spec is None else spec.loader
            if loader is None or os.getpid() != process:
                return spec
            execute = loader.exec_module

            def then_start(module):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                execute(module)
                _use_torch_distributed(files)

            loader.exec_module = then_start  # type: ignore[method-assign]
            return spec

    finder = Finder()
    sys.meta_path.insert(0, finder)


def _use_torch_distributed(files: str) -> None:
    """Start torch's worker server, and look out for its stores."""
    _do(files, _start_server, _note_stores)


def _note_stores(files: str) -> None:
    """Rename the note after this process, or a fork of it, has made a store that other ranks can reach."""
    extension = sys.modules.get("torch._C._distributed_c10d")
    # Each with the place of `world_size` among its arguments.
    for name, place in (("TCPStore", 2), ("FileStore", 1)):
        kind = getattr(extension, name, None)
        if kind is not None:
            _watch_stores(files, kind, place, getattr(extension, "PrefixStore", None))


def _watch_stores(files: str, kind: "Any", place: int, holder: "Any") -> None:  # noqa: ANN401 - a class of torch
    """Rename the note when a store of this kind has been made, unless it is for one rank.

    While a store waits for other ranks, and in the traceback of its error, nothing of this module is in the stack.
    So `__new__` reads the arguments, and the weak reference notes when the call of the constructor has ended. Only a
    store that was made can be put into another (`holder`).
    """
    from functools import partial
    from weakref import ref

    make, construct = kind.__new__, kind.__dict__["__init__"]
    alone, calls = set(), {}  # type: ignore[var-annotated]

    def new(store_kind: "Any", *args: object, **names: object) -> object:  # noqa: ANN401
        store = make(store_kind)
        ranks = names.get("world_size", args[place] if len(args) > place else None)
        if store_kind is kind and ranks == 1:  # a subclass may have other arguments
            alone.add(id(store))
        return store

    class Constructor:
        def __get__(self, store: object, owner: type) -> object:
            if store is None:
                return construct

            def note(_: object) -> None:
                calls.pop(id(store), None)
                try:
                    holder("", store)
                    if id(store) not in alone:
                        os.rename(files + ALONE, files + JOINED)
                except Exception:  # noqa: BLE001, S110 - the script has the constructor's own error
                    pass
                alone.discard(id(store))

            call = partial(construct, store)
            calls[id(store)] = ref(call, note)
            return call

    kind.__new__, kind.__init__ = staticmethod(new), Constructor()


def _start_server(files: str) -> None:
    """Start the server, if this torch has one. Raises OSError and torch's own errors."""
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    if server is None:
        return
    folder, name = os.path.split(files + ".sock")
    handle = None
    path = files + ".sock"
    if len(os.fsencode(path)) > MOST_OF_A_SOCKETS_PATH:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = "/proc/self/fd/{}/{}".format(handle, name)
    try:
        running = _silently(server, path)
        # Its destructor must never run: at the interpreter's end it could wait for an answer under way.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(running))
    finally:
        if handle is not None:
            os.close(handle)


def _silently(server: "Callable[[str, int], object]", path: str) -> object:
    """Start it without its word on standard error, which would be in the rank's log."""
    nothing, stderr = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), os.dup(2)
    try:
        os.dup2(nothing, 2)
        return server(path, -1)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _next_one() -> None:
    """Import the user's own `sitecustomize`, which this one stands before; its errors are Python's to tell."""
    import importlib

    module = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, module)


if __name__ == "sitecustomize":
    begin_as_told()
    _next_one()
