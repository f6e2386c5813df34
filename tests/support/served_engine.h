// A service around the small model that ships, with an event loop that the test turns.
#pragma once

#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include "fathom/serve/service/engine_service.h"
#include "tests/support/fake_exchange.h"

namespace fathom::serve {

inline EngineOptions small_engine_options() {
  EngineOptions o;
  o.model = FATHOM_SOURCE_DIR "/models/tiny-v3-nvfp4";
  o.threads = 1;
  o.pin_threads = false;
  o.max_model_len = 2048;
  o.max_num_seqs = 4;
  o.seed = 1;
  return o;
}

class ServedEngine {
 public:
  explicit ServedEngine(const EngineOptions& options = small_engine_options(),
                        ServiceObserver* observer = nullptr,
                        int64_t max_waiting_per_client = 256)
      : service([options] { return Engine::load(options); },
                {.post = loop.post(),
                 .observer = observer,
                 .max_waiting_per_client = max_waiting_per_client}) {
    const Status loaded = service.wait_until_loaded();
    EXPECT_TRUE(loaded.ok()) << loaded.message();
  }

  /// Turns the loop until `done`, at most a minute.
  bool turn_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (!loop.turn()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  const Tokenizer& tokenizer() const { return *service.engine().tokenizer(); }

  Request request(const std::string& text, int64_t max_tokens) const {
    Request r;
    r.prompt = tokenizer().encode(text, {.add_bos = AddBos::kYes});
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    return r;
  }

  FakeLoop loop;
  EngineService service;
};

}  // namespace fathom::serve
