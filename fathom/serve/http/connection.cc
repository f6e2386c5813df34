#include "fathom/serve/http/connection.h"

#include <algorithm>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "fathom/base/log.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"

namespace fathom::serve {
namespace {

constexpr int kReadsPerTurn = 4;       // then others get the loop
constexpr size_t kKeptOutput = 4'096;  // bytes that an empty buffer of output may keep
constexpr int kUnsentInKernel = 128 << 10;

int64_t ns(int64_t ms) {
  return ms * 1'000'000;
}

// The peer reset the connection, or both directions of it are closed.
bool is_dead(int fd) {
  pollfd state{.fd = fd, .events = 0, .revents = 0};
  return poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

Connection::Connection(ServerContext& context, Peer peer)
    : context_(context), peer_(std::move(peer)) {}

bool Connection::start(int fd, std::unique_ptr<Transport> transport) {
  since_ns_ = monotonic_ns();
  // On a Unix socket both fail, which is right.
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // What a client does not take stays here, where it is counted.
  const int unsent = kUnsentInKernel;
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  auto watch = context_.loop->watch(fd, this);
  if (!watch.ok()) return false;
  watch_ = std::move(watch).value();
  transport_ = std::move(transport);
  if (transport_->needs_handshake()) {
    continue_handshake();
  } else {
    phase_ = Phase::kOpen;
    arm_input();
  }
  return true;
}

void Connection::reject() {
  if (phase_ != Phase::kOpen) return;
  Active facts;
  facts.id = context_.next_request_id();
  facts.keep_alive = false;
  const ApiError error{.status = 503,
                       .code = "overloaded",
                       .message = str_cat("the server has ", context_.settings.max_connections,
                                          " connections, its limit (--max-connections)"),
                       .param = {},
                       .retry_after_s = 1};
  if (context_.on_refused) context_.on_refused(error);
  write_reply(refusal_reply(error, "", facts.id), facts, false);
  write_output();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  transport_.reset();
  watch_.reset();
  incoming_.reset();
  drop_output();
  update_busy();
  if (const auto active = std::move(active_)) {
    ++context_.gone;
    active->channel->client_gone();
  }
  context_.on_closed(*this);
}

// ---- events ----------------------------------------------------------------------------------

void Connection::on_fd(FdEvent event) {
  if (phase_ == Phase::kClosed) return;
  switch (event) {
    case FdEvent::kReadable:
      read_armed_ = false;
      if (std::exchange(write_on_read_, false)) write_output();
      break;
    case FdEvent::kWritable:
      write_armed_ = false;
      if (phase_ != Phase::kHandshake) write_output();
      if (!std::exchange(read_on_write_, false) && phase_ != Phase::kHandshake) return;
      break;
    case FdEvent::kFailed:
      error_armed_ = false;
      if (is_dead(watch_->descriptor())) return close();
      // Urgent bytes wake this wait too, and would do so again and again.
      urgent_seen_ = true;
      return;
  }
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kHandshake) return continue_handshake();
  read_input();
}

void Connection::continue_handshake() {
  const IoResult result = transport_->handshake();
  switch (result.state) {
    case IoState::kDone:
      phase_ = Phase::kOpen;
      since_ns_ = monotonic_ns();
      return read_input();
    case IoState::kWantRead:
      if (!std::exchange(read_armed_, true)) watch_->wait(FdEvent::kReadable);
      return;
    case IoState::kWantWrite:
      if (!std::exchange(write_armed_, true)) watch_->wait(FdEvent::kWritable);
      return;
    case IoState::kEnd:
    case IoState::kFailed:
      return close();
  }
}

// ---- input -----------------------------------------------------------------------------------

bool Connection::wants_input() const {
  if (phase_ == Phase::kLinger) return !peer_ended_;
  return phase_ == Phase::kOpen && !peer_ended_ && !close_after_output_ && unread_.empty() &&
         !(incoming_ && incoming_->done());
}

// There is always one wait on the input: for bytes, or for the peer's reset.
void Connection::arm_input() {
  if (phase_ == Phase::kClosed || read_posted_ || read_on_write_) return;
  if (wants_input()) {
    if (!std::exchange(read_armed_, true)) watch_->wait(FdEvent::kReadable);
  } else if (!read_armed_ && !urgent_seen_ && !std::exchange(error_armed_, true)) {
    watch_->wait(FdEvent::kFailed);
  }
}

void Connection::read_input() {
  for (int turn = 0; turn < kReadsPerTurn && wants_input(); ++turn) {
    if (!read_once()) return arm_input();
  }
  if (!wants_input()) return arm_input();
  // TLS may hold bytes that the descriptor does not show.
  if (std::exchange(read_posted_, true)) return;
  context_.loop->post([this, self = shared_from_this()] {
    read_posted_ = false;
    if (phase_ == Phase::kOpen || phase_ == Phase::kLinger) read_input();
  });
}

// False when there is nothing more to read now.
bool Connection::read_once() {
  const IoResult result = transport_->read(context_.read_buffer);
  switch (result.state) {
    case IoState::kDone:
      if (phase_ == Phase::kOpen) {
        std::string_view input(context_.read_buffer.data(), result.bytes);
        advance(input);
        unread_ = input;
      }
      return phase_ != Phase::kClosed;
    case IoState::kWantRead:
      return false;
    case IoState::kWantWrite:
      read_on_write_ = true;
      if (!std::exchange(write_armed_, true)) watch_->wait(FdEvent::kWritable);
      return false;
    case IoState::kEnd:
      peer_ended_ = true;
      on_peer_end();
      return false;
    case IoState::kFailed:
      close();
      return false;
  }
  return false;
}

// Reads from `input` and hands on, as far as that goes.
void Connection::advance(std::string_view& input) {
  while (phase_ == Phase::kOpen && !close_after_output_) {
    if (incoming_ && incoming_->done()) {
      // What the last reply left to send goes first: replies must not pile up.
      if (active_ || !unsent().empty()) return;
      dispatch();
      continue;
    }
    // Nothing follows a request that ends its connection; what comes may be a body that is not
    // read.
    if (active_ && !active_->keep_alive) break;
    if (!incoming_ && !input.empty()) {
      incoming_ =
          std::make_unique<IncomingRequest>(context_.settings, context_.rules, context_.budget);
      head_since_ns_ = monotonic_ns();
      body_since_ns_ = 0;
    }
    if (!incoming_) return;
    incoming_->feed(input);
    if (incoming_->stage() == IncomingRequest::Stage::kBody) {
      if (body_since_ns_ == 0) body_since_ns_ = monotonic_ns();
      if (!active_ && incoming_->take_wants_continue()) {
        begin_output();
        out_ += kContinue;
        write_output();
      }
    }
    if (phase_ != Phase::kOpen || !incoming_ || !incoming_->done()) return;
  }
  input = {};
}

void Connection::advance_unread() {
  const std::string pending = std::move(unread_);
  unread_.clear();
  std::string_view input = pending;
  advance(input);
  unread_ = input;
  const bool waiting = active_ || (incoming_ && incoming_->done());
  if (phase_ == Phase::kOpen && peer_ended_ && !waiting) {
    close_after_output_ = true;
    after_output();
  }
  arm_input();
}

void Connection::on_peer_end() {
  if (phase_ == Phase::kLinger) return close();
  if (!active_) {
    if (incoming_ && incoming_->done()) return;  // waits for output to go
    close_after_output_ = true;
    return after_output();
  }
  // In HTTP/1.0 it is gone: "the closing of the connection by either or both parties always
  // terminates the current request" (RFC 1945, 1.3), and no request needs its end to be shown so
  // (RFC 9112, 6.3). Nor is there a way to ask: its clients know no interim reply.
  if (!active_->http_1_1) return close();
  // In HTTP/1.1 it may still read, or be gone for good: only writing tells. Its clients skip what
  // says "go on"; those of streams skip comments.
  if (!unsent().empty()) return;
  begin_output();
  if (active_->streaming) {
    append_chunk(out_, active_->keep_alive_piece);
  } else {
    out_ += kContinue;
  }
  write_output();
}

// ---- requests --------------------------------------------------------------------------------

void Connection::dispatch() {
  const auto incoming = std::move(incoming_);
  const RequestHead& head = incoming->head();
  auto facts = std::make_unique<Active>();
  facts->id = incoming->plan().request_id.empty() ? context_.next_request_id()
                                                  : incoming->plan().request_id;
  facts->cors = incoming->plan().cors;
  facts->http_1_1 = head.minor == 1;
  facts->keep_alive = head.keep_alive && incoming->reusable();
  ++context_.requests;
  since_ns_ = monotonic_ns();
  if (incoming->stage() == IncomingRequest::Stage::kRefused) {
    ++context_.refused;
    if (context_.on_refused) context_.on_refused(incoming->error());
    write_reply(refusal_reply(incoming->error(), incoming->plan().path, facts->id), *facts,
                head.method == "HEAD");
    return write_output();
  }
  if (incoming->plan().options) {
    write_reply(
        {.status = 204, .content_type = {}, .headers = incoming->plan().option_reply, .body = {}},
        *facts, false);
    return write_output();
  }
  hand_on(*incoming, std::move(facts));
}

void Connection::hand_on(IncomingRequest& incoming, std::unique_ptr<Active> facts) {
  HttpRequest request = incoming.take_request();
  request.peer = peer_.name;
  request.on_loopback = peer_.on_loopback;
  request.received_ns = since_ns_;
  const auto channel = std::make_shared<ReplyChannel>(
      context_.loop, std::static_pointer_cast<Connection>(shared_from_this()));
  auto exchange = std::make_shared<SocketExchange>(std::move(request), facts->id,
                                                   incoming.take_charge(), channel);
  facts->channel = channel;
  active_ = std::move(facts);
  update_busy();
  context_.handler(std::move(exchange));
  // Answers that are there already need no turn of the loop.
  if (active_ && active_->channel == channel) append_output(channel->take());
  if (phase_ == Phase::kOpen) write_output();
}

void Connection::write_reply(const HttpReply& reply, const Active& facts, bool head_only) {
  const bool close = !facts.keep_alive || context_.draining.load();
  begin_output();
  append_head(out_, reply,
              {.form = BodyForm::kLength,
               .close = close,
               .request_id = facts.id,
               .date = context_.date(),
               .cors = facts.cors});
  if (!head_only && !bodiless(reply.status)) out_ += reply.body;
  close_after_output_ = close;
}

// ---- replies ---------------------------------------------------------------------------------

void Connection::on_output() {
  if (phase_ != Phase::kOpen || !active_) return;
  if (!append_output(active_->channel->take())) return;
  write_output();
  if (phase_ == Phase::kOpen) advance_unread();
}

// False if there was nothing.
bool Connection::append_output(const ReplyChannel::Output& output) {
  if (!output.begins && !output.ends && output.pieces.empty()) return false;
  Active& a = *active_;
  begin_output();
  if (output.begins && !output.streams) {
    write_reply(output.head, a, false);
    finish_active();
    return true;
  }
  if (output.begins) {
    a.streaming = true;
    a.form = a.http_1_1 ? BodyForm::kChunked : BodyForm::kToClose;
    a.keep_alive_piece = output.rules.keep_alive;
    a.keep_alive = a.keep_alive && a.http_1_1 && !context_.draining.load();
    append_head(out_, output.head,
                {.form = a.form,
                 .close = !a.keep_alive,
                 .request_id = a.id,
                 .date = context_.date(),
                 .cors = a.cors});
  }
  if (a.form == BodyForm::kChunked) {
    append_chunk(out_, output.pieces);
  } else {
    out_ += output.pieces;
  }
  if (output.ends) {
    // A stream that was cut has no last chunk, so that the client does not take it for whole.
    if (a.form == BodyForm::kChunked && !output.cut) out_ += kLastChunk;
    close_after_output_ = !a.keep_alive || output.cut || context_.draining.load();
    finish_active();
  }
  return true;
}

void Connection::finish_active() {
  active_->channel->detach();
  active_.reset();
  since_ns_ = monotonic_ns();
}

void Connection::begin_output() {
  if (unsent().empty()) output_ns_ = monotonic_ns();
}

void Connection::write_output() {
  while (phase_ != Phase::kClosed && !unsent().empty()) {
    const IoResult result = transport_->write(unsent());
    if (result.state == IoState::kDone) {
      sent_ += result.bytes;
      output_ns_ = monotonic_ns();
      continue;
    }
    if (result.state == IoState::kWantWrite) {
      if (!std::exchange(write_armed_, true)) watch_->wait(FdEvent::kWritable);
    } else if (result.state == IoState::kWantRead) {
      write_on_read_ = true;
      if (!std::exchange(read_armed_, true)) watch_->wait(FdEvent::kReadable);
    } else {
      return close();
    }
    break;
  }
  if (phase_ == Phase::kClosed) return;
  const size_t waiting = unsent().size();
  if (active_ && active_->streaming &&
      static_cast<int64_t>(waiting) > context_.settings.stream_buffer_bytes) {
    return give_up(str_cat(waiting, " bytes of its stream are unread, more than the limit of ",
                           context_.settings.stream_buffer_bytes));
  }
  if (waiting == 0) return after_output();
  if (sent_ > waiting && sent_ > kKeptOutput) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  update_busy();
}

// With its memory, which an assignment would keep.
void Connection::drop_output() {
  std::string().swap(out_);
  sent_ = 0;
}

// Everything is with the kernel.
void Connection::after_output() {
  if (phase_ != Phase::kOpen || !unsent().empty()) return;
  if (out_.capacity() > kKeptOutput || !active_) drop_output();
  out_.clear();
  sent_ = 0;
  if (close_after_output_ && !active_) {
    begin_linger();
  } else if (incoming_ && incoming_->done() && !active_) {
    // A request waited for the output to go. Not from here, which it may have called.
    context_.loop->post([this, self = shared_from_this()] {
      if (phase_ == Phase::kOpen) advance_unread();
    });
  }
  update_busy();
}

// A close with unread input would reset the connection, and the client lose the reply.
void Connection::begin_linger() {
  if (peer_ended_) return close();
  transport_->end_output();
  phase_ = Phase::kLinger;
  since_ns_ = monotonic_ns();
  incoming_.reset();
  unread_.clear();
  arm_input();
}

void Connection::give_up(std::string_view reason) {
  ++context_.given_up;
  log_warn("request ", active_ ? active_->id : "-", ": its client ", peer_.name,
           " is given up: ", reason);
  // The kernel's buffers go at once.
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(watch_->descriptor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

// ---- time ------------------------------------------------------------------------------------

void Connection::tick(int64_t now_ns) {
  const HttpSettings& s = context_.settings;
  switch (phase_) {
    case Phase::kHandshake:
      if (now_ns - since_ns_ > ns(s.header_timeout_ms)) close();
      break;
    case Phase::kOpen:
      tick_open(now_ns);
      break;
    case Phase::kLinger:
      if (now_ns - since_ns_ > ns(s.linger_ms)) close();
      break;
    case Phase::kClosed:
      break;
  }
}

void Connection::tick_open(int64_t now_ns) {
  const HttpSettings& s = context_.settings;
  if (!unsent().empty()) {
    if (now_ns - output_ns_ > ns(s.write_stall_ms))
      give_up(str_cat("it took nothing for ", s.write_stall_ms, " ms"));
    return;
  }
  if (active_) return tick_active(now_ns);
  if (incoming_ && incoming_->begun()) return tick_incoming(now_ns);
  if (now_ns - since_ns_ > ns(s.idle_timeout_ms)) begin_linger();
}

// A request that waits for its answer: proxies would cut a connection that shows nothing.
void Connection::tick_active(int64_t now_ns) {
  const int64_t interval_ns = ns(context_.settings.ping_interval_ms);
  const int64_t silent_ns = now_ns - (active_->streaming ? output_ns_ : since_ns_);
  if (interval_ns == 0 || silent_ns < interval_ns) return;
  if (!active_->streaming) return active_->channel->silent();
  if (active_->keep_alive_piece.empty()) return;
  begin_output();
  if (active_->form == BodyForm::kChunked) {
    append_chunk(out_, active_->keep_alive_piece);
  } else {
    out_ += active_->keep_alive_piece;
  }
  write_output();
}

// The clock of a request that was read ahead starts when its turn comes.
void Connection::tick_incoming(int64_t now_ns) {
  if (incoming_->done()) return;
  const HttpSettings& s = context_.settings;
  if (incoming_->stage() == IncomingRequest::Stage::kHead) {
    if (now_ns - std::max(head_since_ns_, since_ns_) > ns(s.header_timeout_ms))
      time_out(str_cat("the headers took longer than ", s.header_timeout_ms, " ms"));
    return;
  }
  const int64_t took_ns = now_ns - std::max(body_since_ns_, since_ns_);
  if (took_ns > ns(s.body_timeout_ms))
    return time_out(str_cat("the body took longer than ", s.body_timeout_ms, " ms"));
  const double graced_s = static_cast<double>(took_ns - ns(s.slow_body_grace_ms)) / 1e9;
  if (graced_s > 0 && static_cast<double>(incoming_->body_bytes()) <
                          graced_s * static_cast<double>(s.slowest_body_bytes_per_s)) {
    time_out(
        str_cat("the body comes slower than ", s.slowest_body_bytes_per_s, " bytes per second"));
  }
}

void Connection::time_out(std::string message) {
  incoming_->refuse(
      {.status = 408, .code = "request_timeout", .message = std::move(message), .param = {}});
  advance_unread();
}

void Connection::update_busy() {
  const bool busy = phase_ != Phase::kClosed && (active_ || !unsent().empty());
  if (busy == busy_) return;
  busy_ = busy;
  context_.busy += busy ? 1 : -1;
}

}  // namespace fathom::serve
