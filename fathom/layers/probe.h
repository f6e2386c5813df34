// Taps on intermediate results: tests and comparisons of devices look at them by name.
#pragma once

#include <string_view>

#include "fathom/tensor/view.h"

namespace fathom {

/// Receives named tensors of a forward pass while they are alive; the view is valid during the call
/// only. Not called in dry runs.
struct Probe {
  void (*tap)(void* self, std::string_view name, int layer, const View& v) = nullptr;
  void* self = nullptr;
};

/// Calls the probe if there is one and the tensor has data.
inline void tap(const Probe* probe, std::string_view name, int layer, const View& v) {
  if (probe != nullptr && v.data != nullptr) probe->tap(probe->self, name, layer, v);
}

}  // namespace fathom
