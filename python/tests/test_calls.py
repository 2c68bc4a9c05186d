"""Arguments, states, lifetimes, signals and forks."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import ubep
from ranks import dense_moe, exact_case, job, open_comm, run

EXPERT = dict(layout="expert_major")


def one_rank(**options):
    return open_comm(ubep.local(0, 1, job()), **options)


def refused(call, *args, **kwargs):
    with pytest.raises(ubep.InvalidArgument) as caught:
        call(*args, **kwargs)
    return caught.value.argument, str(caught.value)


def test_wrong_arrays_are_named():
    comm = one_rank()
    x, idx, weights = np.zeros((5, 16), np.float32), np.zeros((5, 2), np.int32), np.ones((5, 2), np.float32)
    read_only = np.zeros((5, 16), np.float32)
    read_only.flags.writeable = False

    def seen(expected_argument, expected_words, *args, call=comm.dispatch, **kwargs):
        argument, text = refused(call, *args, **kwargs)
        assert argument == expected_argument, text
        for word in expected_words:
            assert word in text, text

    seen("x", ["float64", "float32"], x.astype(np.float64), idx, weights)
    seen("x", ["[5]", "2 dimensions"], x[:, 0], idx, weights)
    seen("x", ["[4, 20]", "at least 64"], np.zeros((16, 5), np.float32).T, idx, weights)
    seen("x", ["list"], [1, 2], idx, weights)
    seen("x", ["float32"], x.astype(">f4"), idx, weights)
    seen("x.hidden", ["65", "64"], np.zeros((5, 65), np.float32), idx, weights)
    seen("x", ["strides [0, 4]"], np.broadcast_to(x[:1], x.shape), idx, weights)
    seen("topk_idx", ["float32", "int32 or int64"], x, weights, weights)
    seen("topk_idx", ["1 dimensions"], x, idx[:, 0], weights)
    seen("topk_weights", ["int32", "float32"], x, idx, idx)
    seen("topk_weights", ["1 columns", "2"], x, idx, weights[:, :1])
    seen("routing.topk_idx", ["8", "-1..7"], x, idx + 8, weights)
    seen("topk_idx", [str(2**40)], x, idx.astype(np.int64) + 2**40, weights)
    seen("layout", ["'flat'", "expert_major"], x, idx, weights, layout="flat")
    seen("contiguous", ["1"], x, idx, weights, contiguous=1)
    seen("payload", ["'a'", "4 tokens", "5"], x, idx, weights, payloads={"a": np.zeros(4)})
    seen("handle", ["int"], x, idx, weights, handle=3)
    with pytest.raises(TypeError, match="layuot"):
        comm.dispatch(x, idx, weights, layuot="rank_major")

    handle = comm.dispatch(x, idx, weights, **EXPERT)
    rows = handle.received.num_rows
    y = np.zeros((rows, 16), np.float32)
    combine = dict(call=comm.combine)
    seen("y.num_rows", [str(rows - 1), str(rows)], handle, y[1:], **combine)
    seen("out", ["read-only"], handle, y, out=read_only, **combine)
    seen("out.dtype", ["bf16", "fp32"], handle, y, out=np.zeros((5, 16), ml_dtypes.bfloat16), **combine)
    seen("out.hidden", ["15", "16"], handle, y, out=np.zeros((5, 15), np.float32), **combine)
    seen("out", ["overlaps y"], handle, y, out=y[:5], **combine)
    seen("out", ["overlaps"], handle, out=handle.expert_output[:5], **combine)
    seen("added", ["more than 2"], handle, y, added=[x, x, x], **combine)
    assert handle.holds_lease
    assert (comm.combine(handle, y) == 0).all()


def test_options_of_creation_are_checked():
    assert refused(one_rank, max_topk=65)[0] == "max_topk"
    assert refused(one_rank, max_dtype="fp64")[0] == "max_dtype"
    assert refused(one_rank, expert_rank=[0, 1])[0] == "expert_rank"
    with pytest.raises(TypeError, match="max_token"):
        one_rank(max_token=3)
    plan = ubep.Communicator.plan_memory(0, 4, num_experts=8, max_tokens=16, max_hidden=64)
    assert plan.reserved_bytes == plan.shared_bytes + plan.private_bytes > 0


def test_calls_in_a_wrong_state():
    comm = one_rank()
    case = exact_case(0, 4)
    handle = ubep.Handle()
    with pytest.raises(ubep.Misuse):
        comm.combine(handle)
    with pytest.raises(ubep.Misuse):
        _ = handle.received
    handle = comm.dispatch(*case, handle=handle)
    with pytest.raises(ubep.Misuse, match="holds a lease"):
        comm.dispatch(*case, handle=handle)
    received = handle.received
    comm.release(handle)
    with pytest.raises(ubep.Misuse):
        _ = received.rows
    with pytest.raises(ubep.Misuse, match="communicator"):
        one_rank().dispatch(*case, handle=handle)
    comm.close()
    comm.close()
    with pytest.raises(ubep.Misuse, match="closed"):
        comm.dispatch(*case)


def test_slots_and_capacity():
    comm = one_rank(slots=1)
    case = exact_case(0, 4)
    first = comm.dispatch(*case)
    with pytest.raises(ubep.SlotBusy) as caught:
        comm.start_dispatch(*case)
    assert caught.value.code == "slot_busy" and caught.value.kind == "dispatch"
    del first
    comm.release(comm.dispatch(*case))
    with pytest.raises(ubep.NoCapacity) as caught:
        comm.dispatch(*exact_case(0, 33))
    assert (caught.value.seen, caught.value.expected) == (33, 32)


def overlap(bootstrap):
    comm = open_comm(bootstrap)
    cases = [exact_case(comm.rank, 7, seed=s) for s in (1, 2)]
    handles = [comm.start_dispatch(*case, **EXPERT) for case in cases]
    while not all([comm.poll(h) for h in handles]):
        comm.step()
    outs = []
    for handle in handles:
        handle.expert_output[:] = handle.received.rows
        outs.append(comm.start_combine(handle))
    for handle in reversed(handles):
        comm.wait(handle)
    for (x, idx, weights), out in zip(cases, outs):
        expected = np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x
        np.testing.assert_array_equal(out, expected)
    assert all(handles[0].valid_tokens())
    assert handles[0].stats.path in (ubep.Path.pull, ubep.Path.push)


def test_two_live_handles():
    run(2, overlap)


def given_buffer(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 6)
    buffer = comm.input(6, 24, "fp32")
    buffer[:] = x
    handle = comm.dispatch(buffer, idx, weights, **EXPERT)
    handle.expert_output[:] = handle.received.rows
    got = comm.combine(handle)
    np.testing.assert_array_equal(got, np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x)


def test_input_buffer():
    run(2, given_buffer)


def views_outlive(bootstrap):
    comm = open_comm(bootstrap)
    handle = comm.dispatch(*exact_case(comm.rank, 9), **EXPERT)
    rows, output, counts = handle.received.rows, handle.expert_output, handle.received.expert_counts
    before = counts.copy()
    comm.combine(handle, np.zeros(rows.shape, np.float32))
    comm.release(comm.dispatch(*exact_case(comm.rank, 3), handle=handle, **EXPERT))
    comm.close()
    del comm, handle
    gc.collect()
    output[:] = 1
    np.testing.assert_array_equal(counts, before)
    return float(rows.sum() + output.sum()) > 0


def test_views_outlive_lease_handle_and_communicator():
    assert all(run(2, views_outlive))


def drop_in_any_order(bootstrap):
    for order in range(6):
        comm = open_comm(bootstrap)
        handle = comm.start_dispatch(*exact_case(comm.rank, 3), **EXPERT)
        comm.wait(handle)
        things = [comm, handle, handle.received.rows]
        del comm, handle
        first, second = order % 3, order // 3
        things.pop(first)
        things.pop(second)
        gc.collect()


def test_del_in_any_order():
    run(2, drop_in_any_order)


def a_view_keeps_the_lease(bootstrap):
    comm = open_comm(bootstrap, slots=1)
    rows = comm.dispatch(*exact_case(comm.rank, 3), **EXPERT).received.rows
    try:
        comm.start_dispatch(*exact_case(comm.rank, 3))
        return "started"
    except ubep.SlotBusy:
        del rows
    comm.release(comm.dispatch(*exact_case(comm.rank, 3)))
    return "busy"


def test_a_view_keeps_its_lease():
    assert run(2, a_view_keeps_the_lease) == ["busy", "busy"]


def lets_go(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 5)
    out = np.zeros_like(x)
    things = [x, idx, weights, out]
    before = [sys.getrefcount(t) for t in things]
    handle = comm.dispatch(x, idx, weights, payloads={}, **EXPERT)
    held = [sys.getrefcount(t) for t in things]
    y = np.ones((handle.received.num_rows, 24), np.float32)
    comm.combine(handle, y, out=out)
    assert [h - b for h, b in zip(held, before)] == [1, 0, 0, 0] and sys.getrefcount(y) == 2
    assert [sys.getrefcount(t) for t in things] == before
    try:
        comm.dispatch(x, idx, weights[:, :1])
    except ubep.InvalidArgument:
        pass
    assert [sys.getrefcount(t) for t in things] == before


def test_arrays_are_held_for_as_long_as_the_lease():
    run(2, lets_go)


def interrupted_call(call):
    """What a signal's exception brought out of a call, and the seconds until then."""
    previous = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    begin = time.monotonic()
    try:
        call()
    except KeyboardInterrupt as error:
        return error, time.monotonic() - begin
    finally:
        signal.signal(signal.SIGALRM, previous)
    raise AssertionError("not interrupted")


