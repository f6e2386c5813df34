// What readers of requests made of a body, for tests.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "fathom/serve/api_error.h"

namespace fathom::serve {

/// The field that a request is refused for; empty: it is taken.
template <class Request>
std::string refused_field(const std::variant<Request, ApiError>& read, std::string_view fields) {
  const auto* error = std::get_if<ApiError>(&read);
  if (error == nullptr) return "";
  EXPECT_EQ(error->status, 400) << fields;
  EXPECT_TRUE(error->message.starts_with(error->param)) << error->message;
  return error->param.empty() ? error->message : error->param;
}

/// What was read, which must not be refused.
template <class Request>
Request taken(std::variant<Request, ApiError> read, std::string_view fields) {
  const auto* error = std::get_if<ApiError>(&read);
  EXPECT_EQ(error, nullptr) << fields << ": " << error->message;
  return error == nullptr ? std::get<Request>(std::move(read)) : Request{};
}

}  // namespace fathom::serve
