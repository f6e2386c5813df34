// Loops that do nothing but keep one unit of a core busy. Each runs on the calling thread and
// returns the operations it did (a multiply-add counts as two), or the bytes it moved.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fathom/os/cpu_info.h"

namespace fathom {

/// One loop: `run(rounds)` does rounds * a fixed number of operations.
struct ComputeLoop {
  std::string_view instruction;  ///< what it is made of, "vfmadd231ps zmm"; empty: there is none
  double (*run)(int64_t rounds) = nullptr;
};

/// The fastest loops of an instruction set; loops without a `run` do not exist there.
ComputeLoop f32_loop(Isa isa);
ComputeLoop bf16_loop(Isa isa);
ComputeLoop int8_loop(Isa isa);

/// What kernels for every processor are made of: sums of products whose additions wait for each
/// other.
ComputeLoop plain_loop();

/// Reads all words; returns something that depends on them.
uint64_t read_words(std::span<const uint64_t> words);

}  // namespace fathom
