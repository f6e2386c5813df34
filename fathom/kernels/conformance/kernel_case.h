// What a kernel author needs to write cases. One case is a function that makes operands, says how
// they become arguments, and gives the exact answer:
//
//   void add_rmsnorm_cases(CaseList& list) {
//     for (int64_t t : {0, 1, 2, 3, 7}) {
//       add_case<RmsNorm>(list, {.name = str_cat("t", t, "_d129_bf16"), .op = "input_layernorm"},
//                         [=](CaseBuilder<RmsNorm>& c) {
//         c.set_batch(t);
//         const Tensor x = c.input({t, 129}, Format::kBf16, {.dist = Dist::kMixedRows},
//                                  {.row_gap = 3, .rows_per_batch = 1});
//         const Tensor w = c.input({129}, Format::kF32);
//         const Tensor y = c.output({t, 129}, Format::kBf16, {.rows_per_batch = 1});
//         c.bind([=](const Binding& at) {
//           return RmsNorm::Args{.x = at(x), .w = at(w), .y = at(y), .eps = 1e-6f};
//         });
//         c.expect_rows(y, gates::row_op(y.format()), [=](int64_t row, std::span<double> out) {
//           ...  // the equation, in double, from x.row(row) and w[d]
//         });
//       });
//     }
//   }
//
// Operands stand between guards, outputs start as NaN, gaps between rows hold NaN. Weights are made
// by weight() (quantised, with exact values for gate B) or weight_codes() (random codes, for shapes
// that are timed). Oracles read operands through the handles; they run before the first launch, so
// operands that are updated in place still hold what the kernel will find.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/conformance/operands/operands.h"
#include "fathom/kernels/core/launch.h"

namespace fathom {

template <Contract K>
class CaseBuilder : public CaseData {
 public:
  using Args = typename K::Args;
  using CaseData::CaseData;

  /// How handles become arguments. Slices and reshapes of at(x) are welcome.
  void bind(std::function<Args(const Binding& at)> f) { bind_ = std::move(f); }

 private:
  template <Contract>
  friend class KernelCase;

  std::function<Args(const Binding&)> bind_;
};

namespace internal {

std::string shape_text(const Signature& signature, const View* const* operands);
std::vector<OperandInfo> operand_infos(const Signature& signature, const View* const* operands);

}  // namespace internal

template <Contract K>
class KernelCase final : public CaseInstance {
 public:
  using Args = typename K::Args;

