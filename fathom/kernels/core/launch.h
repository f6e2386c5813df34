// launch<K>: check the operands, choose a variant, record, call. Or in two steps: choose, then run.
#pragma once

#include <optional>

#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {

namespace internal {

// Binds or compares one operand; everything about it is known at compile time.
template <Contract K, size_t I>
inline bool operand_fits(const View& v, int64_t* symbols) {
  static constexpr const shape_language::Operand& o = kSignature<K>.operands[I];
  if (o.optional && !v.present()) {
    // Its own axes are 0; most optional operands have none.
    [&]<size_t... D>(std::index_sequence<D...>) {
      (
          [&] {
            if constexpr (o.axes[D].binds) symbols[o.axes[D].expr.steps[0].value] = 0;
          }(),
          ...);
    }
    (std::make_index_sequence<static_cast<size_t>(o.rank)>{});
    return true;
  }
  if (((o.formats >> static_cast<int>(v.format)) & 1u) == 0 || v.rank != o.rank) return false;
  bool fits = true;
  [&]<size_t... D>(std::index_sequence<D...>) {
    (
        [&] {
          static constexpr const shape_language::Axis& axis = o.axes[D];
          if constexpr (axis.binds) {
            symbols[axis.expr.steps[0].value] = v.dims[D];
          } else if constexpr (axis.expr.is_symbol()) {
            fits &= v.dims[D] == symbols[axis.expr.steps[0].value];
          } else {
            fits &= v.dims[D] == axis.expr.eval(symbols);
          }
        }(),
        ...);
  }
  (std::make_index_sequence<static_cast<size_t>(o.rank)>{});
  if constexpr (o.rank > 0) {
    fits &= v.strides[o.rank - 1] == 1 || v.dims[o.rank - 1] <= 1;
  }
  return fits;
}

template <Contract K>
inline bool call_fits(const auto& operands, int64_t* symbols) {
  static constexpr size_t kNumOperands = static_cast<size_t>(kSignature<K>.num_operands);
  static_assert(std::tuple_size_v<std::remove_cvref_t<decltype(operands)>> == kNumOperands,
                "operands() must return one view for each operand of the signature, in order");
  const bool shapes = [&]<size_t... I>(std::index_sequence<I...>) {
    return (operand_fits<K, I>(*operands[I], symbols) && ...);
  }
  (std::make_index_sequence<kNumOperands>{});
  if (!shapes) return false;
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return (kLimits<K>.limits[I].holds(symbols) && ...);
  }
  (std::make_index_sequence<static_cast<size_t>(kLimits<K>.size)>{});
}

template <Contract K>
inline bool variant_fits(const Variant<K>& v,
                         const typename K::Args& args,
                         const int64_t* symbols,
                         const DeviceInfo* device) {
  for (int i = 0; i < v.limits.size; ++i) {
    if (!v.limits.limits[static_cast<size_t>(i)].holds(symbols)) return false;
  }
  return (v.accepts == nullptr || v.accepts(args)) &&
         (v.suits == nullptr || device == nullptr || v.suits(args, *device));
}

// Out of line: they run when something is wrong or recorded.
Status mismatch_error(Op op, std::string_view kernel, std::string why);
Status no_variant_error(Op op,
                        std::string_view kernel,
                        Backend backend,
                        std::string last_reason,
                        bool batch_invariant = false);
Status workspace_error(const Arena& scratch, int64_t bytes, std::string_view kernel);
Status pin_error(Op op, std::string_view kernel, std::string_view variant);
std::string_view pinned_variant(const Pins& pins, Op op, const KernelInfo& kernel);
OpRecord& begin_record(Exec& ex,
                       Op op,
                       CallSite site,
                       SelectionRow row,
                       std::string_view kernel,
                       const Signature& signature,
                       const View* const* operands);
void end_record(Exec& ex,
                OpRecord& record,
                const Signature& signature,
                const View* const* operands);
/// The clock of records: of the host, or of a captured stream, where it counts marks.
int64_t record_clock(const Exec& ex);
int64_t record_begin(const Exec& ex);

/// The pinned variant, or the first one that takes the call; null if there is none.
template <Contract K>
const Variant<K>* pick(Exec& ex,
                       const Op& op,
                       const typename K::Args& args,
                       const int64_t* symbols) {
  const std::span<const Variant<K>> table = ex.kernels->table<K>();
  if (ex.pins != nullptr) [[unlikely]] {
    if (const auto name = pinned_variant(*ex.pins, op, K::kInfo); !name.empty()) {
      for (const Variant<K>& v : table) {
        if (v.name == name && variant_fits(v, args, symbols, ex.device)) return &v;
      }
      return nullptr;
    }
  }
  for (const Variant<K>& v : table) {
    if (variant_fits(v, args, symbols, ex.device)) return &v;
  }
  return nullptr;
}

