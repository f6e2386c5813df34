// What every kernel contract must provide.
#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/kernels/core/contract/signature.h"
#include "fathom/trace/cost.h"

namespace fathom {

/// A small fixed list of names. (An initializer_list member is no constant expression in GCC 12.)
struct NameList {
  std::array<std::string_view, 4> names{};
  int size = 0;

  constexpr NameList() = default;

  constexpr NameList(std::initializer_list<std::string_view> list) {
    for (std::string_view n : list)
      names[static_cast<size_t>(size++)] = n;
  }

  constexpr const std::string_view* begin() const { return names.data(); }

  constexpr const std::string_view* end() const { return names.data() + size; }
};

struct KernelInfo {
  std::string_view name;           ///< what it computes, snake_case
  NameList reference_names = {};   ///< names in the reference stack
  std::string_view signature;      ///< shape language
  std::string_view limits = "";    ///< what holds for every backend
  std::string_view equation = "";  ///< one line, for the catalogue
  std::string_view source = "";    ///< paper and equation, or project
  /// cost(args).flops as a formula over the axes, "2*T*N*K"; where it depends on data or on fields,
  /// words that begin with '~'. Conformance holds the two together.
  std::string_view flops = "";
  /// What it is for, if no model's forward pass and no sampler calls it; a test holds this to dry
  /// runs of the presets.
  std::string_view outside = "";
};

/// A contract: kInfo, Args, operands(args) in the order of the signature, cost(args).
/// Optional: check(args) -> Status for what text cannot say; workspace(args, num_threads) -> bytes
/// of scratch; bytes(args, cost) when traffic is not "each operand once".
template <class K>
concept Contract = requires(const typename K::Args& args) {
  { K::kInfo } -> std::convertible_to<KernelInfo>;
  { K::operands(args).size() } -> std::convertible_to<size_t>;
  { K::cost(args) } -> std::same_as<Cost>;
};

/// The parsed signature and limits of a contract, constants of the program.
template <Contract K>
inline constexpr Signature kSignature = parse_signature(K::kInfo.signature);
template <Contract K>
inline constexpr LimitList kLimits = parse_limits(K::kInfo.limits, kSignature<K>);
template <Contract K>
inline constexpr Formula kFlops = parse_formula(K::kInfo.flops, kSignature<K>);

/// Bytes of one operand in its stored format, scales included.
int64_t operand_bytes(const View& v);

/// FLOPs by the contract; bytes by the contract or each operand once.
template <Contract K>
Cost cost_of(const typename K::Args& args) {
  Cost cost = K::cost(args);
  if constexpr (requires { K::bytes(args, cost); }) {
    K::bytes(args, cost);
  } else {
    const auto operands = K::operands(args);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]->present()) continue;
      const int64_t bytes = operand_bytes(*operands[i]);
      if (kSignature<K>.operands[i].read) cost.bytes_read += bytes;
      if (kSignature<K>.operands[i].written) cost.bytes_written += bytes;
    }
  }
  return cost;
}

}  // namespace fathom
