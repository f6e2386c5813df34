#include "fathom/serve/http/http_server.h"

#include <condition_variable>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <thread>

#include "fathom/os/clock.h"
#include "tests/support/http_server_fixture.h"
#include "tests/support/raw_http_client.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;

TEST(HttpServer, AnswersWithTheHandlersReply) {
  TestServer server;

  RawHttpClient client(server.address());
  const RawReply r = client.ask(post("/echo?a=b%20c", "{\"x\":1}"));

  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body, "POST /echo a=b%20c {\"x\":1}");
  EXPECT_EQ(r.header("Content-Type"), "text/plain");
  EXPECT_TRUE(r.header("Date").ends_with(" GMT")) << r.head;
  EXPECT_TRUE(r.header("X-Request-Id").starts_with("req-")) << r.head;
  EXPECT_EQ(r.header("Server"), "");
}

TEST(HttpServer, GivesTheClientsRequestIdBack) {
  TestServer server;
  RawHttpClient client(server.address());
  const auto id_for = [&](const std::string& id) {
    return client.ask(get("/echo", "X-Request-Id: " + id + "\r\n")).header("X-Request-Id");
  };

  EXPECT_EQ(id_for("mine-1"), "mine-1");
  EXPECT_EQ(id_for(std::string(256, 'i')), std::string(256, 'i'));
  EXPECT_TRUE(id_for(std::string(257, 'i')).starts_with("req-"));
  EXPECT_TRUE(id_for("\xc3\xa4").starts_with("req-"));
}

TEST(HttpServer, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  TestServer server;
  RawHttpClient client(server.address());

  client.send(get("/slow") + get("/echo?2") + get("/echo?3") + get("/echo?4"));

  server.wait_for_held(1);
  server.release_held("slow");
  EXPECT_EQ(client.reply().body, "slow");
  EXPECT_EQ(client.reply().body, "GET /echo 2 ");
  EXPECT_EQ(client.reply().body, "GET /echo 3 ");
  EXPECT_EQ(client.reply().body, "GET /echo 4 ");
  EXPECT_EQ(server->counts().accepted_total, 1);
  EXPECT_EQ(server->counts().requests_total, 4);
}

