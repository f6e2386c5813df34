// A pointer to the weights of a call, for loops that do not read Products::tiles or codes. Each
// such loop has a description of weights of its own; the pointer knows which one it holds.
#pragma once

#include <cstdint>

namespace fathom {

struct CodeWeight;    // moe/code_products.h
struct IntWeight;     // gemm/int8_gemm/int_products.h
struct Nvfp4Experts;  // moe/nvfp4_group_gemm/nvfp4_group_gemm_cpu.cc
struct Nvfp4Scales;   // gemm/nvfp4_gemm/nvfp4_rows.h
struct QuantView;     // tensor/quant_view.h

class WeightSource {
 public:
  WeightSource() = default;

  // Always inline, like all code that files of several instruction sets include (products.h).
  template <class T>
  [[gnu::always_inline]] WeightSource(const T* weight)  // NOLINT: implicit on purpose
      : pointer_(weight), kind_(kind_of(static_cast<T*>(nullptr))) {}

  /// The description, which must be a T: the process ends if it is another.
  template <class T>
  [[gnu::always_inline]] const T& as() const {
    constexpr Kind kWanted = kind_of(static_cast<T*>(nullptr));
    if (kind_ != kWanted) [[unlikely]]
      not_held(kWanted, kind_);
    return *static_cast<const T*>(pointer_);
  }

 private:
  enum class Kind : uint8_t { kNone, kCodes, kIntegers, kExperts, kScales, kView };

  static consteval Kind kind_of(CodeWeight*) { return Kind::kCodes; }

  static consteval Kind kind_of(IntWeight*) { return Kind::kIntegers; }

  static consteval Kind kind_of(Nvfp4Experts*) { return Kind::kExperts; }

  static consteval Kind kind_of(Nvfp4Scales*) { return Kind::kScales; }

  static consteval Kind kind_of(QuantView*) { return Kind::kView; }

  [[noreturn]] static void not_held(Kind wanted, Kind found);

  const void* pointer_ = nullptr;
  Kind kind_ = Kind::kNone;
};

}  // namespace fathom
