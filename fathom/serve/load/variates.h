// Random numbers of the shapes that traffic has. Every function takes what it needs from `rng`, so
// the same seed gives the same traffic on every machine.
#pragma once

#include <cstdint>

#include "fathom/base/rng.h"

namespace fathom::serve {

/// Uniform in [0, 1), with 53 bits.
double uniform_double(Rng& rng);

/// Standard normal, by Box-Muller.
double normal_double(Rng& rng);

/// Exponential of this mean.
double exponential_double(Rng& rng, double mean);

/// Gamma of this shape above 0 and scale 1: mean and variance are `shape`. Source: Marsaglia,
/// Tsang, "A simple method for generating gamma variables", 2000.
double gamma_double(Rng& rng, double shape);

/// exp(N(ln median, sigma)), rounded, from `low` to `high`: lengths with a heavy tail.
int64_t lognormal_length(Rng& rng, double median, double sigma, int64_t low, int64_t high);

}  // namespace fathom::serve