def interrupted(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 5)
    took = []
    if comm.rank == 0:
        error, seconds = interrupted_call(lambda: comm.dispatch(x, idx, weights, **EXPERT))
        took.append(seconds)
        handle = error.handle
        comm.wait(handle)
        handle.expert_output[:] = handle.received.rows
        error, seconds = interrupted_call(lambda: comm.combine(handle))
        took.append(seconds)
        assert error.handle is handle and not comm.poll(handle)
        comm.wait(handle)
        got = error.out
    else:
        time.sleep(0.8)
        handle = comm.dispatch(x, idx, weights, **EXPERT)
        handle.expert_output[:] = handle.received.rows
        time.sleep(0.8)
        got = comm.combine(handle)
    np.testing.assert_array_equal(got, np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x)
    return took


def test_a_signal_interrupts_and_the_operation_goes_on():
    assert all(0.25 < seconds < 0.75 for seconds in run(2, interrupted)[0])


SCRIPT = """
    import numpy as np, sys, time, ubep
    print("up", flush=True)
    comm = ubep.init(ubep.local(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]),
                     num_experts=4, max_tokens=8, max_hidden=8, max_topk=2, timeout=20)
    x, idx, weights = np.ones((3, 8), np.float16), np.zeros((3, 2), np.int32), np.ones((3, 2), np.float32)
    idx[:, 1] = 3
"""


