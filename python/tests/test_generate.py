"""`python -m ubep.generate` on the tiny model: the same text on any number of ranks and any comm."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

MODEL = pathlib.Path(__file__).resolve().parents[2] / "examples" / "tiny_moe" / "model"
GLOO = "ubep,gloo-alltoall,gloo-allgather"


def command(*more):
    return [sys.executable, "-m", "ubep.generate", "--model", str(MODEL), "--tokens", "24", *more]


def text_of(*more):
    done = subprocess.run(command(*more), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n\nTPOT")[0], done.stdout


def test_ranks_and_comms_give_the_same_text():
    prompts = ("--prompt", "The morning was fine, and", "--prompt", "She had never", "--prompt", "CHAPTER I")
    alone, _ = text_of(*prompts)
    assert len(alone) > 40
    spread, printed = text_of(*prompts, "--ranks", "4", "--comm", GLOO)
    assert spread == alone
    for name in GLOO.split(","):
        assert f"\n{name} " in printed


def test_ranks_without_a_prompt_compute_for_the_others(tmp_path):
    from safetensors.torch import load_file

    path = tmp_path / "routing.safetensors"
    text, _ = text_of("--ranks", "4", "--record", str(path))
    assert text == text_of()[0]
    routing = load_file(path)
    layers, tokens, topk = routing["topk_idx"].shape
    assert (layers, topk) == (4, 4) and tokens > 23
    assert routing["topk_weights"].sum(-1).sub(1).abs().max() < 1e-5


def test_tokens_are_those_of_transformers():
    pytest.importorskip("transformers")
    for more in ((), ("--temperature", "0.7", "--batch", "2")):
        _, printed = text_of("--ranks", "2", "--check", *more)
        assert printed.count("24 of 24 tokens are those of transformers") == (2 if more else 1)


def test_what_is_refused():
    for more, says in ((("--ranks", "3"), "expected a divisor of the model's 32 experts"),
                       (("--comm", "mpi"), "not one of ubep"), (("--ranks", "0"), "--ranks is 0, expected at least 1"),
                       (("--prompt", ""), "--prompt is empty"), (("--model", "/nowhere"), "config.json")):
        done = subprocess.run(command(*more), capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and says in done.stderr


def test_a_rank_that_dies_ends_the_others():
    process = subprocess.Popen(command("--ranks", "4", "--tokens", "100000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdout.read(60)  # all are at work
        children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"],
                                  capture_output=True, text=True).stdout.split()
        assert len(children) == 4
        subprocess.run(["kill", "-9", children[1]], check=True)
        begin = time.monotonic()
        assert process.wait(timeout=30) == 3
        assert "rank 1 was ended by SIGKILL" in process.stderr.read().decode()
        assert time.monotonic() - begin < 20
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        process.stdout.close()
        process.stderr.close()


def test_ranks_end_with_the_command():
    process = subprocess.Popen(command("--ranks", "2", "--tokens", "100000"), stdout=subprocess.PIPE)
    process.stdout.read(60)
    children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"],
                              capture_output=True, text=True).stdout.split()
    process.kill()
    process.wait(timeout=30)
    process.stdout.read()  # until the last rank has closed it
    process.stdout.close()
    assert len(children) == 2
