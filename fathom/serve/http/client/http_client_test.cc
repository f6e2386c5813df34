#include "fathom/serve/http/client/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "fathom/os/clock.h"
#include "fathom/serve/sse.h"
#include "tests/support/scripted_server.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;
using Then = ScriptedServer::Then;

std::unique_ptr<HttpClient> client_of(const HttpClientOptions& options) {
  auto client = HttpClient::create(options);
  FATHOM_CHECK(client.ok(), client.ok() ? "" : client.status().message());
  return std::move(client).value();
}

struct Seen {
  int status = 0;
  std::string body;
  int ends = 0;
  CallFault fault = CallFault::kNone;
  std::string message;
};

CallListener into(Seen& seen) {
  CallListener listener;
  listener.on_head = [&seen](const ReplyHead& head) { seen.status = head.status; };
  listener.on_body = [&seen](std::string_view piece) { seen.body += piece; };
  listener.on_end = [&seen](CallFault fault, const Status& status) {
    ++seen.ends;
    seen.fault = fault;
    if (!status.ok()) seen.message = status.message();
  };
  return listener;
}

/// One call to a server that answers with `bytes` and closes.
Seen answer_to(const std::string& bytes, HttpClientOptions options = {}) {
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.send(bytes);
    return Then::kClose;
  });
  options.base_url = server.url();
  const auto client = client_of(options);
  Seen seen;
  client->start({.path = "/x"}, into(seen));
  client->run();
  EXPECT_EQ(seen.ends, 1) << bytes;
  return seen;
}

TEST(HttpClient, SendsMethodPathHeadersAndBody) {
  std::string head, body;
  ScriptedServer server([&](const ScriptedExchange& e) {
    head = e.head;
    body = e.body;
    e.reply(201, "made", "X-Kind: a\r\n");
    return Then::kClose;
  });
  const auto client =
      client_of({.base_url = server.url() + "/api/v1", .headers = {{"Authorization", "Bearer k"}}});

  const auto reply = client->fetch(
      {.method = "POST", .path = "/v1/x", .body = "{\"a\":1}", .headers = {{"X-Mine", "2"}}});

  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(reply->head.status, 201);
  EXPECT_EQ(reply->head.header("x-kind"), "a");
  EXPECT_EQ(reply->body, "made");
  EXPECT_THAT(head, HasSubstr("POST /api/v1/x HTTP/1.1\r\n"));
  EXPECT_THAT(head, HasSubstr("Host: 127.0.0.1:"));
  EXPECT_THAT(head, HasSubstr("Authorization: Bearer k\r\n"));
  EXPECT_THAT(head, HasSubstr("X-Mine: 2\r\n"));
  EXPECT_EQ(body, "{\"a\":1}");
}

TEST(HttpClient, KeepsAConnectionForTheNextCall) {
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.reply(200, "ok");
    return Then::kKeep;
  });
  const auto client = client_of({.base_url = server.url()});

  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(client->fetch({.path = "/x"}).ok());

  EXPECT_EQ(server.num_connections(), 1);
}

TEST(HttpClient, SendsAgainWhereAKeptConnectionWasClosed) {
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.reply(200, std::to_string(e.connection));
    return Then::kClose;  // without a word of it in the reply
  });
  const auto client = client_of({.base_url = server.url()});

  const auto first = client->fetch({.method = "POST", .path = "/x", .body = "{}"});
  const auto second = client->fetch({.method = "POST", .path = "/x", .body = "{}"});

  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->body, "0");
  EXPECT_EQ(second->body, "1");
}

TEST(HttpClient, ManyCallsRunAtOnce) {
  constexpr int kCalls = 50;
  std::atomic<int> waiting{0};
  ScriptedServer server([&](const ScriptedExchange& e) {
    // Nobody is answered before everybody has asked.
    for (++waiting; waiting < kCalls;)
      std::this_thread::yield();
    e.reply(200, e.body);
    return Then::kKeep;
  });
  const auto client = client_of({.base_url = server.url()});
  std::vector<Seen> seen(kCalls);

  for (int i = 0; i < kCalls; ++i) {
    client->start({.method = "POST", .path = "/x", .body = std::to_string(i)},
                  into(seen[static_cast<size_t>(i)]));
  }
  client->run();

  for (int i = 0; i < kCalls; ++i)
    EXPECT_EQ(seen[static_cast<size_t>(i)].body, std::to_string(i));
}

