// `fathom serve` as a supervisor sees it: it starts, answers, drains, and ends with 70 when its
// engine does not go on. What clients do with it is in tests/clients.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/e2e/program.h"
#include "tests/support/raw_http_client.h"

#if FATHOM_WITH_SERVER

namespace fathom::e2e {
namespace {

// A server of the small model that runs until it is told to end.
class RunningServer {
 public:
  explicit RunningServer(const std::vector<std::string>& flags, const std::string& faults = {}) {
    int out[2] = {-1, -1};
    if (pipe(out) != 0) std::abort();
    std::vector<std::string> words{FATHOM_PROGRAM, "serve", shipped_model(), "--port", "0",
                                   "--threads",    "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string log = (folder_ / "log").string();
    process_ = fork();
    if (process_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      const int err = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (err < 0 || dup2(err, STDERR_FILENO) < 0) _exit(127);
      if (!faults.empty()) setenv("FATHOM_FAIL", faults.c_str(), 1);
      execv(FATHOM_PROGRAM, argv.data());
      _exit(127);
    }
    close(out[1]);
    std::string line;
    char c = 0;
    while (::read(out[0], &c, 1) == 1 && c != '\n')
      line += c;
    close(out[0]);
    constexpr std::string_view kReady = "ready ";
    if (line.starts_with(kReady)) address_ = line.substr(kReady.size());
  }

  ~RunningServer() {
    if (process_ > 0) kill(process_, SIGKILL);
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }

  const std::string& address() const { return address_; }

  std::string log() const { return read_all(folder_ / "log"); }

  RawReply ask(const std::string& method,
               const std::string& path,
               const std::string& body = {},
               const std::string& headers = {}) {
    RawHttpClient client(address_);
    client.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
                (body.empty() ? "" : "Content-Type: application/json\r\n") +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.reply();
  }

  void tell(int signal) const { kill(process_, signal); }

  int wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  TempFolder folder_;
  pid_t process_ = -1;
  std::string address_;
};

TEST(Serve, StartsAnswersAndEnds) {
  RunningServer server({});
  ASSERT_FALSE(server.address().empty()) << server.log();
  EXPECT_EQ(server.ask("GET", "/health").body, R"({"status":"ready"})");
  const RawReply reply =
      server.ask("POST", "/v1/completions", R"({"prompt":"Once upon a time","max_tokens":4})");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(reply.body.find("text_completion"), std::string::npos);
  server.tell(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.log();
}

// A stream that takes long.
std::string long_stream() {
  const std::string body = R"({"prompt":"x","max_tokens":1900,"ignore_eos":true,"stream":true})";
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
         "application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(Serve, AStreamThatWaitsShowsThatItLives) {
  RunningServer server({"--max-num-seqs", "1", "--sse-ping-interval", "0.05"});
  ASSERT_FALSE(server.address().empty()) << server.log();
  RawHttpClient running(server.address());
  running.send(long_stream());
  ASSERT_TRUE(running.read_until("data: "));
  RawHttpClient waiting(server.address());
  waiting.send(long_stream());
  EXPECT_TRUE(waiting.read_until("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(waiting.read_until("text/event-stream"));
  EXPECT_TRUE(waiting.read_until("\r\n\r\n8\r\n: ping\n\n"));  // the first chunk
  running.leave();
  EXPECT_TRUE(waiting.read_until("data: "));
}

TEST(Serve, ASecondSignalEndsItAtOnce) {
  RunningServer server({});
  ASSERT_FALSE(server.address().empty()) << server.log();
  RawHttpClient client(server.address());
  client.send(long_stream());
  ASSERT_TRUE(client.read_until("data: "));
  server.tell(SIGTERM);
  while (server.log().find("shutting down") == std::string::npos)
    usleep(1000);
  server.tell(SIGTERM);
  EXPECT_EQ(server.wait(), 130);
}

TEST(Serve, AProfileHoldsTokensThatWereDrawn) {
  const TempFolder folder;
  RunningServer server({"--admin", "--api-key", "hush", "--profile-dir", folder.str()});
  ASSERT_FALSE(server.address().empty()) << server.log();
  const std::string key = "Authorization: Bearer hush\r\n";

  EXPECT_EQ(server.ask("POST", "/start_profile", R"({"steps":4,"output":"drawn"})", key).status,
            200);
  const RawReply reply = server.ask(
      "POST", "/v1/completions",
      R"({"prompt":"Once","max_tokens":3,"ignore_eos":true,"temperature":0.8,"presence_penalty":1,"logit_bias":{"7":1},"logprobs":2})",
      key);
  EXPECT_EQ(reply.status, 200) << reply.body;
  const RawReply stopped = server.ask("POST", "/stop_profile", "{}", key);

  EXPECT_EQ(stopped.body, R"({"output":"drawn"})") << server.log();
  EXPECT_NE(read_all(folder / "drawn" / "trace.json").find("sample_draw"), std::string::npos);

  // Names that are taken, by this server or one before it.
  const RawReply again = server.ask("POST", "/start_profile", R"({"output":"drawn"})", key);
  EXPECT_EQ(again.status, 400);
  EXPECT_NE(again.body.find("expected a name that is not"), std::string::npos) << again.body;
  std::filesystem::create_directory(folder / "profile-1");
  EXPECT_EQ(server.ask("POST", "/start_profile", "{}", key).body,
            R"({"steps":10,"output":"profile-2"})");
}

TEST(Serve, TheKeyIsAskedForBeforeTheBody) {
  RunningServer server({"--api-key", "hush"});
  ASSERT_FALSE(server.address().empty()) << server.log();
  RawHttpClient client(server.address());
  const RawReply reply = client.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 30000000\r\n\r\n");
  EXPECT_EQ(reply.status, 401) << reply.body;
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(server.ask("GET", "/health").status, 200);
}

TEST(Serve, RefusesWhatIsOpenToOthers) {
  const ProgramResult r = run_fathom({"serve", shipped_model(), "--host", "0.0.0.0"});
  EXPECT_EQ(r.exit_code, 64);
  EXPECT_NE(r.err.find("--api-key-file"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("--insecure-no-auth"), std::string::npos) << r.err;
}

TEST(Serve, AnswersFlagsOfOtherServers) {
  ProgramResult r = run_fathom({"serve", shipped_model(), "--tensor-parallel-size", "2"});
  EXPECT_EQ(r.exit_code, 64);
  EXPECT_NE(r.err.find("a process has one GPU"), std::string::npos) << r.err;
  r = run_fathom({"serve", shipped_model(), "--tp", "1", "--print-config"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

TEST(Serve, TheConfigurationHidesKeys) {
  const ProgramResult r =
      run_fathom({"serve", shipped_model(), "--api-key", "hush", "--print-config"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.out.find("hush"), std::string::npos);
  EXPECT_NE(r.out.find("drain-timeout"), std::string::npos);
}

#if FATHOM_FAILPOINTS
TEST(Serve, AFaultEndsItWith70) {
  RunningServer server({}, "serve.fault:fail_nth:8:1");
  ASSERT_FALSE(server.address().empty()) << server.log();
  const RawReply reply =
      server.ask("POST", "/v1/completions", R"({"prompt":"Once","max_tokens":400})");
  EXPECT_EQ(reply.status, 500) << reply.body;
  EXPECT_NE(reply.body.find("engine_fault"), std::string::npos) << reply.body;
  EXPECT_EQ(server.ask("GET", "/health").status, 503);
  EXPECT_EQ(server.wait(), 70) << server.log();
}

TEST(Serve, AStallEndsItWith70) {
  RunningServer server({"--stall-timeout", "1"}, "serve.stall:fail_nth:8:1");
  ASSERT_FALSE(server.address().empty()) << server.log();
  RawHttpClient client(server.address());
  const std::string body = R"({"prompt":"Once","max_tokens":400,"stream":true})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  while (server.log().find("state dump") == std::string::npos)
    usleep(10'000);
  EXPECT_EQ(server.ask("GET", "/health").status, 503);
  EXPECT_EQ(server.ask("GET", "/health/live").status, 200);
  EXPECT_EQ(server.wait(), 70);
  EXPECT_NE(server.log().find("requests running"), std::string::npos) << server.log();
}

TEST(Serve, AHungTeardownIsEnded) {
  RunningServer server({"--drain-timeout", "0.2"}, "serve.stall:fail_nth:8:1");
  ASSERT_FALSE(server.address().empty()) << server.log();
  RawHttpClient client(server.address());
  const std::string body = R"({"prompt":"Once","max_tokens":400,"stream":true})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(client.read_until("data: "));
  usleep(300'000);
  server.tell(SIGTERM);
  EXPECT_EQ(server.wait(), 70);
}
#endif

TEST(Serve, RefusesWhatItCannotServeBeforeItListens) {
  const std::string model = shipped_model();
  const std::pair<std::vector<std::string>, int> cases[] = {
      {{"--chat-format", "nope"}, 64},       {{"--tool-call-parser", "nope"}, 64},
      {{"--chat-template-kwargs", "{"}, 64}, {{"--pin", "q_b_proj=none"}, 64},
      {{"--pin", "q_b_prj=portable"}, 64},   {{"--max-model-len", "999999"}, 64},
      {{"--max-model-len", "1"}, 64},        {{"--memory-fraction", "0.0001"}, 78},
  };
  for (const auto& [flags, exit_code] : cases) {
    std::vector<std::string> args{"serve", model, "--port", "0", "--threads", "1"};
    args.insert(args.end(), flags.begin(), flags.end());

    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, exit_code) << flags[0] << r.err;
    EXPECT_EQ(r.err.find("listening"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("\nhint: "), std::string::npos) << r.err;
  }
}

TEST(Serve, NamesTheChatFormatsBeforeItOpensTheModel) {
  const ProgramResult r = run_fathom({"serve", "/nowhere/model", "--chat-format", "nope"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_NE(
      r.err.find("--chat-format: chat format \"nope\" is not known, expected one of v2, v2.5"),
      std::string::npos)
      << r.err;
}

// Without libzmq it is the library that is missing.
TEST(Serve, RefusesAnAddressOfEventsBeforeItListens) {
  const ProgramResult r =
      run_fathom({"serve", shipped_model(), "--port", "0", "--kv-events", "nope"});

  EXPECT_TRUE(r.exit_code == 64 || r.exit_code == 69) << r.err;
  EXPECT_THAT(r.err, testing::ContainsRegex("--kv-events|KV events")) << r.err;
  EXPECT_EQ(r.err.find("listening"), std::string::npos) << r.err;
}

TEST(Serve, SaysWhichPackageHasTheLibraryOfEvents) {
  const TempFolder folder;
  std::ofstream(folder / "libzmq.so.5") << "not a library";

  const ProgramResult r = run_program(
      FATHOM_PROGRAM, {"serve", shipped_model(), "--port", "0", "--kv-events", "tcp://127.0.0.1:*"},
      {}, [&] { setenv("LD_LIBRARY_PATH", folder.str().c_str(), 1); });

  EXPECT_EQ(r.exit_code, 69) << r.err;
  EXPECT_THAT(r.err, testing::HasSubstr("--kv-events needs the library libzmq.so.5: "));
  EXPECT_THAT(r.err, testing::HasSubstr("\nhint: Debian has it in the package libzmq5; without "
                                        "--kv-events nothing needs it\n"));
}

TEST(Serve, NamesTheFileOfACertificateThatIsNotThere) {
  const ProgramResult r = run_fathom({"serve", shipped_model(), "--ssl-keyfile", "/nowhere/key",
                                      "--ssl-certfile", "/nowhere/certificate"});

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_EQ(r.err,
            "fathom: error: cannot open /nowhere/key: No such file or directory\nhint: /nowhere is "
            "not there either\n");
}

TEST(Serve, StartsWithRoomForOneTokenOfAnAnswer) {
  const RunningServer server({"--max-model-len", "2"});

  EXPECT_NE(server.address(), "") << server.log();
}

TEST(Serve, SaysWhatHelpsWhereThePortIsTaken) {
  const RunningServer first({});
  const std::string port = first.address().substr(first.address().rfind(':') + 1);

  const ProgramResult r = run_fathom({"serve", shipped_model(), "--port", port, "--threads", "1"});

  EXPECT_EQ(r.exit_code, 74);
  EXPECT_NE(
      r.err.find("error: cannot bind (--host, --port) 127.0.0.1:" + port +
                 ": Address already in use\nhint: another program listens there; give another "
                 "--port"),
      std::string::npos)
      << r.err;
}

}  // namespace
}  // namespace fathom::e2e

#endif
