#!/usr/bin/env python3
"""Writes row_codec_golden.hpp: rows, and what they are in each format of Quant by numpy and ml_dtypes.

Needs both (pip install numpy ml_dtypes); made with ml_dtypes 0.5 or later. Not run by the tests.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
QUANTS = ("fp8", "fp8_pow2", "fp8_ue8m0", "int8", "mxfp8")
HEAD = """// Made by row_codec_golden.py with numpy and ml_dtypes: do not edit.
#pragma once

#include "ubep/types.hpp"

namespace ubep::test {

// x [hidden] and its encoded row, as hexadecimal digits of their bytes.
struct GoldenRow {
  Quant quant;
  DType dtype;
  const char* x;
  const char* row;
};

// clang-format off
"""


def inputs(dtype, hidden, random):
    """Blocks of unlike sizes, with zeros, subnormal numbers and elements that are not finite."""
    x = random.standard_normal(hidden) * np.exp2(random.integers(-12, 4, hidden))
    x = x.astype(np.float32)
    if hidden > 100:
        x[32:64] *= np.float32(1e-6)
        x[64:72] = 0
        x[66] = -0.0
        x[80], x[81], x[82] = np.nan, np.inf, -np.inf
        x[128:160] = 0
        x[160:192] = np.arange(32, dtype=np.float32) * np.float32(2.0**-24)
    return x.astype(DTYPES[dtype])


def blocks(x, size):
    return [x[i : i + size] for i in range(0, len(x), size)]


def amax_of(block):
    finite = np.abs(block[np.isfinite(block)])
    return finite.max() if len(finite) else np.float32(0)


def e4m3(x, scaled):
    """Nothing is too large for ml_dtypes, which would make a NaN of it."""
    codes = np.clip(scaled, -448, 448).astype(E4M3).view(np.uint8)
    return np.where(np.isfinite(x), codes, np.uint8(0x7F)).astype(np.uint8)


def encode_block(quant, x):
    """(values, scale) of one block of fp32."""
    amax = amax_of(x)
    if quant == "int8":
        if not np.isfinite(x).all():
            return np.zeros(len(x), np.uint8), np.float32(np.nan)
        amax = np.maximum(amax, np.float32(1e-10))
        values = np.rint(x * (np.float32(127) / amax)).astype(np.int8).view(np.uint8)
        return values, amax / np.float32(127)
    if quant == "fp8":
        amax = np.maximum(amax, np.float32(1e-4))
        return e4m3(x, x * (np.float32(448) / amax)), amax / np.float32(448)
    if quant == "mxfp8":
        exponent = -127 if amax == 0 else max(np.frexp(np.float64(amax))[1] - 1 - 8, -127)
    else:
        ratio, exponent = np.frexp(np.float64(np.maximum(amax, np.float32(1e-4))) / 448)
        exponent = exponent - 1 if ratio == 0.5 else exponent
    scale = np.exp2(np.float64(exponent))
    return e4m3(x, (x.astype(np.float64) / scale).astype(np.float32)), scale


def encode(quant, x):
    x = x.astype(np.float32)
    size = {"int8": len(x), "mxfp8": 32}.get(quant, 128)
    parts = [encode_block(quant, block) for block in blocks(x, size)]
    values = b"".join(part[0].tobytes() for part in parts)
    scales = np.array([part[1] for part in parts])
    if quant in ("mxfp8", "fp8_ue8m0"):
        return values + scales.astype(ml_dtypes.float8_e8m0fnu).tobytes()
    return values + bytes(-len(values) % 4) + scales.astype(np.float32).tobytes()


def literal(data):
    """A string of hexadecimal digits over several lines."""
    digits = data.hex()
    return "".join(f'\n     "{digits[i : i + 88]}"' for i in range(0, len(digits), 88))


def main():
    np.seterr(all="ignore")
    random = np.random.default_rng(20240801)
    rows, arrays = [], []
    for dtype in DTYPES:
        for hidden in (1, 33, 200):
            x = inputs(dtype, hidden, random)
            arrays.append(f"inline constexpr char k_{dtype}_{hidden}[] ={literal(x.tobytes())};\n")
            for quant in QUANTS:
                row = literal(encode(quant, x))
                rows.append(f"    {{Quant::{quant}, DType::{dtype}, k_{dtype}_{hidden},{row}}},\n")
    text = HEAD + "".join(arrays) + "inline constexpr GoldenRow kGoldenRows[] = {\n"
    text += "".join(rows) + "};\n// clang-format on\n\n}  // namespace ubep::test\n"
    Path(__file__).with_suffix(".hpp").write_text(text)


if __name__ == "__main__":
    main()