TEST(HttpClient, ChunksComeAsOneStreamHoweverTheyAreCut) {
  const std::string wire =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
      "b\r\ndata: one\n\n\r\n5\r\ndata:\r\n6\r\n two\n\n\r\n0\r\n\r\n";
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    ScriptedServer server([&](const ScriptedExchange& e) {
      e.send(wire.substr(0, cut));
      e.send(wire.substr(cut));
      return Then::kKeep;
    });
    const auto client = client_of({.base_url = server.url()});
    std::vector<std::string> data;
    SseParser parser;
    Seen seen;
    CallListener listener = into(seen);
    listener.on_body = [&](std::string_view piece) {
      EXPECT_TRUE(parser.push(piece, [&](const SseEvent& e) { data.push_back(e.data); }).ok());
    };

    client->start({.path = "/x"}, std::move(listener));
    client->run();

    EXPECT_EQ(seen.fault, CallFault::kNone) << seen.message;
    ASSERT_EQ(data, (std::vector<std::string>{"one", "two"})) << "cut at " << cut;
  }
}

TEST(HttpClient, InterimRepliesAreNoReplies) {
  const Seen seen = answer_to(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");

  EXPECT_EQ(seen.fault, CallFault::kNone) << seen.message;
  EXPECT_EQ(seen.status, 200);
  EXPECT_EQ(seen.body, "ok");
}

TEST(HttpClient, ABodyWithoutLengthEndsWithTheConnection) {
  const Seen seen = answer_to("HTTP/1.1 200 OK\r\n\r\nall of it");

  EXPECT_EQ(seen.fault, CallFault::kNone) << seen.message;
  EXPECT_EQ(seen.body, "all of it");
}

TEST(HttpClient, EarlyEndsAreNamed) {
  for (const std::string bytes :
       {"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n"}) {
    const Seen seen = answer_to(bytes);
    EXPECT_EQ(seen.fault, CallFault::kClosed) << bytes;
    EXPECT_THAT(seen.message, HasSubstr("GET /x at 127.0.0.1:")) << bytes;
    EXPECT_THAT(seen.message, HasSubstr("the connection ended ")) << bytes;
  }
}

TEST(HttpClient, BrokenRepliesAreNamed) {
  for (const std::string bytes : {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
                                  "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                                  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    const Seen seen = answer_to(bytes);
    EXPECT_EQ(seen.fault, CallFault::kBrokenReply) << bytes << ": " << seen.message;
    EXPECT_THAT(seen.message, HasSubstr("the reply is no HTTP/1.1: ")) << bytes;
  }
}

TEST(HttpClient, HeadersAboveTheLimitAreRefused) {
  const Seen seen = answer_to("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n");

  EXPECT_EQ(seen.fault, CallFault::kBrokenReply) << seen.message;
}

TEST(HttpClient, RepliesAboveTheLimitOfFetchAreRefused) {
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.reply(200, std::string(1000, 'a'));
    return Then::kKeep;
  });
  const auto client = client_of({.base_url = server.url()});

  const auto reply = client->fetch({.path = "/x"}, 999);

  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().message(), "the reply to /x has more than 999 bytes");
  EXPECT_TRUE(client->fetch({.path = "/x"}, 1000).ok());
}

TEST(HttpClient, NobodyListeningIsAnErrorOfTheConnection) {
  std::string url;
  {
    ScriptedServer gone([](const ScriptedExchange&) { return Then::kClose; });
    url = gone.url();
  }
  const auto client = client_of({.base_url = url});

  const auto reply = client->fetch({.path = "/x"});

  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(), HasSubstr("cannot connect to 127.0.0.1:"));
}

TEST(HttpClient, AReplyThatNeverEndsRunsIntoTheTimeout) {
  std::atomic<bool> over{false};
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (!over && e.chunk("data: x\n\n"))
      std::this_thread::yield();
    return Then::kClose;
  });
  const auto client = client_of({.base_url = server.url(), .total_timeout_s = 0.2});
  Seen seen;

  const int64_t begin = monotonic_ns();
  client->start({.path = "/x"}, into(seen));
  client->run();
  over = true;

  EXPECT_GE(monotonic_ns() - begin, 190'000'000);
  EXPECT_EQ(seen.fault, CallFault::kTimeout);
  EXPECT_THAT(seen.message, HasSubstr("no complete reply within 0.2 s"));
}

TEST(HttpClient, AConnectionThatIsNotMadeRunsIntoItsOwnTimeout) {
  // A listener that speaks no TLS keeps the handshake waiting.
  ScriptedServer server([&](const ScriptedExchange&) { return Then::kClose; });
  const auto client = client_of(
      {.base_url = "https://127.0.0.1:" + std::to_string(server.port()), .connect_timeout_s = 0.2});
  Seen seen;

  client->start({.path = "/x"}, into(seen));
  client->run();

  EXPECT_EQ(seen.fault, CallFault::kConnect);
  EXPECT_THAT(seen.message, HasSubstr("no connection within 0.2 s"));
}

