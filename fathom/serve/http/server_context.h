// What the connections of a server share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fathom/serve/exchange.h"
#include "fathom/serve/http/http_settings.h"
#include "fathom/serve/http/loop.h"
#include "fathom/serve/http/reply_channel.h"
#include "fathom/serve/http/request_rules.h"

namespace fathom::serve {

class Connection;

struct ServerContext {
  HttpSettings settings;
  HeadRules rules;
  HttpHandler handler;
  std::shared_ptr<Loop> loop;
  std::shared_ptr<InputBudget> budget;

  // Read by any thread, written on the loop.
  std::atomic<bool> draining{false};  ///< every reply closes its connection
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> busy{0};  ///< connections with a request or with output
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> rejected{0};
  std::atomic<int64_t> requests{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> gone{0};
  std::atomic<int64_t> given_up{0};

  // On the loop only.
  std::array<char, 64 << 10> read_buffer;
  std::function<void(Connection&)> on_closed;
  RefusalObserver on_refused;

  /// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second.
  const std::string& date();

  /// "req-" and digits that no other request of the machine has.
  std::string next_request_id();

 private:
  int64_t date_s_ = -1;
  std::string date_;
  uint64_t next_id_ = 0;
  std::string id_prefix_;
};

}  // namespace fathom::serve
