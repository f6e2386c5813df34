// What happens on a connection while its request is answered: clients that leave or do not read,
// streams that are silent, memory that is let go.
#include "fathom/serve/http/connection.h"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <gtest/gtest.h>
#include <malloc.h>
#include <thread>

#include "tests/support/http_server_fixture.h"
#include "tests/support/raw_http_client.h"

namespace fathom::serve {
namespace {

TEST(Connection, PingsAStreamThatIsSilent) {
  HttpSettings settings;
  settings.ping_interval_ms = 50;
  TestServer server(settings);
  RawHttpClient client(server.address());

  client.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  x->begin_stream(TestServer::text(""), {});

  EXPECT_TRUE(client.read_until(": ping\n\n"));
  EXPECT_TRUE(client.read_until(": ping\n\n"));
  x->end_stream();
  EXPECT_TRUE(client.read_until("0\r\n\r\n"));
}

TEST(Connection, TellsOnceThatNothingIsAnswered) {
  HttpSettings settings;
  settings.ping_interval_ms = 50;
  TestServer server(settings);
  RawHttpClient client(server.address());
  client.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  std::atomic<int> told{0};
  x->on_silence([&] { FAIL() << "this listener was replaced"; });
  x->on_silence([&, weak = std::weak_ptr(x)] {
    ++told;
    weak.lock()->begin_stream(TestServer::text(""), {});
  });

  // The head comes by itself, then what keeps the stream alive.
  ASSERT_TRUE(client.read_until("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(client.read_until("\r\n\r\n"));
  EXPECT_TRUE(client.read_until(": ping\n\n"));
  EXPECT_TRUE(client.read_until(": ping\n\n"));
  x->send("at last");
  x->end_stream();
  EXPECT_TRUE(client.read_until("at last\r\n0\r\n\r\n"));
  EXPECT_EQ(told, 1);
}

TEST(Connection, TellsOfNoSilenceBehindAReplyOrWithoutPings) {
  for (const int64_t interval : {int64_t{0}, int64_t{20}}) {
    HttpSettings settings;
    settings.ping_interval_ms = interval;
    TestServer server(settings);
    RawHttpClient client(server.address());
    client.send(get("/hold"));
    const ExchangePtr x = server.wait_for_held(1);
    std::atomic<bool> told{false};
    if (interval > 0) x->begin_stream(TestServer::text("data"), {});
    x->on_silence([&] { told = true; });

    std::this_thread::sleep_for(std::chrono::milliseconds(100));

    EXPECT_FALSE(told) << "interval " << interval;
    x->reply(TestServer::text("reply"));
    x->end_stream();
    EXPECT_EQ(client.reply().status, 200) << "interval " << interval;
  }
}

TEST(Connection, LetsABodyGoWhileItsAnswerIsComputed) {
  HttpSettings settings;
  settings.max_buffered_input_bytes = 1 << 20;
  TestServer server(settings);
  RawHttpClient holder(server.address());
  holder.send(post("/hold", std::string(700'000, ' ')));
  const ExchangePtr x = server.wait_for_held(1);
  const int64_t with_body = server->counts().input_bytes;

  x->release_body();
  x->release_body();

  EXPECT_EQ(x->request().body, "");
  EXPECT_GE(with_body, 700'000);
  EXPECT_GT(server->counts().input_bytes, 0) << "the head is still held";
  EXPECT_LT(server->counts().input_bytes, 10'000);
  RawHttpClient client(server.address());
  EXPECT_EQ(client.ask(post("/echo", std::string(700'000, ' '))).status, 200);
  server.release_held("done");
  EXPECT_EQ(holder.reply().body, "done");
}

TEST(Connection, KeepsNoMemoryOfAReplyThatWentOut) {
  TestServer server;
  RawHttpClient client(server.address());
  const auto mapped = [] { return mallinfo2().hblkhd; };
  const size_t before = mapped();

  client.send(get("/large"));
  std::string start;
  std::array<char, 64 << 10> piece;
  for (size_t total = 0, expected = 0; expected == 0 || total < expected;) {
    const ssize_t got = recv(client.descriptor(), piece.data(), piece.size(), 0);
    ASSERT_GT(got, 0);
    total += static_cast<size_t>(got);
    if (expected != 0) continue;
    start.append(piece.data(), static_cast<size_t>(got));
    const size_t end = start.find("\r\n\r\n");
    if (end != std::string::npos) expected = end + 4 + (size_t{64} << 20);
  }

  EXPECT_EQ(client.ask(get("/echo")).status, 200);
  EXPECT_LT(mapped(), before + (size_t{32} << 20));
}

// ---- clients that leave --------------------------------------------------------------------

enum class Leave { kClose, kReset };

// Whether the handler hears of it.
bool hears_of_leaving(Leave how, bool streaming, std::string request = get("/hold")) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send(request);
  const ExchangePtr x = server.wait_for_held(1);
  if (streaming) {
    x->begin_stream(TestServer::text("data"), {});
    client.read_until("data");
  }
  std::promise<void> gone;
  x->on_gone([&] { gone.set_value(); });

  how == Leave::kClose ? client.leave() : client.reset();

  const bool heard =
      gone.get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  EXPECT_TRUE(x->gone());
  EXPECT_EQ(server->counts().gone_total, 1);
  return heard;
}

TEST(Connection, HearsOfAClientThatResetsWhileItWaits) {
  EXPECT_TRUE(hears_of_leaving(Leave::kReset, false));
}

TEST(Connection, HearsOfAClientThatResetsMidStream) {
  EXPECT_TRUE(hears_of_leaving(Leave::kReset, true));
}

TEST(Connection, HearsOfAClientThatClosesWhileItWaits) {
  EXPECT_TRUE(hears_of_leaving(Leave::kClose, false));
}

TEST(Connection, HearsOfAClientThatClosesMidStream) {
  EXPECT_TRUE(hears_of_leaving(Leave::kClose, true));
}

TEST(Connection, HearsOfAnOldClientThatCloses) {
  const std::string request = "GET /hold HTTP/1.0\r\nHost: localhost\r\n\r\n";
  EXPECT_TRUE(hears_of_leaving(Leave::kClose, false, request));
  EXPECT_TRUE(hears_of_leaving(Leave::kClose, true, request));
}

// Its end of output is the end of its request (RFC 1945, 1.3).
TEST(Connection, TakesAnOldClientForGoneThatClosesItsDirection) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send("GET /slow HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const ExchangePtr x = server.wait_for_held(1);
  std::promise<void> gone;
  x->on_gone([&] { gone.set_value(); });

  client.end_output();

  EXPECT_TRUE(client.ended());
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(Connection, AnswersAClientThatClosedItsDirectionOnly) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send(get("/slow"));
  const ExchangePtr x = server.wait_for_held(1);

  client.end_output();
  EXPECT_TRUE(client.read_until("HTTP/1.1 100 Continue\r\n\r\n"));  // it found the reader alive
  EXPECT_FALSE(x->gone());
  server.release_held("still here");

  EXPECT_EQ(client.reply().body, "still here");
  EXPECT_TRUE(client.ended());
}

TEST(Connection, CallsTheListenerAtOnceWhenTheClientIsGone) {
  TestServer server;
  RawHttpClient client(server.address());
  client.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  client.reset();
  std::promise<void> first;
  x->on_gone([&] { first.set_value(); });
  first.get_future().wait();

  std::promise<void> second;
  x->on_gone([&] { second.set_value(); });
  EXPECT_EQ(second.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(Connection, GivesUpAReaderThatDoesNotReadAndServesTheOthers) {
  HttpSettings settings;
  settings.stream_buffer_bytes = 256 << 10;
  TestServer server(settings);
  RawHttpClient slow(server.address(), 4'096);
  slow.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  std::promise<void> gone;
  x->on_gone([&] { gone.set_value(); });
  auto given_up = gone.get_future();
  x->begin_stream(TestServer::text(""), {});

  int64_t sent = 0;
  RawHttpClient other(server.address());
  while (given_up.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
    x->send(std::string(16 << 10, 'x'));
    sent += 16 << 10;
    ASSERT_LT(sent, 64 << 20);
    ASSERT_EQ(other.ask(get("/echo?fine")).body, "GET /echo fine ");
  }

  EXPECT_GT(sent, 256 << 10);
  EXPECT_EQ(server->counts().given_up_total, 1);
  EXPECT_TRUE(x->gone());
}

TEST(Connection, GivesUpAReaderThatStalls) {
  HttpSettings settings;
  settings.write_stall_ms = 100;
  TestServer server(settings);
  RawHttpClient client(server.address(), 4'096);
  client.send(get("/large"));

  // It is given up, then closed.
  while (server->counts().given_up_total == 0 || server->counts().connections > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(server->counts().gone_total, 0) << "its request was answered";
}

}  // namespace
}  // namespace fathom::serve
