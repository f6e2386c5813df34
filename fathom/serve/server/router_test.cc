#include "fathom/serve/server/router.h"

#include <gtest/gtest.h>

#include "tests/support/fake_exchange.h"

namespace fathom::serve {
namespace {

Router small_router() {
  Router router;
  router.add({.method = "GET", .path = "/v1/models", .handler = {}});
  router.add({.method = "GET", .path = "/v1/models/{id}", .handler = {}});
  router.add({.method = "POST", .path = "/v1/messages", .handler = {}});
  return router;
}

TEST(Router, FindsByMethodAndPath) {
  const Router router = small_router();
  EXPECT_EQ(router.find("GET", "/v1/models").route->path, "/v1/models");
  EXPECT_EQ(router.find("HEAD", "/v1/models").route->path, "/v1/models");
  const Router::Found found = router.find("GET", "/v1/models/org/name");
  ASSERT_NE(found.route, nullptr);
  EXPECT_EQ(path_parameter(found.route->path, "/v1/models/org/name"), "org/name");
}

TEST(Router, RefusesWhatIsNotThere) {
  const Router router = small_router();
  Router::Found found = router.find("GET", "/v1/modelsx");
  EXPECT_EQ(found.route, nullptr);
  EXPECT_EQ(found.error->status, 404);
  EXPECT_EQ(found.error->code, "route_not_found");
  EXPECT_NE(found.error->message.find("/v1/modelsx"), std::string::npos);
  EXPECT_EQ(router.find("GET", "/v1/models/").route, nullptr);  // no id
  found = router.find("POST", "/v1/models");
  EXPECT_EQ(found.error->status, 405);
  EXPECT_EQ(found.allow, "GET");
  EXPECT_EQ(router.find("DELETE", "/v1/messages").allow, "POST");
}

TEST(Router, ErrorsHaveTheShapeOfTheirApi) {
  const ApiError error = bad_value("top_p", "top_p: found 2, expected at most 1");
  const auto openai = FakeExchange::post("/v1/completions", "{}");
  EXPECT_EQ(error_reply(error, openai->request().path, openai->id()).body,
            R"({"error":{"message":"top_p: found 2, expected at most 1",)"
            R"("type":"invalid_request_error","param":"top_p","code":"invalid_value"}})");
  const auto anthropic = FakeExchange::post("/v1/messages/count_tokens", "{}");
  EXPECT_EQ(error_reply(error, anthropic->request().path, anthropic->id()).body,
            R"({"type":"error","error":{"type":"invalid_request_error",)"
            R"("message":"top_p: found 2, expected at most 1"},"request_id":"req-test"})");
}

}  // namespace
}  // namespace fathom::serve