  KernelCase(uint64_t seed, Side runs_on, const std::function<void(CaseBuilder<K>&)>& build)
      : data_(seed, runs_on) {
    build(data_);
    FATHOM_CHECK(data_.bind_ != nullptr, "a case needs bind()");
    args_.push_back(data_.bind_(data_.binding(Side::kHost, 0)));
    const auto operands = K::operands(args_[0]);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i]->present()) {
        data_.name_operand(operands[i]->data, kSignature<K>.operands[i].name);
      }
    }
    data_.prepare();
  }

  std::string why_not(Exec& ex) override { return fathom::why_not<K>(ex, op(), args_[0]); }

  std::string why_not_rows(Exec& ex, int copy, int64_t begin, int64_t count) override {
    return fathom::why_not<K>(ex, op(), args_of_rows(ex, copy, begin, count));
  }

  Status run(Exec& ex, int copy) override {
    const std::vector<Args>& args = ex.backend == Backend::kCuda ? gpu_args_ : args_;
    return launch<K>(ex, op(), args[static_cast<size_t>(copy)]);
  }

  Status run_rows(Exec& ex, int copy, int64_t begin, int64_t count) override {
    return launch<K>(ex, op(), args_of_rows(ex, copy, begin, count));
  }

  int64_t workspace_bytes(Exec& ex) override {
    const auto call = choose_if_taken<K>(ex, op(), args_[0]);
    return call ? internal::workspace_of<K>(ex, call->variant, args_[0]) : 0;
  }

  Cost cost() override { return cost_of<K>(args_[0]); }

  std::optional<double> stated_flops() override {
    if constexpr (kFlops<K>.length == 0) {
      return std::nullopt;
    } else {
      const auto operands = K::operands(args_[0]);
      return static_cast<double>(evaluate(kFlops<K>, kSignature<K>, operands.data()));
    }
  }

  std::string shape() override {
    const auto operands = K::operands(args_[0]);
    return internal::shape_text(kSignature<K>, operands.data());
  }

  std::vector<OperandInfo> operands() override {
    const auto operands = K::operands(args_[0]);
    return internal::operand_infos(kSignature<K>, operands.data());
  }

  int64_t batch_rows() const override { return data_.batch_rows(); }

  Status make_copies(int count) override {
    FATHOM_TRY(data_.make_copies(count));
    while (static_cast<int>(args_.size()) < count) {
      args_.push_back(data_.bind_(data_.binding(Side::kHost, num_copies())));
    }
    return {};
  }

  int num_copies() const override { return static_cast<int>(args_.size()); }

  int64_t bytes_per_copy() const override { return data_.bytes_per_copy(); }

  void reset(int copy) override { data_.reset(copy); }

  std::vector<std::byte> output_bytes(int copy) const override { return data_.output_bytes(copy); }

  std::string compare_rows(int a, int b, int64_t begin, int64_t count) const override {
    return data_.compare_rows(a, b, begin, count);
  }

  std::string check_guards(int copy) const override { return data_.check_guards(copy); }

  CheckReport check() override {
    const auto judged = data_.judge_outputs();
    const Measures& m = judged.first;
    return {.passed = judged.passed,
            .max_abs = m.max_abs,
            .max_rel = m.max_rel,
            .cos = m.cos,
            .sqnr_db = m.sqnr_db,
            .diff = m.diff,
            .rel_l2 = m.rel_l2,
            .budget = judged.budget,
            .checked = judged.checked,
            .why = judged.why};
  }

  Status place_on_gpu(Arena& memory, Stream& stream) override {
    gpu_args_.clear();
    for (int copy = 0; copy < num_copies(); ++copy) {
      FATHOM_TRY(data_.place_on_gpu(copy, memory));
      FATHOM_TRY(data_.upload(copy, Upload::kAll, stream));
      gpu_args_.push_back(data_.bind_(data_.binding(Side::kGpu, copy)));
    }
    return {};
  }

  Status upload(int copy, Upload what, Stream& stream) override {
    return data_.upload(copy, what, stream);
  }

  Status download(int copy, Stream& stream) override { return data_.download(copy, stream); }

  std::vector<int64_t> gpu_layout() const override { return data_.gpu_layout(); }

 private:
  static Side side_of(const Exec& ex) {
    return ex.backend == Backend::kCuda ? Side::kGpu : Side::kHost;
  }

  Args args_of_rows(const Exec& ex, int copy, int64_t begin, int64_t count) {
    return data_.bind_(data_.rows_binding(side_of(ex), copy, begin, count));
  }

  // Errors name the kernel; the recorder gets the op from the case.
  static Op op() { return Op(K::kInfo.name.data()); }

  CaseBuilder<K> data_;
  std::vector<Args> args_;      // one a copy
  std::vector<Args> gpu_args_;  // one a copy that has its place on a GPU
};

/// Adds a case of kernel K. `build` must depend on nothing but its builder and its captures.
template <Contract K>
void add_case(CaseList& list, CaseSpec spec, std::function<void(CaseBuilder<K>&)> build) {
  const auto maker = [&build](Side runs_on) {
    return [build, runs_on](uint64_t seed) -> std::unique_ptr<CaseInstance> {
      return std::make_unique<KernelCase<K>>(seed, runs_on, build);
    };
  };
  list.add_case({.kernel = std::string(K::kInfo.name),
                 .spec = std::move(spec),
                 .make = maker(Side::kHost),
                 .make_for_gpu = maker(Side::kGpu)});
}

}  // namespace fathom
