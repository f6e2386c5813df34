// Variants: the implementations of one kernel within a backend, as a table. First row that fits
// wins; the row's name is recorded and shown.
#pragma once

#include <array>
#include <string_view>

#include "fathom/kernels/core/contract/contract.h"
#include "fathom/kernels/core/exec.h"

namespace fathom {

/// Claims that conformance checks.
enum Traits : uint32_t {
  kDeterministic = 1u << 0,   ///< the same bits for the same input, every time
  kBatchInvariant = 1u << 1,  ///< no row depends on its neighbours or on the number of threads
  kGraphSafe = 1u << 2,       ///< may be captured; everything that changes comes from memory
  /// Not a claim but a limit: takes calls of some numbers of rows alone. Variants that take the
  /// others may add in another order, so that one form for all calls (KernelSet::batch_invariant)
  /// has none of these.
  kSomeRowCounts = 1u << 3,
};

/// What a machine must have to run a variant: an instruction set of the CPU, or a GPU of this
/// compute capability (times ten; 90 is Hopper) or above.
struct Needs {
  Isa isa = Isa::kPortable;
  int sm = 0;  ///< 0: a variant of the CPU

  constexpr Needs() = default;

  constexpr Needs(Isa needed) : isa(needed) {}  // NOLINT: implicit on purpose
};

/// sm(90): a GPU of compute capability 9.0.
constexpr Needs sm(int capability) {
  Needs needs;
  needs.sm = capability;
  return needs;
}

/// Limits of a variant over the axes of its contract, parsed at compile time.
template <Contract K>
struct Limits {
  LimitList list;

  consteval Limits(const char* text)  // NOLINT: implicit on purpose
      : list(parse_limits(text, kSignature<K>)) {}
};

template <Contract K>
struct Variant {
  std::string_view name;
  Needs needs{};
  LimitList limits{};
  uint32_t traits = 0;
  Status (*run)(Exec&, const typename K::Args&) = nullptr;
  MathUnit unit = MathUnit::kF32;
  bool (*accepts)(const typename K::Args&) = nullptr;  ///< formats and layouts; null: all
  /// Bytes of scratch of a variant for a GPU. Null: none. (For the CPU the contract says.)
  int64_t (*workspace)(const typename K::Args&, const Exec&) = nullptr;
  /// Whether a GPU of these figures is large or small enough for it; null: any. About speed alone.
  bool (*suits)(const typename K::Args&, const DeviceInfo&) = nullptr;
};

/// Whether a step of any number of rows may run it and each row still have the same bits: no row
/// depends on its neighbours, and which calls it takes does not depend on how many rows they have.
template <Contract K>
constexpr bool is_one_form(const Variant<K>& v) {
  return (v.traits & (kBatchInvariant | kSomeRowCounts)) == kBatchInvariant;
}

/// One row as it is written in a table.
template <Contract K>
struct VariantRow {
  std::string_view name;
  Needs needs;
  Limits<K> limits;
  uint32_t traits;
  Status (*run)(Exec&, const typename K::Args&);
  MathUnit unit = MathUnit::kF32;
  bool (*accepts)(const typename K::Args&) = nullptr;
  int64_t (*workspace)(const typename K::Args&, const Exec&) = nullptr;
  bool (*suits)(const typename K::Args&, const DeviceInfo&) = nullptr;
};

inline constexpr int kMaxVariants = 10;

template <Contract K>
class VariantTable {
 public:
  constexpr VariantTable() = default;

  constexpr VariantTable(std::initializer_list<VariantRow<K>> rows) {
    for (const VariantRow<K>& r : rows) {
      add({r.name, r.needs, r.limits.list, r.traits, r.run, r.unit, r.accepts, r.workspace,
           r.suits});
    }
  }

  constexpr void add(const Variant<K>& v) { rows_[static_cast<size_t>(size_++)] = v; }

  constexpr const Variant<K>* begin() const { return rows_.data(); }

  constexpr const Variant<K>* end() const { return rows_.data() + size_; }

  constexpr int size() const { return size_; }

 private:
  std::array<Variant<K>, kMaxVariants> rows_{};
  int size_ = 0;
};

}  // namespace fathom