TEST(HttpServer, ReadsOneRequestAheadAndNoMore) {
  TestServer server;
  RawHttpClient client(server.address());
  const std::string large = post("/echo", std::string(1 << 20, ' '));

  client.send(get("/slow"));
  server.wait_for_held(1);
  std::thread sender([&] {
    for (int i = 0; i < 16; ++i)
      client.send(large);
  });

  // The second is read; of the others there is one read's worth.
  const int64_t limit = 3 << 20;
  for (int i = 0; i < 100; ++i) {
    EXPECT_LT(server->counts().input_bytes, limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  server.release_held("slow");
  EXPECT_EQ(client.reply().body, "slow");
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(client.reply().body.size(), (1 << 20) + 12u);
  sender.join();
}

TEST(HttpServer, ClosesWhereTheClientAsks) {
  TestServer server;

  RawHttpClient client(server.address());
  const RawReply r = client.ask(get("/echo", "Connection: foo, Close\r\n"));
  EXPECT_EQ(r.header("Connection"), "close");
  EXPECT_TRUE(client.ended());

  RawHttpClient old(server.address());
  EXPECT_EQ(old.ask("GET /echo HTTP/1.0\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_TRUE(old.ended());
}

TEST(HttpServer, SaysContinueToAClientThatWaits) {
  TestServer server;
  RawHttpClient client(server.address());

  EXPECT_EQ(client
                .ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                     "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n")
                .status,
            100);
  EXPECT_EQ(client.ask("{}").body, "POST /echo  {}");
  EXPECT_EQ(client
                .ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                     "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
                .status,
            413);
}

TEST(HttpServer, AnswersAFaultAndCloses) {
  TestServer server;
  RawHttpClient client(server.address());

  const RawReply r = client.ask("GET /echo HTTP/1.1\nHost: localhost\r\n\r\n");

  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.body, HasSubstr("\"type\":\"invalid_request_error\""));
  EXPECT_EQ(r.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
}

TEST(HttpServer, ReadsTheReplyToALargeBodyThatIsRefused) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send(
      "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 100000000\r\n\r\n");
  std::thread sender([&] { client.send(std::string(4 << 20, 'x')); });

  const RawReply r = client.reply();
  sender.join();

  EXPECT_EQ(r.status, 413);
  EXPECT_THAT(r.body, HasSubstr("\"type\":\"request_too_large\""));
}

TEST(HttpServer, KeepsTheConnectionAfterARefusalWithoutABody) {
  std::mutex mutex;  // the server has a thread of its own
  std::vector<std::string> refused;
  TestServer server({}, {}, [&](const ApiError& error) {
    const std::lock_guard lock(mutex);
    refused.push_back(error.code);
  });
  RawHttpClient client(server.address());

  EXPECT_EQ(client.ask("DELETE /echo HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
  EXPECT_EQ(client.ask(get("/echo", "", "evil.example")).status, 403);
  EXPECT_EQ(client.ask(get("/echo")).status, 200);
  EXPECT_EQ(server->counts().refused_total, 2);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(refused, testing::ElementsAre("method_not_allowed", "host_not_allowed"));
}

TEST(HttpServer, AnswersWhomTheGateRefusesBeforeTheirBodyComes) {
  TestServer server({}, [](const HttpRequest& head) -> std::optional<ApiError> {
    if (!head.header("x-api-key").empty()) return {};
    return ApiError{.status = 401, .code = "invalid_api_key", .message = "no key", .param = {}};
  });
  RawHttpClient client(server.address());

  const RawReply r = client.ask(
      "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 30000000\r\n\r\n");

  EXPECT_EQ(r.status, 401);
  EXPECT_THAT(r.body, HasSubstr("\"type\":\"authentication_error\""));
  EXPECT_EQ(r.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(server->counts().input_bytes, 0);
  RawHttpClient other(server.address());
  EXPECT_EQ(other.ask(get("/echo")).status, 401);
  EXPECT_EQ(other.ask(get("/echo", "X-Api-Key: k\r\n")).status, 200) << "no body, no end";
}

TEST(HttpServer, DropsABodyThatNobodyReads) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send("GET /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n");
  client.send(get("/echo?smuggled") + std::string(2'000'000, 'x'));
  server.wait_for_held(1);
  const int64_t held = server->counts().input_bytes;
  server.release_held("slow");

  const RawReply r = client.reply();
  EXPECT_EQ(r.body, "slow");
  EXPECT_EQ(r.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
  EXPECT_LT(held, 10'000);
  EXPECT_EQ(server->counts().requests_total, 1);
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  TestServer server;
  RawHttpClient client(server.address());

  client.send("HEAD /echo HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/echo"));

  ASSERT_TRUE(client.read_until("HTTP/1.1 405 Method Not Allowed\r\n"));
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  EXPECT_EQ(client.reply().status, 200);
}

TEST(HttpServer, AnswersAnExchangeThatWasLetGo) {
  TestServer server;
  RawHttpClient client(server.address());

  const RawReply r = client.ask(get("/drop"));

  EXPECT_EQ(r.status, 500);
  EXPECT_THAT(r.body, HasSubstr("\"code\":\"internal_error\""));
}

TEST(HttpServer, TakesOneReplyOfMany) {
  TestServer server;
  RawHttpClient client(server.address());

  EXPECT_EQ(client.ask(get("/twice")).body, "one");
  EXPECT_EQ(client.ask(get("/echo?next")).body, "GET /echo next ");
}

TEST(HttpServer, StreamsPiecesAsChunks) {
  TestServer server;
  RawHttpClient client(server.address());

  client.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  x->begin_stream(TestServer::text("a"), {});
  x->send("b");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  ASSERT_TRUE(client.read_until("b\r\n"));
  x->send(std::string(300'000, 'c'));
  x->end_stream();
  x->send("late");

  ASSERT_TRUE(client.read_until("c\r\n0\r\n\r\n"));
  EXPECT_EQ(client.ask(get("/echo?next")).body, "GET /echo next ");
}

TEST(HttpServer, StreamsToOldClientsUntilTheEnd) {
  TestServer server;
  RawHttpClient client(server.address());

  client.send("GET /stream3 HTTP/1.0\r\nHost: localhost\r\n\r\n");

  const RawReply r = client.reply();
  EXPECT_EQ(r.header("Transfer-Encoding"), "");
  EXPECT_EQ(r.body, "012");
}

TEST(HttpServer, CutsAStreamThatIsLetGo) {
  TestServer server;
  RawHttpClient client(server.address());

  const RawReply r = client.ask(get("/cut"));

  EXPECT_EQ(r.body, "begun");
  EXPECT_FALSE(r.whole);
}

// ---- limits of time and number -------------------------------------------------------------

TEST(HttpServer, EndsSlowHeaders) {
  HttpSettings settings;
  settings.header_timeout_ms = 100;
  TestServer server(settings);
  RawHttpClient client(server.address());
  client.send("GET /echo HTTP/1.1\r\nHost: loc");

  const RawReply r = client.reply();

  EXPECT_EQ(r.status, 408);
  EXPECT_THAT(r.body, HasSubstr("the headers took longer than 100 ms"));
  EXPECT_TRUE(client.ended());
}

TEST(HttpServer, EndsSlowBodies) {
  HttpSettings settings;
  settings.body_timeout_ms = 100;
  TestServer server(settings);
  RawHttpClient client(server.address());

  const RawReply r = client.ask(post("/echo", "{}").substr(0, post("/echo", "{}").size() - 1));

  EXPECT_EQ(r.status, 408);
  EXPECT_THAT(r.body, HasSubstr("the body took longer than 100 ms"));
}

TEST(HttpServer, EndsBodiesThatTrickle) {
  HttpSettings settings;
  settings.slow_body_grace_ms = 100;
  settings.slowest_body_bytes_per_s = 100'000;
  TestServer server(settings);
  RawHttpClient client(server.address());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 1000000\r\n\r\n");
  std::thread sender([&] {
    for (int i = 0; i < 1'000 && client.send("x"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });

  const RawReply r = client.reply();
  client.end_output();
  sender.join();

  EXPECT_EQ(r.status, 408);
  EXPECT_THAT(r.body, HasSubstr("slower than 100000 bytes per second"));
}

TEST(HttpServer, EndsIdleConnections) {
  HttpSettings settings;
  settings.idle_timeout_ms = 100;
  TestServer server(settings);
  RawHttpClient never(server.address());
  RawHttpClient once(server.address());
  once.ask(get("/echo"));

  EXPECT_TRUE(never.ended());
  EXPECT_TRUE(once.ended());
}

TEST(HttpServer, KeepsAConnectionWhoseRequestTakesLong) {
  HttpSettings settings;
  settings.idle_timeout_ms = 50;
  settings.header_timeout_ms = 50;
  settings.body_timeout_ms = 50;
  settings.write_stall_ms = 50;
  TestServer server(settings);
  RawHttpClient client(server.address());
  client.send(get("/slow"));
  server.wait_for_held(1);

  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  server.release_held("at last");

  EXPECT_EQ(client.reply().body, "at last");
}

TEST(HttpServer, RefusesConnectionsAboveTheLimit) {
  HttpSettings settings;
  settings.max_connections = 2;
  TestServer server(settings);
  RawHttpClient a(server.address());
  RawHttpClient b(server.address());
  EXPECT_EQ(a.ask(get("/echo")).status, 200);
  EXPECT_EQ(b.ask(get("/echo")).status, 200);

  RawHttpClient c(server.address());
  const RawReply r = c.reply();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.header("Retry-After"), "1");
  EXPECT_THAT(r.body, HasSubstr("\"code\":\"overloaded\""));
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(server->counts().rejected_total, 1);

  b.leave();
  while (server->counts().connections > 1)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  RawHttpClient d(server.address());
  EXPECT_EQ(d.ask(get("/echo")).status, 200);
}

TEST(HttpServer, RefusesRequestsAboveTheMemoryOfAll) {
  HttpSettings settings;
  settings.max_buffered_input_bytes = 1 << 20;
  TestServer server(settings);
  RawHttpClient holder(server.address());
  holder.send(post("/hold", std::string(700'000, ' ')));
  server.wait_for_held(1);

  RawHttpClient client(server.address());
  const RawReply r = client.ask(post("/echo", std::string(700'000, ' ')));
  EXPECT_EQ(r.status, 503);
  EXPECT_THAT(r.body, HasSubstr("\"code\":\"overloaded\""));

  server.release_held("done");
  EXPECT_EQ(holder.reply().body, "done");
  RawHttpClient again(server.address());
  EXPECT_EQ(again.ask(post("/echo", std::string(700'000, ' '))).status, 200);
  while (server->counts().input_bytes > 0)
    std::this_thread::yield();
}

// ---- life ----------------------------------------------------------------------------------

TEST(HttpServer, Drains) {
  TestServer server;
  RawHttpClient idle(server.address());
  RawHttpClient busy(server.address());
  EXPECT_EQ(idle.ask(get("/echo")).status, 200);
  busy.send(get("/slow"));
  server.wait_for_held(1);

  server->stop_accepting();

  EXPECT_FALSE(server->wait_idle(20));
  const RawReply r = idle.ask(get("/echo?late"));
  EXPECT_EQ(r.body, "GET /echo late ");
  EXPECT_EQ(r.header("Connection"), "close");
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(RawHttpClient(server.address()).connected());
  server.release_held("finished");
  EXPECT_EQ(busy.reply().body, "finished");
  EXPECT_TRUE(busy.ended());
  EXPECT_TRUE(server->wait_idle(5'000));
}

TEST(HttpServer, EndsWithRequestsOpen) {
  ExchangePtr survivor;
  Post post_later;
  bool heard = false;
  {
    TestServer server;
    RawHttpClient client(server.address());
    client.send(get("/hold"));
    survivor = server.wait_for_held(1);
    survivor->on_gone([&] { heard = true; });
    post_later = server->post();
  }

  EXPECT_TRUE(heard);
  EXPECT_TRUE(survivor->gone());
  survivor->reply({});
  post_later([] { FAIL() << "ran after the end"; });
}

TEST(HttpServer, RunsPostsInOrderOnItsThread) {
  TestServer server;
  std::vector<int> order;
  std::set<std::thread::id> threads;
  std::promise<void> done;
  const Post later = server->post();

  for (int i = 0; i < 100; ++i) {
    later([&, i] {
      order.push_back(i);
      threads.insert(std::this_thread::get_id());
      if (i == 99) done.set_value();
    });
  }
  done.get_future().wait();

  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(order.size(), 100u);
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(HttpServer, ListensOnAUnixSocket) {
  TempDir dir;
  HttpSettings settings;
  settings.uds_path = dir.file("s.sock");
  {
    TestServer server(settings);
    EXPECT_EQ(server.address(), "unix:" + dir.file("s.sock"));
    RawHttpClient client(server.address());
    EXPECT_EQ(client.ask(get("/echo", "", "anything")).status, 200);

    struct stat mode {};

    ASSERT_EQ(stat(settings.uds_path.c_str(), &mode), 0);
    EXPECT_EQ(mode.st_mode & 0777, 0600u);
    const auto second = HttpServer::start(settings, [](const ExchangePtr&) {});
    EXPECT_THAT(second.status().message(), HasSubstr("in use"));
  }
  EXPECT_FALSE(std::filesystem::exists(settings.uds_path));
}

TEST(HttpServer, ReplacesTheSocketOfADeadServerAndNothingElse) {
  TempDir dir;
  HttpSettings settings;
  settings.uds_path = dir.file("s.sock");
  {
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    std::strncpy(un.sun_path, settings.uds_path.c_str(), sizeof un.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&un), sizeof un), 0);
    close(fd);
  }
  { TestServer server(settings); }
  std::ofstream(settings.uds_path) << "a file";

  const auto refused = HttpServer::start(settings, [](const ExchangePtr&) {});

  EXPECT_THAT(refused.status().message(), HasSubstr("is there and no socket"));
  EXPECT_TRUE(std::filesystem::exists(settings.uds_path));
}

TEST(HttpServer, NamesAnAddressInUse) {
  TestServer server;
  HttpSettings settings;
  const std::string address = server.address();
  std::from_chars(address.data() + address.rfind(':') + 1, address.data() + address.size(),
                  settings.port);

  const auto second = HttpServer::start(settings, [](const ExchangePtr&) {});

  EXPECT_THAT(second.status().message(), HasSubstr("--port"));
}

TEST(HttpServer, AcceptsAgainWhenThereAreDescriptors) {
  TestServer server;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<int> taken;
  RawHttpClient early(server.address());
  EXPECT_EQ(early.ask(get("/echo")).status, 200);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(client) + 1, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &tight);
  while (true) {
    const int copy = dup(early.descriptor());
    if (copy < 0) break;
    taken.push_back(copy);
  }

  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string address = server.address();
  uint16_t port = 0;
  std::from_chars(address.data() + address.rfind(':') + 1, address.data() + address.size(), port);
  in.sin_port = htons(port);
  ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&in), sizeof in), 0);
  EXPECT_EQ(early.ask(get("/echo")).status, 200);  // the others are served meanwhile
  timespec cpu_before{};
  timespec cpu_after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_after);
  EXPECT_EQ(server->counts().accepted_total, 1);
  const double cpu_s = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) +
                       static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec) / 1e9;
  EXPECT_LT(cpu_s, 0.15) << "it spins";

  setrlimit(RLIMIT_NOFILE, &before);
  for (const int fd : taken)
    close(fd);
  const std::string request = get("/echo", "Connection: close\r\n");
  EXPECT_EQ(write(client, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  char first = 0;
  EXPECT_EQ(read(client, &first, 1), 1);
  close(client);
}

}  // namespace
}  // namespace fathom::serve
