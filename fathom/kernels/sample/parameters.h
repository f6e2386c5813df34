// Parameters of samplers: one number for each row, or one for all.
#pragma once

#include <string_view>

#include "fathom/base/status.h"
#include "fathom/base/str_cat.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Element t of a parameter, or the number for all if the view is absent.
template <class T>
T parameter(const View& each, T all, int64_t t) {
  return each.present() ? each.as<const T>()[t] : all;
}

/// Calls bad(value) for each of v[T], or for the number for all; the first that is bad gives
/// InvalidArgument. A dry run, whose views have no data, passes.
template <class T, class Bad>
Status check_each(std::string_view name, const View& v, T all, std::string_view expected, Bad bad) {
  if (!v.present() && bad(all)) {
    return invalid_argument(str_cat(name, "_all is ", all, ", expected ", expected));
  }
  for (int64_t t = 0; v.readable() && t < v.dim(0); ++t) {
    const T value = v.as<const T>()[t];
    if (!bad(value)) continue;
    return invalid_argument(str_cat(name, "[", t, "] is ", value, ", expected ", expected));
  }
  return {};
}

}  // namespace fathom
