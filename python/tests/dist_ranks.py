"""Ranks with a torch process group of gloo on the loopback interface."""

import os
import tempfile

import torch
import torch.distributed as dist

import ranks

torch.set_num_threads(1)


def _body(bootstrap, path, body, args):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(path, bootstrap.size), rank=bootstrap.rank,
                            world_size=bootstrap.size)
    try:
        return body(dist.group.WORLD, *args)
    finally:
        dist.destroy_process_group()


def run(size, body, *args, limit=60):
    """body(group, *args) on `size` processes; their results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        return ranks.run(size, _body, os.path.join(folder, "store"), body, args, limit=limit)