def start(script, *args):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(script)
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def wait_for_line(process, line):
    """Lines up to this one are read; those that follow are left to end()."""
    for read in process.stdout:
        if read == line + "\n":
            return
    raise AssertionError(f"no line {line!r}")


def end(process, limit=20):
    try:
        return process.communicate(timeout=limit)[0], process.returncode
    finally:
        process.kill()


def test_ctrl_c_during_creation():
    process = start("", 0, 2, job())
    wait_for_line(process, "up")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    output, status = end(process)
    assert "KeyboardInterrupt" in output and status == -signal.SIGINT
    assert time.monotonic() - begin < 1


def test_ctrl_c_in_a_script():
    process = start("""
        print("waiting", flush=True)
        try:
            comm.dispatch(x, idx, weights)
        except KeyboardInterrupt as error:
            print("interrupted", error.handle.holds_lease)
    """, 0, 2, name := job())
    other = start("time.sleep(1.5)", 1, 2, name)
    wait_for_line(process, "waiting")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, status = end(process)
    assert (output, status) == ("interrupted True\n", 0)
    assert end(other) == ("up\n", 0)


def test_interpreter_exit_with_live_objects():
    name = job()
    script = """
        handle = comm.dispatch(x, idx, weights, layout="expert_major")
        rows = handle.received.rows
        pending = comm.start_dispatch(x, idx, weights, layout="expert_major")
        output = pending, comm
    """
    leaving = start(script, 0, 2, name)
    staying = start(script + """
        comm.wait(pending)
        comm.release(pending)
        del rows, output
        comm.release(handle)
        time.sleep(0.5)
        try:
            while True:
                comm.release(comm.dispatch(x, idx, weights))
        except ubep.PeerLost as error:
            print(error.what, error.missing)
    """, 1, 2, name)
    assert end(leaving) == ("up\n", 0)
    output, status = end(staying)
    assert (output, status) == ("up\nleft [0]\n", 0), output


def test_a_forked_child_gets_an_error():
    comm = one_rank()
    handle = comm.dispatch(*exact_case(0, 4), **EXPERT)
    pid = os.fork()
    if pid == 0:
        caught = 0
        for call in (lambda: comm.dispatch(*exact_case(0, 4)), lambda: comm.combine(handle),
                     lambda: handle.received, comm.step, lambda: comm.wait(handle)):
            try:
                call()
            except ubep.Misuse:
                caught += 1
        comm.close()
        del handle, comm
        gc.collect()
        os._exit(caught)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert comm.combine(handle).shape == (4, 24)


def failing_experts(bootstrap):
    comm = open_comm(bootstrap, max_tokens=4)
    x, idx, weights = exact_case(comm.rank, 10)
    handle, out = ubep.Handle(), np.zeros_like(x)
    calls = 0

    def experts(h):
        nonlocal calls
        calls += 1
        assert h is handle
        if calls == 2:
            raise LookupError("of the second round")
        h.expert_output[:] = h.received.rows

    layer = lambda: comm.run_layer(x, idx, weights, experts=experts, handle=handle, out=out, **EXPERT)
    try:
        layer()
    except LookupError as error:
        assert str(error) == "of the second round"
        assert layer() is out
    np.testing.assert_array_equal(out, np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x)
    return calls