TEST(HttpClient, CancelClosesTheStream) {
  std::atomic<bool> client_left{false};
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (e.chunk("data: x\n\n"))
      std::this_thread::yield();
    client_left = true;
    return Then::kClose;
  });
  const auto client = client_of({.base_url = server.url()});
  Seen seen;
  CallId id = 0;
  CallListener listener = into(seen);
  listener.on_body = [&](std::string_view) { client->cancel(id); };

  id = client->start({.path = "/x"}, std::move(listener));
  client->run();

  EXPECT_EQ(seen.fault, CallFault::kCancelled);
  EXPECT_EQ(seen.ends, 1);
  while (!client_left)
    std::this_thread::yield();
}

TEST(HttpClient, ListenersMayStartCalls) {
  ScriptedServer server([&](const ScriptedExchange& e) {
    e.reply(200, e.body);
    return Then::kKeep;
  });
  const auto client = client_of({.base_url = server.url()});
  std::vector<std::string> order;
  std::function<void(int)> next = [&](int left) {
    if (left == 0) return;
    CallListener listener;
    listener.on_body = [&](std::string_view body) { order.emplace_back(body); };
    listener.on_end = [&, left](CallFault, const Status&) { next(left - 1); };
    client->start({.method = "POST", .path = "/x", .body = std::to_string(left)},
                  std::move(listener));
  };

  client->after(1'000'000, [&] { next(3); });
  client->run();

  EXPECT_EQ(order, (std::vector<std::string>{"3", "2", "1"}));
}

TEST(HttpClient, TimersThatAreDroppedDoNotHoldTheLoop) {
  const auto client = client_of({.base_url = "http://127.0.0.1:1"});
  int calls = 0;
  const int64_t begin = monotonic_ns();

  const TimerId far = client->after(60'000'000'000, [&] { calls += 100; });
  client->after(1'000'000, [&] {
    ++calls;
    client->drop(far);
  });
  client->run();

  EXPECT_EQ(calls, 1);
  EXPECT_LT(monotonic_ns() - begin, 10'000'000'000);
}

TEST(HttpClient, ClientsThatAreDroppedLeaveTheirCalls) {
  ScriptedServer server([&](const ScriptedExchange&) { return Then::kKeep; });
  Seen seen;
  {
    const auto client = client_of({.base_url = server.url()});
    client->start({.path = "/x"}, into(seen));
  }

  EXPECT_EQ(seen.ends, 0);
}

/// A server of TLS for one connection, whose certificate it signed itself.
class SelfSignedServer {
 public:
  SelfSignedServer() {
    key_ = EVP_RSA_gen(2048);
    certificate_ = X509_new();
    X509_set_version(certificate_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate_), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), 3600);
    X509_set_pubkey(certificate_, key_);
    X509_NAME* const name = X509_get_subject_name(certificate_);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
    X509_set_issuer_name(certificate_, name);
    X509_sign(certificate_, key_, EVP_sha256());
    context_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context_, certificate_);
    SSL_CTX_use_PrivateKey(context_, key_);
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_, 4);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "https://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve_one(); });
  }

  ~SelfSignedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    SSL_CTX_free(context_);
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }

  const std::string& url() const { return url_; }

 private:
  void serve_one() {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;
    SSL* const ssl = SSL_new(context_);
    SSL_set_fd(ssl, socket);
    char buffer[4096];
    if (SSL_accept(ssl) == 1 && SSL_read(ssl, buffer, sizeof buffer) > 0) {
      constexpr std::string_view kReply = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";
      SSL_write(ssl, kReply.data(), static_cast<int>(kReply.size()));
    }
    SSL_free(ssl);
    ::close(socket);
  }

  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
  SSL_CTX* context_ = nullptr;
  int listener_ = -1;
  std::string url_;
  std::thread thread_;
};

TEST(HttpClient, RefusesACertificateThatNobodySigned) {
  SelfSignedServer server;
  const auto client = client_of({.base_url = server.url()});
  Seen seen;

  client->start({.path = "/x"}, into(seen));
  client->run();

  EXPECT_EQ(seen.fault, CallFault::kTls);
  EXPECT_THAT(seen.message, HasSubstr("the certificate of 127.0.0.1:"));
  EXPECT_THAT(seen.message, HasSubstr("is not trusted: self"));
  EXPECT_THAT(seen.message, HasSubstr("--insecure accepts any"));
  EXPECT_EQ(seen.body, "");
}

TEST(HttpClient, AcceptsAnyCertificateWhereItIsToldTo) {
  SelfSignedServer server;
  const auto client =
      client_of({.base_url = server.url(), .certificates = Certificates::kAcceptAny});

  const auto reply = client->fetch({.path = "/x"});

  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(reply->body, "secret");
}

}  // namespace
}  // namespace fathom::serve