/// True if K takes the call, and by which variant. A dry run without kernels asks for none.
template <Contract K>
inline bool takes(Exec& ex,
                  const Op& op,
                  const typename K::Args& args,
                  const Variant<K>** variant) {
  const auto operands = K::operands(args);
  int64_t symbols[kMaxSymbols];
  if (!call_fits<K>(operands, symbols)) [[unlikely]]
    return false;
  if constexpr (requires { K::check(args); }) {
    if (!K::check(args).ok()) [[unlikely]]
      return false;
  }
  *variant = nullptr;
  if (ex.kernels == nullptr) [[unlikely]]
    return ex.dry();
  *variant = pick<K>(ex, op, args, symbols);
  return *variant != nullptr;
}

/// Why no variant takes operands that fit.
template <Contract K>
Status no_variant(Exec& ex, const Op& op, const int64_t* symbols) {
  if (ex.kernels == nullptr)
    return no_variant_error(op, K::kInfo.name, ex.backend, "the Exec has no KernelSet");
  if (ex.pins != nullptr) {
    if (const auto name = pinned_variant(*ex.pins, op, K::kInfo); !name.empty()) {
      return pin_error(op, K::kInfo.name, name);
    }
  }
  std::string reason = ex.kernels->is_batch_invariant()
                           ? "none that is built for this machine takes any number of rows alike"
                           : "no variant is built for this machine";
  for (const Variant<K>& v : ex.kernels->table<K>()) {
    reason = str_cat("variant ", v.name, " does not take these formats or layouts");
    for (int i = 0; i < v.limits.size; ++i) {
      const auto& limit = v.limits.limits[static_cast<size_t>(i)];
      if (!limit.holds(symbols)) reason = str_cat("variant ", v.name, " needs ", limit.text);
    }
  }
  return no_variant_error(op, K::kInfo.name, ex.kernels->backend(), reason,
                          ex.kernels->is_batch_invariant());
}

/// Why K does not take a call that takes() refused.
template <Contract K>
[[gnu::noinline, gnu::cold]] Status refusal(Exec& ex, const Op& op, const typename K::Args& args) {
  const auto operands = K::operands(args);
  int64_t symbols[kMaxSymbols];
  if (!call_fits<K>(operands, symbols)) {
    return mismatch_error(op, K::kInfo.name,
                          explain_mismatch(kSignature<K>, kLimits<K>, operands.data()));
  }
  if constexpr (requires { K::check(args); }) {
    if (Status s = K::check(args); !s.ok()) {
      return std::move(s).add_context(str_cat(op.name, ": ", K::kInfo.name));
    }
  }
  return no_variant<K>(ex, op, symbols);
}

/// Scratch memory of a call. What a contract says is for the CPU; variants for a GPU say their own.
template <Contract K>
int64_t workspace_of(const Exec& ex, const Variant<K>* v, const typename K::Args& args) {
  if (v != nullptr && v->needs.sm > 0) {
    return v->workspace == nullptr ? 0 : v->workspace(args, ex);
  }
  if constexpr (requires { K::workspace(args, 1); }) {
    return K::workspace(args, ex.num_threads);
  } else {
    return 0;
  }
}

/// Takes the workspace and calls the variant; a dry run only counts the workspace.
template <Contract K>
Status run_in_workspace(Exec& ex, const Variant<K>* v, const typename K::Args& args) {
  ArenaScope scope(*ex.scratch);
  const int64_t bytes = workspace_of<K>(ex, v, args);
  if (!ex.scratch->try_take(bytes, &ex.workspace)) [[unlikely]] {
    return workspace_error(*ex.scratch, bytes, K::kInfo.name);
  }
  return ex.dry() ? Status{} : v->run(ex, args);
}

template <Contract K>
Status run_variant(Exec& ex, const Variant<K>* v, const typename K::Args& args) {
  constexpr bool kMayNeedSpace = requires {
    K::workspace(args, 1);
  };
  if (kMayNeedSpace || (v != nullptr && v->workspace != nullptr)) {
    return run_in_workspace<K>(ex, v, args);
  }
  return ex.dry() ? Status{} : v->run(ex, args);
}

