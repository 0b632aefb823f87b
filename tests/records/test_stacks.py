"""Dumps of faulthandler and of py-spy are read, and the line of the user's code in the thread that computes is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.driver.run.stall_location import location
from orchestrator.records.stacks import Frame, Home, as_lines, held_up_at, parse, parse_spied, working
from orchestrator.worker.member.stack_dump import ProcessStacks

HOME = Home("/home/u/project", "/home/u/project/orchestrator", "/usr/lib/python3.11")
DUMP = """\
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/home/u/project/pipelines/helper.py", line 3 in <lambda>

Current thread 0x00007f2 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125 in forward
  File "/home/u/project/pipelines/net.py", line 42 in forward
  File "/home/u/project/pipelines/digits.py", line 17 in loss
  File "/home/u/project/orchestrator/worker/model/pipeline_adapter.py", line 310 in _gradients
  File "/home/u/project/orchestrator/worker/step/local_trainer.py", line 99 in contribute
"""
SPIED = """\
Process 12: ray::Member.run
Python v3.11.2 (/usr/bin/python3.11)

Thread 12 (active): "MainThread"
    loss (/home/u/project/pipelines/digits.py:17)
    _gradients (/home/u/project/orchestrator/worker/model/pipeline_adapter.py:310)
Thread 14 (idle): "poll"
    wait (/usr/lib/python3.11/threading.py:331)
"""


def test_the_innermost_line_of_the_user_in_the_thread_that_computes_is_named() -> None:
    threads = parse(DUMP)
    assert list(map(len, threads)) == [2, 5]
    assert held_up_at(threads, HOME) == (Frame("pipelines/net.py", 42, "forward"), True)
    assert held_up_at(parse_spied(SPIED), HOME) == (Frame("pipelines/digits.py", 17, "loss"), True)


def test_where_the_users_code_is_not_on_the_stack_the_innermost_line_is_told_as_such() -> None:
    frames = "\n".join(line for line in DUMP.splitlines() if "pipelines" not in line)
    found = held_up_at(parse(frames), HOME)
    assert found == (Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward"), False)
    assert held_up_at(parse(DUMP.partition("Current")[0]), HOME) is None


def test_who_waits_for_a_gpu_is_said_to() -> None:
    """Also where the line of the user's is told."""
    line = '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125 in forward'
    on_card = line.replace("nn/modules/linear.py", "cuda/streams.py").replace("125 in forward", "90 in synchronize")
    seen = ProcessStacks(DUMP.replace(line, on_card), "S")
    assert location(seen, HOME).sentence.startswith("it waits for its GPU; pipelines/net.py:42 in forward")
    assert not location(ProcessStacks(DUMP, "S"), HOME).sentence.startswith("it waits")


def test_what_is_installed_within_the_project_is_not_the_users() -> None:
    assert not HOME.is_users(Frame("/home/u/project/.venv/lib/python3.11/site-packages/x.py", 1, "f"))
    assert not HOME.is_users(Frame("/home/u/project/orchestrator/common/values.py", 1, "f"))
    assert not HOME.is_users(Frame("/home/u/project2/x.py", 1, "f"))
    assert HOME.is_users(Frame("/home/u/project/x.py", 1, "f"))


@given(st.integers(0, len(DUMP)))
def test_a_dump_may_break_off_anywhere(end: int) -> None:
    whole = parse(DUMP)
    for cut, full in zip(parse(DUMP[:end]), whole, strict=False):
        assert all(frame in full or str(frame.line) in str(full) for frame in cut)


@given(st.text(st.sampled_from('Thread 0x(most recncalfi):\n "File",line1in/.py'), max_size=400))
def test_no_text_is_too_strange(text: str) -> None:
    for threads in (parse(text), parse_spied(text)):
        assert working(threads) in [(), *threads]
        assert sum(map(len, as_lines(threads, 5))) <= 5
