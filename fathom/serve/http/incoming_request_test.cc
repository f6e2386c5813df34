#include "fathom/serve/http/incoming_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

namespace fathom::serve {
namespace {

using testing::HasSubstr;
using Stage = IncomingRequest::Stage;

std::string gzip(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + 15, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer packed{out.data(), out.size(), 0};
  EXPECT_EQ(ZSTD_compressStream2(context, &packed, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  out.resize(packed.pos);
  return out;
}

std::string request(const std::string& headers,
                    const std::string& body,
                    const std::string& path = "/v1/x") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

std::string json(const std::string& body, const std::string& coding = {}) {
  return request("Content-Type: application/json\r\n" +
                     (coding.empty() ? "" : "Content-Encoding: " + coding + "\r\n"),
                 body);
}

class Incoming : public testing::Test {
 protected:
  // The status of the refusal; 0: ready; -1: more is needed.
  int read(std::string_view bytes, size_t piece_bytes = std::string::npos) {
    incoming_ = std::make_unique<IncomingRequest>(settings_, rules_, budget_);
    unread_bytes_ = 0;
    while (!bytes.empty() && !incoming_->done()) {
      std::string_view piece = bytes.substr(0, piece_bytes);
      bytes.remove_prefix(piece.size());
      incoming_->feed(piece);
      unread_bytes_ = piece.size() + bytes.size();
    }
    if (incoming_->stage() == Stage::kReady) return 0;
    return incoming_->stage() == Stage::kRefused ? incoming_->error().status : -1;
  }

  std::string code() const { return incoming_->error().code; }

  std::string body() { return incoming_->take_request().body; }

  HttpSettings settings_;
  HeadRules rules_{.loopback_bind = true};
  size_t unread_bytes_ = 0;  // behind what it took
  std::shared_ptr<InputBudget> budget_ = std::make_shared<InputBudget>(100 << 20);
  std::unique_ptr<IncomingRequest> incoming_;
};

TEST_F(Incoming, ReadsAJsonBody) {
  ASSERT_EQ(read(json("{\"a\":1}")), 0);
  EXPECT_EQ(body(), "{\"a\":1}");
}

TEST_F(Incoming, UnpacksGzipAndZstdInAnyPieces) {
  std::string text;
  for (int i = 0; i < 20'000; ++i)
    text += std::to_string(i * 7'919 % 1'000);
  const std::pair<std::string, std::string> packed[] = {
      {"gzip", gzip(text)},
      {"x-gzip", gzip(text)},
      {"GZIP", gzip(text.substr(0, 9)) + gzip(text.substr(9))},
      {"zstd", zstd(text)},
      {"zstd", zstd(text.substr(0, 9)) + zstd(text.substr(9))},
      {"identity", text},
  };
  for (const auto& [coding, bytes] : packed) {
    for (const size_t piece : {1ul, 2ul, 1'000ul, std::string::npos}) {
      ASSERT_EQ(read(json(bytes, coding), piece), 0) << coding << " in pieces of " << piece;
      EXPECT_EQ(body(), text) << coding << " in pieces of " << piece;
    }
  }
}

TEST_F(Incoming, CountsTheUnpackedSize) {
  settings_.max_body_bytes = 100'000;
  for (const std::string coding : {"gzip", "zstd"}) {
    const auto pack = [&](size_t size) {
      const std::string text(size, ' ');
      return json(coding == "gzip" ? gzip(text) : zstd(text), coding);
    };
    EXPECT_EQ(read(pack(100'000)), 0) << coding;
    EXPECT_EQ(read(pack(100'001)), 413) << coding;
    EXPECT_EQ(code(), "body_too_large");
    // A bomb takes no more memory than the limit allows.
    EXPECT_EQ(read(pack(50'000'000)), 413) << coding;
    EXPECT_EQ(budget_->held_bytes(), 0) << coding;
  }
}

TEST_F(Incoming, RefusesBrokenPackedBodies) {
  const std::string text(1'000, 't');
  for (const std::string coding : {"gzip", "zstd"}) {
    const std::string good = coding == "gzip" ? gzip(text) : zstd(text);
    EXPECT_EQ(read(json("{}", coding)), 400) << coding;
    EXPECT_EQ(read(json(good.substr(0, good.size() - 1), coding)), 400) << coding;
    EXPECT_EQ(read(json(good + "x", coding)), 400) << coding;
  }
}

TEST_F(Incoming, RefusesALargeZstdWindow) {
  // It needs text that is larger than the window, or the window is not so large.
  const std::string text(20 << 20, 'w');
  EXPECT_EQ(read(json(zstd(text, 23), "zstd")), 0);
  EXPECT_EQ(read(json(zstd(text, 24), "zstd")), 400);
  EXPECT_THAT(incoming_->error().message, HasSubstr("8 MiB"));
}

// The library may read formats of before RFC 8878, whole ones otherwise than those in pieces.
TEST_F(Incoming, TakesZstdOfTheStandardAlone) {
  const std::string skipped("\x5F\x2A\x4D\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(read(json(skipped + zstd("{}") + skipped + zstd(" "), "zstd")), 0);
  EXPECT_EQ(body(), "{} ");
  for (const char version : {'\x1E', '\x22', '\x25', '\x27'}) {
    std::string old = zstd("{}");
    old[0] = version;
    EXPECT_EQ(read(json(old, "zstd")), 400);
    EXPECT_THAT(incoming_->error().message, HasSubstr("RFC 8878"));
    EXPECT_EQ(read(json(zstd("{}") + old, "zstd")), 400);
  }
}

TEST_F(Incoming, RefusesOtherCodings) {
  for (const std::string coding : {"br", "deflate", "gzip, gzip", "gzip, zstd", "compress"}) {
    EXPECT_EQ(read(json("x", coding)), 415) << coding;
    EXPECT_EQ(code(), "unsupported_media_type");
  }
}

TEST_F(Incoming, WantsJson) {
  const auto type = [&](const std::string& t) {
    return read(request("Content-Type: " + t + "\r\n", "{}"));
  };
  EXPECT_EQ(type("application/json"), 0);
  EXPECT_EQ(type("Application/JSON"), 0);
  EXPECT_EQ(type("application/json; charset=utf-8"), 0);
  EXPECT_EQ(type("application/json;charset=\"UTF-8\"; x=y"), 0);
  EXPECT_EQ(type("application/json; charset=latin1"), 415);
  EXPECT_EQ(type("application/jsonp"), 415);
  EXPECT_EQ(type("text/plain"), 415);
  EXPECT_EQ(type("multipart/form-data; boundary=x"), 415);
  EXPECT_EQ(read(request("", "{}")), 415);
  EXPECT_EQ(read(request("", "")), 0) << "no body needs no type";
}

TEST_F(Incoming, KnowsThreeMethods) {
  const auto method = [&](const std::string& m) {
    return read(m + " / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  EXPECT_EQ(method("GET"), 0);
  EXPECT_EQ(method("POST"), 0);
  EXPECT_EQ(method("OPTIONS"), 0);
  EXPECT_TRUE(incoming_->plan().options);
  for (const std::string m : {"PUT", "DELETE", "PATCH", "HEAD", "TRACE", "CONNECT", "get"}) {
    EXPECT_EQ(method(m), 405) << m;
    EXPECT_EQ(code(), "method_not_allowed");
  }
}

TEST_F(Incoming, KnowsItsHosts) {
  settings_.allowed_hosts = {"box.lan"};
  const auto host = [&](const std::string& h) {
    return read("GET / HTTP/1.1\r\nHost: " + h + "\r\n\r\n");
  };
  for (const std::string good :
       {"localhost", "LOCALHOST:80", "localhost.", "127.0.0.1", "127.9.9.9:8000", "[::1]",
        "[::1]:8000", "box.lan", "Box.Lan:8000"})
    EXPECT_EQ(host(good), 0) << good;
  for (const std::string bad :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "box.lan.evil", "",
        "128.0.0.1", "[::2]", "[::1", "localhost:x", "127.1", "localhost:80:80"}) {
    EXPECT_EQ(host(bad), 403) << bad;
    EXPECT_EQ(code(), "host_not_allowed");
  }
  EXPECT_EQ(read("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 403);
  EXPECT_EQ(read("GET / HTTP/1.0\r\n\r\n"), 403);
}

TEST_F(Incoming, AsksTheGateBeforeItTakesTheBody) {
  std::vector<std::string> asked;
  rules_.gate = [&](const HttpRequest& head) -> std::optional<ApiError> {
    asked.push_back(str_cat(head.method, " ", head.path, " ", head.query, " ", head.body,
                            head.header("x-api-key")));
    if (head.header("x-api-key") == "ours") return {};
    return ApiError{.status = 401, .code = "invalid_api_key", .message = "no", .param = {}};
  };
  const std::string body(10'000, 'x');
  for (const size_t piece : {1ul, 100ul, std::string::npos}) {
    ASSERT_EQ(read(json(body), piece), 401) << "in pieces of " << piece;
    EXPECT_EQ(code(), "invalid_api_key");
    EXPECT_EQ(unread_bytes_, body.size()) << "in pieces of " << piece;
    EXPECT_FALSE(incoming_->reusable());
    EXPECT_EQ(budget_->held_bytes(), 0);
  }
  EXPECT_EQ(asked, std::vector<std::string>(3, "POST /v1/x  "));

  EXPECT_EQ(read(request("X-Api-Key: ours\r\nContent-Type: application/json\r\n", "{}")), 0);
  // Who is not let in learns no other rule; who asks for another host not even this one.
  EXPECT_EQ(read(request("Content-Type: text/plain\r\n", "{}")), 401);
  asked.clear();
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n"), 400);
  EXPECT_EQ(read("OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 0) << "browsers have no key";
  EXPECT_TRUE(asked.empty());
}

TEST_F(Incoming, LeavesABodyThatNobodyReads) {
  for (const std::string method : {"GET", "OPTIONS"}) {
    const std::string head = method +
                             " / HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
                             "Expect: 100-continue\r\nContent-Length: 30000000\r\n\r\n";
    EXPECT_EQ(read(head + "1234"), 0) << method;
    EXPECT_EQ(unread_bytes_, 4u) << method;
    EXPECT_FALSE(incoming_->reusable()) << method;
    EXPECT_FALSE(incoming_->take_wants_continue()) << method;
    EXPECT_EQ(body(), "") << method;
  }
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"), 0);
  EXPECT_TRUE(incoming_->reusable());
}

TEST_F(Incoming, ReadsTargets) {
  settings_.root_path = "/api";
  const auto path = [&](const std::string& target) {
    if (read("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n") != 0) return code();
    return incoming_->plan().path + "|" + incoming_->plan().query;
  };
  EXPECT_EQ(path("/v1/models/a%2Fb%20c?x=%20"), "/v1/models/a/b c|x=%20");
  EXPECT_EQ(path("/api/v1/x"), "/v1/x|");
  EXPECT_EQ(path("/api"), "/|");
  EXPECT_EQ(path("/apis"), "/apis|");
  EXPECT_EQ(path("http://localhost/v1?y"), "/v1|y");
  EXPECT_EQ(path("http://localhost"), "/|");
  EXPECT_EQ(path("v1"), "bad_request");
  EXPECT_EQ(path("/%0d%0a"), "bad_request");
  EXPECT_EQ(path("/%zz"), "bad_request");
  EXPECT_EQ(path("/%4"), "bad_request");
}

TEST_F(Incoming, AnswersPreflightsOfKnownOrigins) {
  const auto ask = [&](const std::string& origin) {
    EXPECT_EQ(read("OPTIONS /v1/x HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                   "\r\nAccess-Control-Request-Method: POST\r\n"
                   "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n"),
              0);
    std::string all;
    for (const auto& [name, value] : incoming_->plan().cors)
      all += name + "=" + value + ";";
    for (const auto& [name, value] : incoming_->plan().option_reply)
      all += name + "=" + value + ";";
    return all;
  };
  EXPECT_EQ(ask("https://a.example"), "Allow=GET, POST, OPTIONS;") << "off by default";

  settings_.cors_origins = {"https://a.example"};
  EXPECT_THAT(
      ask("https://a.example"),
      testing::AllOf(HasSubstr("Access-Control-Allow-Origin=https://a.example;"),
                     HasSubstr("Access-Control-Allow-Methods=GET, POST, OPTIONS;"),
                     HasSubstr("Access-Control-Allow-Headers=authorization,x-stainless-os;"),
                     HasSubstr("Vary=Origin;")));
  for (const std::string other : {"https://b.example", "http://a.example", "https://a.example:1",
                                  "https://a.example.evil", "null"})
    EXPECT_EQ(ask(other), "Vary=Origin;Allow=GET, POST, OPTIONS;") << other;
}

TEST_F(Incoming, KnowsWhoseErrorItIs) {
  read(request("", "{}", "/v1/messages/count_tokens"));
  EXPECT_EQ(error_reply(incoming_->error(), incoming_->plan().path, "id").body.substr(0, 16),
            "{\"type\":\"error\",");
  read("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n");
  EXPECT_EQ(incoming_->plan().path, "/v1/messages");
  read(request("", "{}", "/v1/chat/completions"));
  EXPECT_EQ(error_reply(incoming_->error(), incoming_->plan().path, "id").body.substr(0, 9),
            "{\"error\":");
}

TEST_F(Incoming, WantsContinueOnce) {
  const std::string head =
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
  EXPECT_EQ(read(head), -1);
  EXPECT_TRUE(incoming_->take_wants_continue());
  EXPECT_FALSE(incoming_->take_wants_continue());
  EXPECT_EQ(read(head + "{"), -1);
  EXPECT_FALSE(incoming_->take_wants_continue()) << "it did not wait";
}

TEST_F(Incoming, HoldsItsMemoryUntilItGoes) {
  ASSERT_EQ(read(json(std::string(10'000, 'x'))), 0);
  EXPECT_GE(budget_->held_bytes(), 10'000);
  {
    const InputCharge charge = incoming_->take_charge();
    incoming_.reset();
    EXPECT_GE(budget_->held_bytes(), 10'000);
  }
  EXPECT_EQ(budget_->held_bytes(), 0);
}

TEST_F(Incoming, RefusesWhatTheBudgetHasNot) {
  budget_ = std::make_shared<InputBudget>(50'000);
  EXPECT_EQ(read(json(std::string(10'000, 'x'))), 0);
  EXPECT_EQ(read(json(std::string(100'000, 'x'))), 503);
  EXPECT_EQ(budget_->held_bytes(), 0);
}

TEST(HttpSettings, RefusesWhatItCannotDo) {
  const auto message = [](auto change) {
    HttpSettings s;
    change(s);
    const Status status = check_settings(s);
    return status.ok() ? std::string("ok") : status.message();
  };
  EXPECT_EQ(message([](HttpSettings&) {}), "ok");
  EXPECT_THAT(message([](HttpSettings& s) { s.port = 65'536; }), HasSubstr("--port is 65536"));
  EXPECT_THAT(message([](HttpSettings& s) { s.max_connections = 65'537; }),
              HasSubstr("--max-connections"));
  EXPECT_EQ(message([](HttpSettings& s) { s.max_body_bytes = 256 << 20; }), "ok");
  EXPECT_THAT(message([](HttpSettings& s) { s.max_body_bytes = (256 << 20) + 1; }),
              HasSubstr("--max-body-mb"));
  EXPECT_THAT(message([](HttpSettings& s) { s.tls_key_file = "k"; }),
              HasSubstr("--ssl-keyfile without --ssl-certfile"));
  EXPECT_EQ(message([](HttpSettings& s) { s.cors_origins = {"http://a:1"}; }), "ok");
  for (const std::string bad : {"*", "a.example", "https://a/", "https://*.a"})
    EXPECT_THAT(message([&](HttpSettings& s) { s.cors_origins = {bad}; }),
                HasSubstr("no exact origin"))
        << bad;
  EXPECT_THAT(message([](HttpSettings& s) { s.root_path = "/a/"; }), HasSubstr("--root-path"));
}

TEST(HttpSettings, RefusesAnOpenAddressWithoutKeys) {
  HttpSettings s;
  for (const std::string host : {"127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.5"}) {
    s.host = host;
    EXPECT_TRUE(check_bind(s, false, NoAuth::kRefused).ok()) << host;
  }
  for (const std::string host : {"0.0.0.0", "::", "192.168.1.2", "box.lan", ""}) {
    s.host = host;
    const Status refused = check_bind(s, false, NoAuth::kRefused);
    ASSERT_FALSE(refused.ok()) << host;
    EXPECT_THAT(refused.message(), HasSubstr("--api-key-file"));
    EXPECT_THAT(refused.message(), HasSubstr("--insecure-no-auth"));
    EXPECT_TRUE(check_bind(s, true, NoAuth::kRefused).ok()) << host;
    EXPECT_TRUE(check_bind(s, false, NoAuth::kInsecure).ok()) << host;
  }
}

}  // namespace
}  // namespace fathom::serve
