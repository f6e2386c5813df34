#!/usr/bin/env python3
"""Writes vectors.txt: quantised groups computed with exact rational arithmetic.

Every float32 operation of a recipe is a rational operation followed by one rounding to the nearest
float32, ties to even, so the result does not depend on any floating-point unit or on fathom. Each
line is

    recipe parameter input... : scale code...

with the parameter as float32 bits (0 where a recipe has none), inputs as bf16 bits, the scale as the
bits of its format and codes as bytes, all in hexadecimal.

Usage: make_vectors.py > vectors.txt
"""
import bisect
import random
from fractions import Fraction as Q

F32_MIN_NORMAL = Q(1, 2**126)


def round_even(x):
    """The integer nearest to the rational x >= 0, ties to even."""
    floor = x.numerator // x.denominator
    rest = x - floor
    return floor + (1 if rest > Q(1, 2) or (rest == Q(1, 2) and floor % 2) else 0)


def f32(x):
    """The float32 nearest to x, as a rational. No overflow occurs here."""
    if x == 0:
        return Q(0)
    sign, x = (-1, -x) if x < 0 else (1, x)
    exponent = max(exponent_of(x), -126)
    step = Q(2) ** (exponent - 23)
    return sign * round_even(x / step) * step


def exponent_of(x):
    """floor(log2 x) of a positive rational."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Q(2) ** e <= x else e - 1


def f32_bits(x):
    """Bits of a non-negative float32 value."""
    if x < F32_MIN_NORMAL:
        return int(x * 2**149)
    e = exponent_of(x)
    return (e + 127) << 23 | int((x / Q(2) ** e - 1) * 2**23)


def bf16_value(bits):
    e, m = bits >> 7 & 255, bits & 127
    magnitude = Q(m, 2**133) if e == 0 else (1 + Q(m, 128)) * Q(2) ** (e - 127)
    return -magnitude if bits >> 15 else magnitude


def bf16_bits(x):
    """bf16 bits of a Python float, truncated; any bf16 will do as an input."""
    q = f32(abs(Q(x)))
    return f32_bits(q) >> 16 | (0x8000 if x < 0 else 0)


def grid(exponent_bits, mantissa_bits, count):
    bias = 2 ** (exponent_bits - 1) - 1
    out = []
    for code in range(count):
        e, m = code >> mantissa_bits, Q(code % 2**mantissa_bits, 2**mantissa_bits)
        out.append(m * Q(2) ** (1 - bias) if e == 0 else (1 + m) * Q(2) ** (e - bias))
    return out


E4M3 = grid(4, 3, 127)
E2M1 = grid(2, 1, 8)


def nearest(values, x):
    """The code of the value nearest to x >= 0, ties to the even code, saturating."""
    high = min(bisect.bisect_left(values, x), len(values) - 1)
    return min((max(high - 1, 0), high), key=lambda c: (abs(values[c] - x), c % 2))


def encode(values, sign_bit, x):
    return nearest(values, abs(x)) | (sign_bit if x < 0 else 0)


def ceil_power(x):
    """The smallest power of two not below x."""
    e = exponent_of(x)
    return Q(2) ** (e if Q(2) ** e == x else e + 1)


def nvfp4_weights(x, scale):
    raw = f32(max(map(abs, x)) / f32(6 * scale))
    raw = Q(1) if raw == 0 else raw
    sf = nearest(E4M3, min(max(raw, E4M3[1]), Q(448)))
    step = f32(E4M3[sf] * scale)
    return sf, [encode(E2M1, 8, f32(v / step)) for v in x]


def nvfp4_activations(x, gs):
    sf = nearest(E4M3, f32(gs * f32(max(map(abs, x)) * f32(Q(1, 6)))))
    factor = Q(0) if sf == 0 else f32(1 / f32(E4M3[sf] * f32(1 / gs)))
    # A negative value times zero is -0, which keeps its sign.
    return sf, [encode(E2M1, 8, f32(v * factor)) | (8 if v < 0 else 0) for v in x]


def mxfp4_ocp(x, _):
    amax = max(map(abs, x))
    e = max(exponent_of(amax) - 2, -126) if amax else -126
    return e + 127, [encode(E2M1, 8, v / Q(2) ** e) for v in x]


def mxfp4_ceil(x, _):
    amax = max(map(abs, x))
    e = max(exponent_of(ceil_power(amax / 6)), -126) if amax else -126
    return e + 127, [encode(E2M1, 8, v / Q(2) ** e) for v in x]


def fp8(floor, multiply_scale=False, power=False, quotient="divide"):
    def recipe(x, _):
        amax = max(max(map(abs, x)), f32(Q(floor)))
        scale = f32(amax * f32(Q(1, 448))) if multiply_scale else f32(amax / 448)
        scale = max(scale, F32_MIN_NORMAL)
        if power:
            scale = ceil_power(scale)
        if quotient == "divide":
            codes = [f32(v / scale) for v in x]
        elif quotient == "inverse":
            codes = [f32(v * f32(1 / scale)) for v in x]
        else:
            codes = [f32(v * f32(448 / max(amax, 448 * F32_MIN_NORMAL))) for v in x]
        return f32_bits(scale), [encode(E4M3, 128, v) for v in codes]

    return recipe


def int8_rows(x, _):
    absmax = max(max(map(abs, x)), f32(Q(1e-10)))
    factor = f32(127 / absmax)
    codes = []
    for v in x:
        q = f32(v * factor)
        magnitude = int(abs(q) + Q(1, 2))  # half away from zero
        codes.append((-magnitude if q < 0 else magnitude) & 255)
    return f32_bits(f32(absmax / 127)), codes


def int8_groups(x, _):
    scale = f32(max(max(map(abs, x)), f32(Q(1e-10))) / 127)
    codes = [min(max(f32(v / scale), -128), 127) for v in x]
    return f32_bits(scale), [int(v) & 255 for v in codes]  # int() truncates


RECIPES = {
    "nvfp4_weights": (nvfp4_weights, 16),
    "nvfp4_activations": (nvfp4_activations, 16),
    "mxfp4_ocp": (mxfp4_ocp, 32),
    "mxfp4_ceil": (mxfp4_ceil, 32),
    "fp8_v3_demo": (fp8(1e-4), 16),
    "fp8_v32_demo": (fp8(1e-4, multiply_scale=True), 16),
    "fp8_v32_demo_ue8m0": (fp8(1e-4, multiply_scale=True, power=True), 16),
    "fp8_sglang_group": (fp8(1e-10), 16),
    "fp8_sglang_group_v2": (fp8(1e-10, multiply_scale=True, quotient="max_over_amax"), 16),
    "fp8_deep_gemm": (fp8(1e-4, quotient="inverse"), 16),
    "fp8_per_token": (fp8(0, quotient="inverse"), 16),
    "int8_rows": (int8_rows, 16),
    "int8_groups": (int8_groups, 16),
}


def make_group(rng, count, case):
    if case == 0:
        return [0.0] * count
    magnitude = 10.0 ** rng.uniform(-7, 2)
    if case % 4 == 1:  # small multiples of a power of two: ties
        return [rng.randint(-24, 24) * 2.0**-6 for _ in range(count)]
    if case % 4 == 2:  # heavy tail
        return [magnitude * rng.gauss(0, 1) ** 3 for _ in range(count)]
    return [magnitude * rng.gauss(0, 1) for _ in range(count)]


# NVFP4 groups in which dividing where the recipe multiplies by a reciprocal, or the reverse, changes
# the scale or a code: recipe, parameter bits, inputs.
DELICATE = [
    ("nvfp4_weights", 0x3b524925,
     "bf51 3fb9 4023 3e02 bfc9 3fb8 3f94 3f65 3e0f bf54 bf0e bf95 be95 bed2 bfc1 bf9b"),
    ("nvfp4_activations", 0x439bd37a,
     "bf51 3fb9 4023 3e02 bfc9 3fb8 3f94 3f65 3e0f bf54 bf0e bf95 be95 bed2 bfc1 bf9b"),
    ("nvfp4_weights", 0x3ac92492,
     "bf84 3f31 be35 3cb6 3e06 3f97 3fea bf14 bef5 3f5d 3fc5 bf5e bd92 bebc 3f31 be96"),
    ("nvfp4_activations", 0x4422e8ba,
     "bf84 3f31 be35 3cb6 3e06 3f97 3fea bf14 bef5 3f5d 3fc5 bf5e bd92 bebc 3f31 be96"),
    ("nvfp4_weights", 0x3b155555,
     "3f52 3f09 be2c bf7f bf5c bf3b beb6 be56 bf54 3f63 3e4e 3d45 bfcb bf8c bf2e bf20"),
    ("nvfp4_activations", 0x43db6db7,
     "3f52 3f09 be2c bf7f bf5c bf3b beb6 be56 bf54 3f63 3e4e 3d45 bfcb bf8c bf2e bf20"),
    ("nvfp4_weights", 0x3ad24925,
     "bf36 bfb6 3fad 3f68 bf6e 3f28 3fb8 401b 3d55 3f2c 3ec4 3d26 3e40 3fde be40 3ec1"),
    ("nvfp4_activations", 0x441bd37a,
     "bf36 bfb6 3fad 3f68 bf6e 3f28 3fb8 401b 3d55 3f2c 3ec4 3d26 3e40 3fde be40 3ec1"),
    ("nvfp4_weights", 0x3af9e79e,
     "bf38 bf0a beec bedd 3bf5 3f34 beda 3e89 bdb4 bf2d bf42 3ff6 3fb3 bf52 3efb bf93"),
    ("nvfp4_weights", 0x3b555555,
     "3ea1 3ea4 beb1 bcc5 be97 3e90 bf26 3ed2 bd3a 3f24 c02a 3fa5 3f89 bf56 3e83 bdca"),
    ("nvfp4_activations", 0x43db6db7,
     "3e4b bf19 bfa4 3e41 3e8f 3f98 402f 401e 3e06 beaf bfcf 3fb7 bf81 c01f 3ef7 400f"),
    ("nvfp4_activations", 0x4499999a,
     "3c9e 3ab4 bf91 bed9 bf86 3d57 3f57 befb bee2 bf0c 3f59 be8e 3f0b 3f57 3ecc 3e83"),
]


def f32_value(bits):
    return (1 + Q(bits & 0x7FFFFF, 2**23)) * Q(2) ** ((bits >> 23) - 127)


def print_case(name, inputs, parameter):
    # The inputs hold no -0, so the sign of zero is never in question.
    scale, codes = RECIPES[name][0]([bf16_value(b) for b in inputs], parameter)
    words = " ".join(f"{b:04x}" for b in inputs)
    print(f"{name} {f32_bits(parameter):08x} {words} : {scale:x} " +
          " ".join(f"{c:02x}" for c in codes))


def main():
    rng = random.Random(2025)
    for name, (_, count) in RECIPES.items():
        for case in range(24):
            inputs = [bf16_bits(v) for v in make_group(rng, count, case)]
            parameter = Q(0)
            if name == "nvfp4_weights":
                parameter = f32(Q(10.0 ** rng.uniform(-6, -1)))
            elif name == "nvfp4_activations":
                parameter = f32(Q(10.0 ** rng.uniform(0, 5)))
            print_case(name, inputs, parameter)
    for name, parameter, inputs in DELICATE:
        print_case(name, [int(word, 16) for word in inputs.split()], f32_value(parameter))


main()
