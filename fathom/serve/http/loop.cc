#include "fathom/serve/http/loop.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "fathom/base/hint.h"
#include "fathom/base/log.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Descriptor = asio::posix::stream_descriptor;

class AsioWatch final : public FdWatch {
 public:
  AsioWatch(asio::io_context& io, FdListener* listener) : descriptor_(io), listener_(listener) {}

  bool assign(int fd) {
    error_code failed;
    descriptor_.assign(fd, failed);
    if (!failed) fd_ = fd;
    return !failed;
  }

  void wait(FdEvent event) override {
    if (!descriptor_.is_open()) return;
    const auto kind = event == FdEvent::kReadable   ? Descriptor::wait_read
                      : event == FdEvent::kWritable ? Descriptor::wait_write
                                                    : Descriptor::wait_error;
    descriptor_.async_wait(kind, [self = listener_->shared_from_this(), event](error_code failed) {
      if (failed != asio::error::operation_aborted) self->on_fd(event);
    });
  }

  int descriptor() const override { return fd_; }

 private:
  Descriptor descriptor_;
  FdListener* listener_;
  int fd_ = -1;
};

class AsioLoop final : public Loop, public std::enable_shared_from_this<AsioLoop> {
 public:
  ~AsioLoop() override { stop(); }

  bool start() {
    try {
      io_ = std::make_unique<asio::io_context>(1);
      work_ = std::make_unique<Work>(io_->get_executor());
      thread_ = std::thread([this] { run(); });
      thread_id_.store(thread_.get_id());
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  void post(std::function<void()> f) override {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(f));
    if (std::exchange(woken_, true)) return;
    asio::post(*io_, [this] { run_tasks(); });
  }

  void after(int64_t ms, std::function<void()> f) override {
    auto timer = std::make_unique<asio::steady_timer>(*io_);
    error_code ignored;
    timer->expires_after(std::chrono::milliseconds(ms));
    auto& waiting = *timer;
    waiting.async_wait([timer = std::move(timer), f = std::move(f)](error_code failed) {
      if (!failed) f();
    });
  }

  bool on_loop() const override { return std::this_thread::get_id() == thread_id_.load(); }

  Result<std::unique_ptr<FdWatch>> watch(int fd, FdListener* listener) override {
    auto watch = std::make_unique<AsioWatch>(*io_, listener);
    if (!watch->assign(fd)) {
      ::close(fd);
      return io_error("the event loop cannot watch a descriptor");
    }
    return std::unique_ptr<FdWatch>(std::move(watch));
  }

  void stop() override {
    std::vector<std::function<void()>> dropped;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(stopped_, true)) return;
      dropped.swap(tasks_);
      work_.reset();
      io_->stop();
    }
    if (thread_.joinable()) thread_.join();
    // What waits in Asio may own watches, and those this loop.
    io_.reset();
  }

 private:
  using Work = asio::executor_work_guard<asio::io_context::executor_type>;

  void run() {
    thread_id_.store(std::this_thread::get_id());
    while (!io_->stopped()) {
      // What throws is memory that is not there: the connection concerned is lost, the rest lives.
      try {
        io_->run();
      } catch (const std::exception& e) {
        log_error("the event loop caught: ", e.what());
      }
    }
  }

  void run_tasks() {
    std::vector<std::function<void()>> batch;
    {
      const std::lock_guard lock(mutex_);
      woken_ = false;
      batch.swap(tasks_);
    }
    for (auto& task : batch) {
      try {
        task();
      } catch (const std::exception& e) {
        log_error("the event loop caught: ", e.what());
      }
      task = nullptr;  // what it owns goes in order, too
    }
  }

  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  bool woken_ = false;
  bool stopped_ = false;
  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<Work> work_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;
};

}  // namespace

Result<std::shared_ptr<Loop>> Loop::start() {
  auto loop = std::make_shared<AsioLoop>();
  if (!loop->start()) {
    return with_hint(out_of_memory("cannot start a thread with an event queue for HTTP"),
                     "raise the limits of processes and files (ulimit -u, -n)");
  }
  return std::shared_ptr<Loop>(std::move(loop));
}

}  // namespace fathom::serve
