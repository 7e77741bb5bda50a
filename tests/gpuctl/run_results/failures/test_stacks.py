"""Stacks are read as torch's worker server and faulthandler write them."""

from gpuctl.run_results.failures.stacks import (
    Frame,
    collective,
    in_project,
    main_thread,
    threads,
    waits_for_data,
)

LIB = "/env/lib/python3.11/site-packages/torch"
CODE = "/home/me/.gpuctl-node/code"
IN_ALL_REDUCE = f"""\
Current thread 0x00007f815bffe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f8179c3fb80 (most recent call first):
  File "{LIB}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{LIB}/distributed/c10d_logger.py", line 83 in wrapper
  File "{CODE}/proj-935ae766/sub/train.py", line 16 in step
  File "{CODE}/proj-935ae766/sub/train.py", line 20 in <module>
"""
WAITS_FOR_WORKER = f"""\
Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Thread 0x2 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "{LIB}/utils/data/dataloader.py", line 1255 in _try_get_data
  File "{LIB}/utils/data/dataloader.py", line 733 in __next__
  File "{CODE}/proj-935ae766/train.py", line 9 in <module>
"""


def test_main_thread_is_the_last_with_frames() -> None:
    assert [len(thread) for thread in threads(WAITS_FOR_WORKER)] == [1, 4]
    assert main_thread(IN_ALL_REDUCE)[0].function == "all_reduce"
    assert main_thread("Current thread 0x1 (most recent call first):\n  <no Python frame>\n") == []


def test_place_in_the_script_is_the_innermost_sent_file() -> None:
    assert in_project(main_thread(IN_ALL_REDUCE), CODE) == Frame(
        file="sub/train.py", line=16, function="step"
    )


def test_place_outside_of_what_was_sent_is_the_innermost_that_is_no_library() -> None:
    frames = [
        Frame(file=f"{LIB}/nn.py", line=1, function="forward"),
        Frame(file="/opt/job/go.py", line=7, function="main"),
    ]
    assert in_project(frames, CODE) == frames[1]
    assert in_project(frames[:1], CODE) is None


def test_collective_is_named_by_the_stack() -> None:
    assert collective(main_thread(IN_ALL_REDUCE)) == "all_reduce"
    assert collective(main_thread(WAITS_FOR_WORKER)) is None


def test_wait_for_a_dataloader_worker_is_known_by_the_stack() -> None:
    assert waits_for_data(main_thread(WAITS_FOR_WORKER))
    assert not waits_for_data(main_thread(IN_ALL_REDUCE))