template <Contract K>
[[gnu::noinline]] Status run_recorded(Exec& ex,
                                      const Op& op,
                                      CallSite site,
                                      SelectionRow row,
                                      const Variant<K>* v,
                                      const typename K::Args& args) {
  const auto operands = K::operands(args);
  OpRecord& record = begin_record(ex, op, site, row, K::kInfo.name, kSignature<K>, operands.data());
  record.cost = cost_of<K>(args);
  if (v != nullptr) {
    record.variant = v->name.data();
    record.cost.unit = v->unit;
  }
  record.start_ns = record_begin(ex);
  Status status = run_variant<K>(ex, v, args);
  end_record(ex, record, kSignature<K>, operands.data());
  return status;
}

template <Contract K>
inline Status run_chosen(Exec& ex,
                         [[maybe_unused]] const Op& op,
                         [[maybe_unused]] CallSite site,
                         [[maybe_unused]] SelectionRow row,
                         const Variant<K>* v,
                         const typename K::Args& args) {
#ifdef FATHOM_TRACE
  if (ex.recorder != nullptr) [[unlikely]]
    return run_recorded(ex, op, site, row, v, args);
#endif
  return run_variant<K>(ex, v, args);
}

}  // namespace internal

/// A call that was checked, with the variant that takes it (null: a dry run without kernels).
template <Contract K>
struct Call {
  Op op;
  typename K::Args args;
  const Variant<K>* variant = nullptr;
  SelectionRow row;
  CallSite site;
};

/// Checks a call of kernel K for the op of that name and chooses its variant; run() runs it.
///
/// 1. Checks the operands against the signature and limits of K, then K::check if there is one.
/// 2. Takes the first variant of the device's KernelSet whose limits hold. A dry run without a
///    KernelSet takes none.
///
/// Errors: InvalidArgument for operands that do not fit, naming op, kernel, operand and axis;
/// Unsupported if no variant applies.
template <Contract K>
Result<Call<K>> choose(Exec& ex,
                       const Op& op,
                       const typename K::Args& args,
                       SelectionRow row = {},
                       CallSite site = CallSite::here()) {
  const Variant<K>* variant = nullptr;
  if (!internal::takes<K>(ex, op, args, &variant)) return internal::refusal<K>(ex, op, args);
  return Call<K>{.op = op, .args = args, .variant = variant, .row = row, .site = site};
}

/// The same for selection tables, which try the next row where K does not take the call: no reason
/// is put into words.
template <Contract K>
std::optional<Call<K>> choose_if_taken(Exec& ex,
                                       const Op& op,
                                       const typename K::Args& args,
                                       SelectionRow row = {},
                                       CallSite site = CallSite::here()) {
  const Variant<K>* variant = nullptr;
  if (!internal::takes<K>(ex, op, args, &variant)) return std::nullopt;
  return Call<K>{.op = op, .args = args, .variant = variant, .row = row, .site = site};
}

/// Runs a chosen call, on the Exec that it was chosen for.
///
/// With a recorder it writes an OpRecord (and times the call if asked). A dry run calls nothing; it
/// counts the workspace. Errors: OutOfMemory for the workspace; those of the variant.
template <Contract K>
Status run(Exec& ex, const Call<K>& call) {
  return internal::run_chosen<K>(ex, call.op, call.site, call.row, call.variant, call.args);
}

/// choose() and run() in one, without a copy of the arguments. No allocation, no virtual call, no
/// clock without a recorder.
template <Contract K>
Status launch(Exec& ex,
              const Op& op,
              const typename K::Args& args,
              SelectionRow row = {},
              CallSite site = CallSite::here()) {
  const Variant<K>* variant = nullptr;
  if (!internal::takes<K>(ex, op, args, &variant)) [[unlikely]]
    return internal::refusal<K>(ex, op, args);
  return internal::run_chosen<K>(ex, op, site, row, variant, args);
}

/// True if kernel K takes `args`; cheap.
template <Contract K>
bool accepts(Exec& ex, const Op& op, const typename K::Args& args) {
  const Variant<K>* variant = nullptr;
  return internal::takes<K>(ex, op, args, &variant);
}

/// Why kernel K would not take `args` on this device; empty if it would. For selection tables.
template <Contract K>
std::string why_not(Exec& ex, const Op& op, const typename K::Args& args) {
  const auto operands = K::operands(args);
  int64_t symbols[kMaxSymbols];
  if (!internal::call_fits<K>(operands, symbols)) {
    return explain_mismatch(kSignature<K>, kLimits<K>, operands.data());
  }
  if constexpr (requires { K::check(args); }) {
    if (Status s = K::check(args); !s.ok()) return s.message();
  }
  if (accepts<K>(ex, op, args)) return {};
  return internal::no_variant<K>(ex, op, symbols).message();
}

}  // namespace fathom
