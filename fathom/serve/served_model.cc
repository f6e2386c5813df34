#include "fathom/serve/served_model.h"

#include <algorithm>

namespace fathom::serve {

std::optional<ApiError> ServedModel::check_name(const std::optional<std::string>& asked) const {
  if (any_name || !asked || std::ranges::find(names, *asked) != names.end()) return {};
  std::string served;
  for (const std::string& name : names)
    str_append(served, str_cat(served.empty() ? "" : ", ", name));
  return ApiError{
      .status = 404,
      .code = "model_not_found",
      .message = str_cat("model: found \"", asked->substr(0, 128), "\", this server has ", served),
      .param = "model"};
}

}  // namespace fathom::serve