def test_an_exception_of_experts_comes_through_and_the_layer_goes_on():
    assert run(2, failing_experts) == [4, 4]


def times_out(bootstrap):
    comm = open_comm(bootstrap, timeout=0.12 if bootstrap.rank == 0 else 20)
    case = exact_case(comm.rank, 5)
    if comm.rank == 1:
        time.sleep(0.6)
        comm.release(comm.dispatch(*case))
        return None
    begin = time.monotonic()
    with pytest.raises(ubep.Timeout) as caught:
        comm.dispatch(*case)
    assert 0.1 < time.monotonic() - begin < 0.55
    assert caught.value.missing == [1] and isinstance(caught.value, TimeoutError)
    assert "rank 1" in str(caught.value)
    assert comm.poll(caught.value.handle) is False
    comm.wait(caught.value.handle, timeout=10)
    comm.release(caught.value.handle)


def test_a_timeout_names_the_rank_and_can_be_waited_for():
    run(2, times_out)


def dies(bootstrap):
    comm = open_comm(bootstrap)
    case = exact_case(comm.rank, 6)
    comm.release(comm.dispatch(*case, **EXPERT))
    if comm.rank == 1:
        comm.close()
        return None
    with pytest.raises(ubep.PeerLost) as caught:
        for _ in range(100):
            comm.release(comm.dispatch(*case, **EXPERT))
    handle = caught.value.handle
    handle.expert_output[:] = handle.received.rows
    comm.combine(handle)
    assert handle.received if handle.holds_lease else True
    return handle.valid_tokens().tolist() != [True] * 6


def test_a_lost_peer_leaves_results():
    assert run(2, dies)[0]


def differs(bootstrap):
    comm = open_comm(bootstrap)
    with pytest.raises((ubep.Mismatch, ubep.PeerLost)) as caught:
        comm.dispatch(*exact_case(comm.rank, 3), layout=["rank_major", "expert_major"][comm.rank])
        comm.dispatch(*exact_case(comm.rank, 3))
    return caught.value.code


def test_different_calls_are_a_mismatch():
    assert "mismatch" in run(2, differs)


def test_a_second_thread_is_refused():
    group = ubep.ThreadGroup(2)
    comms = [None, None]

    def make(rank):
        comms[rank] = open_comm(group.bootstrap(rank))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    handles = []
    waiting = threading.Thread(target=lambda: handles.append(comms[0].dispatch(*exact_case(0, 3))))
    waiting.start()
    time.sleep(0.2)
    with pytest.raises(ubep.Misuse, match="under way"):
        comms[0].dispatch(*exact_case(0, 3))
    comms[1].release(comms[1].dispatch(*exact_case(1, 3)))
    waiting.join()
    assert comms[0].poll(handles[0])


def lanes(bootstrap):
    comm = open_comm(bootstrap)
    comm.set_lanes(2)
    comm.trace(True)
    x, idx, weights = exact_case(comm.rank, 30)
    handle = comm.start_dispatch(x, idx, weights, **EXPERT)
    stop = threading.Event()

    def lane():
        while not stop.is_set():
            comm.step(1, 2)

    thread = threading.Thread(target=lane)
    thread.start()
    comm.wait(handle)
    stop.set()
    thread.join()
    handle.expert_output[:] = handle.received.rows
    got = comm.combine(handle)
    np.testing.assert_array_equal(got, np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x)
    assert sum(comm.lane_times(0).values()) > 0 and sum(comm.lane_times(1).values()) > 0


def test_lanes_are_threads_and_are_traced():
    run(2, lanes)


def dropped_meanwhile(bootstrap):
    comm = open_comm(bootstrap)
    case = exact_case(comm.rank, 4)
    kept = [comm.dispatch(*case)]
    threading.Timer(0.2, kept.clear).start()
    if comm.rank == 1:
        time.sleep(0.5)
    comm.release(comm.dispatch(*case))
    for _ in range(4):
        comm.release(comm.dispatch(*case))


def test_a_handle_dropped_by_another_thread_during_a_wait():
    run(2, dropped_meanwhile)


def test_dense_reference_is_not_the_library():
    x, idx, weights = np.ones((1, 2), np.float32), np.array([[1, -1]]), np.ones((1, 2), np.float32)
    assert dense_moe(x, idx, weights).tolist() == [[2.0, 2.0]]
