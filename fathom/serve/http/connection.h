// One connection: reads requests, hands them on one at a time, writes their replies. Lives on the
// loop; its waits and its channel keep it alive.
//
//   handshake -> open -> (reply with Connection: close) -> linger -> closed
//
// While a request is answered, the next one is read ahead, and no more than that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fathom/serve/http/incoming_request.h"
#include "fathom/serve/http/listener.h"
#include "fathom/serve/http/loop.h"
#include "fathom/serve/http/reply_channel.h"
#include "fathom/serve/http/reply_text.h"
#include "fathom/serve/http/server_context.h"
#include "fathom/serve/http/transport.h"

namespace fathom::serve {

class Connection final : public FdListener, public ReplySink {
 public:
  Connection(ServerContext& context, Peer peer);

  /// Takes the descriptor. False if it cannot be watched, and is closed.
  bool start(int fd, std::unique_ptr<Transport> transport);

  /// In place of any request: 503, and the end.
  void reject();

  /// Looks at the timeouts.
  void tick(int64_t now_ns);

  /// At once. The client of a request that is being answered is gone.
  void close();

  void on_fd(FdEvent event) override;
  void on_output() override;

  size_t slot = 0;      ///< in the server's list
  bool counted = true;  ///< against the limit of connections

 private:
  enum class Phase : uint8_t { kHandshake, kOpen, kLinger, kClosed };

  // The request that is being answered.
  struct Active {
    std::shared_ptr<ReplyChannel> channel;
    std::string id;
    std::vector<HttpHeader> cors;
    bool http_1_1 = true;
    bool keep_alive = true;
    bool streaming = false;
    BodyForm form = BodyForm::kLength;
    std::string keep_alive_piece;
  };

  void continue_handshake();
  void read_input();
  bool read_once();
  bool wants_input() const;
  void arm_input();
  void advance(std::string_view& input);
  void advance_unread();
  void dispatch();
  void hand_on(IncomingRequest& incoming, std::unique_ptr<Active> facts);
  void write_reply(const HttpReply& reply, const Active& facts, bool head_only);
  bool append_output(const ReplyChannel::Output& output);
  void finish_active();
  void on_peer_end();
  void write_output();
  void drop_output();
  void after_output();
  void begin_linger();
  void give_up(std::string_view reason);
  void tick_open(int64_t now_ns);
  void tick_active(int64_t now_ns);
  void tick_incoming(int64_t now_ns);
  void time_out(std::string message);
  void update_busy();

  std::string_view unsent() const { return std::string_view(out_).substr(sent_); }

  void begin_output();

  ServerContext& context_;
  Peer peer_;
  std::unique_ptr<FdWatch> watch_;
  std::unique_ptr<Transport> transport_;
  Phase phase_ = Phase::kHandshake;
  bool read_armed_ = false;
  bool write_armed_ = false;
  bool error_armed_ = false;
  bool read_on_write_ = false;  // TLS has to write before it can read
  bool write_on_read_ = false;
  bool read_posted_ = false;
  bool peer_ended_ = false;  // its direction
  bool close_after_output_ = false;
  bool urgent_seen_ = false;
  bool busy_ = false;

  std::unique_ptr<IncomingRequest> incoming_;
  std::string unread_;  // behind a request that waits
  std::unique_ptr<Active> active_;
  std::string out_;
  size_t sent_ = 0;  // of out_

  int64_t since_ns_ = 0;       // of the phase, of the request that is answered, or of its end
  int64_t head_since_ns_ = 0;  // first byte of incoming_
  int64_t body_since_ns_ = 0;  // its head was whole
  int64_t output_ns_ = 0;      // output last moved, or began to wait
};

}  // namespace fathom::serve
