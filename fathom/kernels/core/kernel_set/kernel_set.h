// KernelSet: the variants of every kernel that one device runs. Exec points to it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "fathom/kernels/core/kernel_set/kernel_index.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// An immutable table: the variants of each kernel in order of preference. A process may have
/// several, one a device, or one of a device that is only planned for. Copies are cheap.
class KernelSet {
 public:
  /// The variants for a CPU whose instruction set this machine has, none above `limit`.
  static KernelSet for_cpu(Isa limit);

  /// Those of a CPU with that instruction set, whatever this machine is. For dry runs.
  static KernelSet planned_for_cpu(Isa isa);

  /// Those that a GPU of this compute capability (DeviceInfo::sm) runs; none in a build without the
  /// CUDA backend.
  static KernelSet for_cuda(int sm);

  /// Of every kernel the variants of one form (is_one_form), chosen by formats, layouts and sizes
  /// that a step of any number of rows has alike: `suits`, which may count rows, is not asked. A
  /// row's bits then depend neither on the rows beside it nor on how many there are.
  KernelSet batch_invariant() const;

  /// for_cuda(), and of that batch_invariant() if asked for.
  static KernelSet for_cuda(int sm, bool batch_invariant) {
    const KernelSet all = for_cuda(sm);
    return batch_invariant ? all.batch_invariant() : all;
  }

  bool is_batch_invariant() const { return is_batch_invariant_; }

  /// The same with these variants of K in place of its own. K may be missing from kernels.def.
  template <Contract K>
  KernelSet with(const VariantTable<K>& table) const {
    KernelSet changed = *this;
    changed.rows_of<K>() = keep<K>(table, [](const Variant<K>&) { return true; });
    if (is_batch_invariant_) changed.rows_of<K>() = one_form<K>(changed.rows_of<K>());
    return changed;
  }

  /// The variants of K; empty if it has none here.
  template <Contract K>
  std::span<const Variant<K>> table() const {
    if constexpr (internal::kKernelIndex<K> >= 0) {
      return listed_[internal::kKernelIndex<K>].template as<K>();
    } else {
      for (const Other& other : others_)
        if (other.contract == &kIdentity<K>) return other.rows.template as<K>();
      return {};
    }
  }

  /// What its variants run on: kCpu or kCuda.
  Backend backend() const { return backend_; }

 private:
  // Variants of one kernel, one behind the other.
  struct Rows {
    std::shared_ptr<const void> first;
    size_t size = 0;

    template <Contract K>
    std::span<const Variant<K>> as() const {
      return {static_cast<const Variant<K>*>(first.get()), size};
    }
  };

  // The variants of a kernel that kernels.def does not list.
  struct Other {
    const void* contract;
    Rows rows;
    Rows (*one_form)(const Rows&);
  };

  explicit KernelSet(Backend backend) : backend_(backend) {}

  // The variants of `source` that `wanted` takes.
  template <Contract K>
  static Rows keep(const auto& source, auto&& wanted) {
    auto kept = std::make_shared<std::vector<Variant<K>>>();
    for (const Variant<K>& v : source)
      if (wanted(v)) kept->push_back(v);
    const void* first = kept->data();
    return {std::shared_ptr<const void>(kept, first), kept->size()};
  }

  template <Contract K>
  static Rows one_form(const Rows& all) {
    std::vector<Variant<K>> variants(all.as<K>().begin(), all.as<K>().end());
    for (Variant<K>& v : variants)
      v.suits = nullptr;
    return keep<K>(variants, is_one_form<K>);
  }

  template <Contract K>
  Rows& rows_of() {
    if constexpr (internal::kKernelIndex<K> >= 0) {
      return listed_[internal::kKernelIndex<K>];
    } else {
      for (Other& other : others_)
        if (other.contract == &kIdentity<K>) return other.rows;
      others_.push_back(Other{&kIdentity<K>, Rows{}, one_form<K>});
      return others_.back().rows;
    }
  }

  // Its address tells contracts apart that kernels.def does not list.
  template <class K>
  static inline const char kIdentity = 0;

  Backend backend_;
  bool is_batch_invariant_ = false;
  std::array<Rows, internal::kNumListedKernels> listed_;
  std::vector<Other> others_;
};

}  // namespace fathom
