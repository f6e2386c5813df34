#!/usr/bin/env python3
"""Times the matrix products of the libraries on this machine, for ratios within one run.

    scripts/gpu_peers.py --out FILE.csv [--tokens 1,16,128,512,2048,4096] [--shapes q_b,o,...]

cuBLASLt through PyTorch: bf16 (torch.matmul) and E4M3 with one scale a tensor and without fast
accumulation (torch._scaled_mm). A graph of launches walks through copies of the operands, so that
weights come from memory, as in cuda_kernels_test --time. Columns: peer, shape, M, N, K, us, TFLOP/s,
GB/s of the weights.
"""
import argparse
import csv
import sys

import torch

# Rows and columns of the weights of DeepSeek R1.
SHAPES = {
    "qkv_a": (2112, 7168),
    "q_b": (24576, 1536),
    "kv_b": (32768, 512),
    "o": (7168, 16384),
    "gate_up": (4096, 7168),
    "down": (7168, 2048),
    "dense_gate_up": (36864, 7168),
}
CACHE_BYTES = 256 << 20


def time_graph(launches):
    """Microseconds of one launch: the median of 15 replays of a graph of all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches[:2]:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times = []
    for _ in range(18):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(launches))
    return sorted(times[3:])[7]


def copies_of(bytes_of_one):
    """Operands enough to have left the last cache before they come again."""
    return max(2, min(24, CACHE_BYTES // max(1, bytes_of_one) + 1))


def bf16_launches(m, n, k):
    count = copies_of(2 * (m * k + n * k + m * n))
    xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    ws = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    ys = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    return [lambda i=i: torch.matmul(xs[i], ws[i].t(), out=ys[i]) for i in range(count)]


def fp8_launches(m, n, k):
    rows = (m + 15) // 16 * 16
    count = copies_of(rows * k + n * k + 2 * rows * n)
    one = torch.ones((), device="cuda")
    xs = [torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(count)]
    ws = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(count)]
    ys = [torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    return [
        lambda i=i: torch._scaled_mm(xs[i], ws[i].t(), scale_a=one, scale_b=one, out=ys[i],
                                     out_dtype=torch.bfloat16, use_fast_accum=False)
        for i in range(count)
    ]


PEERS = {"cublaslt_bf16": (bf16_launches, 2), "cublaslt_fp8": (fp8_launches, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokens", default="1,16,128,512,2048,4096")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_peers: PyTorch finds no GPU", file=sys.stderr)
        return 69
    torch.manual_seed(20260101)
    with open(args.out, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["peer", "shape", "M", "N", "K", "us", "tflops", "weight_gbps"])
        for name in args.shapes.split(","):
            n, k = SHAPES[name]
            for m in map(int, args.tokens.split(",")):
                for peer, (launches, element) in PEERS.items():
                    us = time_graph(launches(m, n, k))
                    rows.writerow([peer, name, m, n, k, f"{us:.2f}", f"{2e-6 * m * n * k / us:.1f}",
                                   f"{1e-3 * n * k * element / us:.0f}"])
                    file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
