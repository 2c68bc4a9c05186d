"""Chunk sizes that tune kernels of GPUs, and sizes of their buffers. Nothing here changes a result."""

_MAX_TOPK = 128
_MAX_SCALES = 128
_NVL_PEERS = 8
_META_BYTES = 8

# Ranks -> (send and receive chunk of the links in a node, of those between nodes).
_DISPATCH = {
    2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128), 16: (36, 288, 20, 128),
    24: (32, 288, 8, 128), 32: (32, 288, 8, 128), 48: (32, 288, 8, 128), 64: (32, 288, 8, 128),
    96: (20, 480, 12, 128), 128: (20, 560, 12, 128), 144: (32, 720, 12, 128), 160: (28, 720, 12, 128),
}
_COMBINE = {
    2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128), 16: (4, 288, 12, 128),
    24: (1, 288, 8, 128), 32: (1, 288, 8, 128), 48: (1, 288, 8, 128), 64: (1, 288, 8, 128),
    96: (1, 480, 8, 128), 128: (1, 560, 8, 128), 144: (2, 720, 8, 128), 160: (2, 720, 8, 128),
}


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class Config:
    """Chunks, in tokens, and how many multiprocessors: checked, kept, and of no effect on a CPU."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256, num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256) -> None:
        send, receive = num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens
        far_send = num_max_rdma_chunked_send_tokens
        if num_sms < 0 or not 0 < send < receive or far_send < 1:
            raise ValueError(f"num_sms is {num_sms}, chunks are {send} and {receive}, {far_send}; expected "
                             "num_sms >= 0, 0 < sent < received tokens")
        far_receive = _round_up(num_max_rdma_chunked_recv_tokens, far_send)
        if far_send > far_receive // 2:
            raise ValueError(f"num_max_rdma_chunked_send_tokens is {far_send}, expected at most half of "
                             f"{far_receive}")
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = send
        self.num_max_nvl_chunked_recv_tokens = receive
        self.num_max_rdma_chunked_send_tokens = far_send
        self.num_max_rdma_chunked_recv_tokens = far_receive

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that a GPU would need within a node."""
        nodes, ranks = max(num_ranks // _NVL_PEERS, 1), min(num_ranks, _NVL_PEERS)
        lanes = self.num_sms // 2 * ranks
        token = hidden_bytes + _META_BYTES + _MAX_TOPK * (8 + 4) + _MAX_SCALES * 4
        words = (2 * nodes + 3) * 4
        return _round_up(lanes * (words + self.num_max_nvl_chunked_recv_tokens * token), 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that a GPU would need between nodes; 0 = one node."""
        if num_ranks <= _NVL_PEERS:
            return 0
        lanes = self.num_sms // 2 * (num_ranks // _NVL_PEERS) * 2
        token = hidden_bytes + _META_BYTES + _MAX_TOPK * (8 + 4) + _MAX_SCALES * 4 + 16
        words = (_NVL_PEERS * 2 + 2) * 4
        return _round_up(lanes * (words + self.num_max_rdma_chunked_recv_tokens * token), 128)


def _config(table: "dict[int, tuple[int, int, int, int]]", num_sms: int, num_ranks: int) -> Config:
    row = next((chunks for ranks, chunks in table.items() if ranks >= num_ranks), table[160])
    return Config(num_sms, *row)


def dispatch_config(num_sms: int, num_ranks: int) -> Config:
    """The recommended Config of a dispatch; of the next number of ranks that has one."""
    return _config(_DISPATCH, num_sms, num_ranks)


def combine_config(num_sms: int, num_ranks: int) -> Config:
    """The same of a combine."""
    return _config(_COMBINE, num_sms, num_ranks)


def low_latency_size(max_tokens: int, hidden: int, num_ranks: int, num_experts: int) -> int:
    """Bytes of two buffers, odd and even, for sending, receiving and signals of low-latency calls."""
    scales = hidden // 128 * 4
    dispatch = 16 + max(2 * hidden, hidden + scales)
    combine = 2 * hidden + scales
    send = max(max_tokens * dispatch, num_experts * max_tokens * combine)
    receive = num_experts * max_tokens * max(dispatch, combine)
    total = 2 * (send + receive + _round_up(4 * num_experts, 128))
    return (total + 128) // 128 * 128
