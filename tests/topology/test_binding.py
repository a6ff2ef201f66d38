import os
import threading

from streamloader.topology import bind_thread, lower_priority


def in_a_thread(call):
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    thread.join()
    return result[0]


def test_a_thread_binds_itself_and_nobody_else():
    allowed = os.sched_getaffinity(0)
    cpu = {max(allowed)}
    assert in_a_thread(lambda: (bind_thread(cpu), os.sched_getaffinity(0))) == (None, cpu)
    assert os.sched_getaffinity(0) == allowed


def test_threads_that_a_bound_thread_starts_are_bound_too():
    cpu = {min(os.sched_getaffinity(0))}

    def nested():
        bind_thread(cpu)
        return in_a_thread(lambda: os.sched_getaffinity(0))

    assert in_a_thread(nested) == cpu


def test_a_refusal_is_told_and_leaves_the_thread_where_it_was():
    allowed = os.sched_getaffinity(0)
    refusal = bind_thread({4090, 4091})
    assert refusal is not None
    assert "CPUs 4090-4091" in refusal
    assert os.sched_getaffinity(0) == allowed


def test_a_thread_yields_to_others_and_so_do_those_it_starts():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def lowered():
        return lower_priority(3), niceness(), in_a_thread(niceness)

    before = niceness()
    wanted = min(19, before + 3)
    assert in_a_thread(lowered) == (None, wanted, wanted)
    assert niceness() == before
