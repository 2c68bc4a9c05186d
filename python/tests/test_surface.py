"""What the package shows: the golden stub, the ways to find other ranks, the example of README.md."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import ubep
from ranks import exact_case, job, open_comm, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "ubep" / "_core.pyi"


def test_the_stub_is_that_of_the_module(tmp_path):
    """After a wanted change: python -m nanobind.stubgen -m ubep._core -o python/ubep/_core.pyi"""
    pytest.importorskip("nanobind", reason="nanobind is not installed: the stub is not compared")
    made = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ubep._core", "-o", made],
                   check=True, cwd=tmp_path)
    assert made.read_text() == STUB.read_text()


def test_every_public_name_has_a_docstring():
    for name in ubep.__all__:
        thing = getattr(ubep, name)
        assert not callable(thing) or thing.__doc__, name
    assert "ubep 0." in ubep.build_facts()


def small(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 3)
    handle = comm.dispatch(x, idx, weights, layout="expert_major")
    handle.expert_output[:] = handle.received.rows
    got = comm.combine(handle)
    np.testing.assert_array_equal(got, np.where(idx >= 0, weights, 0).sum(axis=1)[:, None] * x)
    return comm.size


def by_environment(bootstrap, name):
    os.environ.update(UBEP_RANK=str(bootstrap.rank), UBEP_WORLD_SIZE=str(bootstrap.size), UBEP_JOB=name)
    assert ubep.Bootstrap.in_environment()
    return small(ubep.from_environment())


def test_ranks_of_a_launcher():
    assert run(2, by_environment, job()) == [2, 2]


def test_no_launcher_is_an_error(monkeypatch):
    for name in list(os.environ):
        if re.match(r"UBEP_|OMPI_|PMI_|SLURM_|RANK$|WORLD_SIZE$|TORCHELASTIC", name):
            monkeypatch.delenv(name)
    with pytest.raises(ubep.SetupError, match="UBEP_RANK"):
        ubep.init(num_experts=1, max_hidden=1)


def by_process_group(bootstrap, path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=bootstrap.rank,
                            world_size=bootstrap.size)
    size = small(ubep.from_process_group())
    dist.barrier()
    dist.destroy_process_group()
    return size


def test_ranks_of_a_process_group(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert run(2, by_process_group, tmp_path / "group", limit=60) == [2, 2]


def by_store(bootstrap, path):
    import torch.distributed as dist

    store = dist.FileStore(str(path), bootstrap.size)
    first = small(ubep.from_store(store, bootstrap.rank, bootstrap.size))
    return first + small(ubep.from_store(store, bootstrap.rank, bootstrap.size, key="second"))


def test_ranks_of_a_store(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert run(2, by_store, tmp_path / "store", limit=60) == [4, 4]


def by_tcp_store(bootstrap, path):
    from datetime import timedelta

    import torch.distributed as dist

    # Rank 0 takes a free port and tells it by the file.
    if bootstrap.rank == 0:
        store = dist.TCPStore("localhost", 0, bootstrap.size, True, timedelta(seconds=20), False)
        temporary = path.with_suffix(".new")
        temporary.write_text(str(store.port))
        temporary.rename(path)
    else:
        while not path.exists():
            os.sched_yield()
        store = dist.TCPStore("localhost", int(path.read_text()), bootstrap.size, False,
                              timedelta(seconds=20), False)
    size = small(ubep.from_store(store, bootstrap.rank, bootstrap.size))
    # The store lives in rank 0, so it leaves last.
    store.set(f"done{bootstrap.rank}", "1")
    if bootstrap.rank == 0:
        store.wait([f"done{r}" for r in range(bootstrap.size)])
    return size


def test_ranks_of_a_tcp_store(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert run(2, by_tcp_store, tmp_path / "port", limit=60) == [2, 2]


def test_the_example_of_the_readme():
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    name, ranks = job(), []
    for rank in range(2):
        env = os.environ | dict(UBEP_RANK=str(rank), UBEP_WORLD_SIZE="2", UBEP_JOB=name)
        ranks.append(subprocess.Popen([sys.executable, "-c", code], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for rank, process in enumerate(ranks):
        try:
            output = process.communicate(timeout=30)[0]
        finally:
            process.kill()
        assert process.returncode == 0 and output == f"rank {rank}: got back what it sent\n", output
