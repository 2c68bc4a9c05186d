#include "fabric/tcp/stream.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ubep {
namespace {

constexpr std::size_t kReadAtOnce = 256 * 1024;

// Nothing to worry about: it goes on later.
bool is_passing(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TcpStream::~TcpStream() {
  if (fd_ >= 0) ::close(fd_);
}

void TcpStream::swap(TcpStream& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(peer_, other.peer_);
  std::swap(out_, other.out_);
  std::swap(sent_, other.sent_);
  std::swap(broken_, other.broken_);
  std::swap(in_, other.in_);
  std::swap(header_, other.header_);
  std::swap(has_header_, other.has_header_);
  std::swap(ended_, other.ended_);
  std::swap(key_, other.key_);
  std::swap(out_stamp_, other.out_stamp_);
  std::swap(in_stamp_, other.in_stamp_);
}

void TcpStream::seal(const JobKey& key, JobKey::Side mine, int guest) {
  const JobKey::Side other = mine == JobKey::Side::host ? JobKey::Side::guest : JobKey::Side::host;
  key_ = key;
  out_stamp_ = {.from = mine, .guest = static_cast<std::uint32_t>(guest), .number = 0};
  in_stamp_ = {.from = other, .guest = static_cast<std::uint32_t>(guest), .number = 0};
}

void TcpStream::put(TcpKind kind, std::string_view payload) {
  put(kind, std::make_shared<const std::string>(payload));
}

void TcpStream::put(TcpKind kind, Text payload) {
  put_part(std::make_shared<const std::string>(encode_header(kind, payload->size())));
  if (!payload->empty()) put_part(std::move(payload));
}

void TcpStream::put_part(Text part) {
  if (broken_) return;
  out_.push_back(part);
  if (!key_.given()) return;
  out_.push_back(std::make_shared<const std::string>(encode_proof(key_.sign(out_stamp_, *part))));
  ++out_stamp_.number;
}

void TcpStream::flush() {
  while (!out_.empty() && !broken_) {
    const std::string& text = *out_.front();
    const ssize_t count =
        ::send(fd_, text.data() + sent_, text.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && is_passing(errno)) return;
    if (count < 0) break;
    sent_ += static_cast<std::size_t>(count);
    if (sent_ < text.size()) continue;
    sent_ = 0;
    out_.pop_front();
  }
  if (out_.empty()) return;
  broken_ = true;
  out_.clear();
}

void TcpStream::finish() {
  if (out_.empty() && valid()) (void)::shutdown(fd_, SHUT_WR);
}

// Until the part has so many bytes; false while it has not. Reads no byte behind it.
bool TcpStream::fill(std::size_t bytes) {
  while (in_.size() < bytes) {
    const std::size_t before = in_.size();
    in_.resize(before + std::min(bytes - before, kReadAtOnce));
    const ssize_t count = ::recv(fd_, in_.data() + before, in_.size() - before, MSG_DONTWAIT);
    in_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count > 0) continue;
    ended_ = count == 0 || !is_passing(errno);
    return false;
  }
  return true;
}

// Takes the hash off the part in `in_`, whose content has so many bytes; false = another one.
bool TcpStream::unseal(std::size_t bytes) {
  if (!key_.given()) return true;
  const std::string_view part(in_);
  const auto proof = decode_proof(part.substr(bytes));
  const bool holds = proof && key_.verify(in_stamp_, part.substr(0, bytes), *proof);
  ++in_stamp_.number;
  in_.resize(bytes);
  return holds;
}

TcpHeard TcpStream::receive(TcpFrame& frame, std::size_t most) {
  const std::size_t hash = key_.given() ? JobKey::kBytes : 0;
  if (!has_header_) {
    if (!fill(kTcpHeaderBytes + hash)) return ended_ ? TcpHeard::end : TcpHeard::nothing;
    if (!unseal(kTcpHeaderBytes)) return TcpHeard::altered;
    const auto header = decode_header(in_);
    if (!header || header->bytes > most) return TcpHeard::garbage;
    header_ = *header;
    has_header_ = true;
    in_.clear();
  }
  if (header_.bytes > 0) {
    if (!fill(header_.bytes + hash)) return ended_ ? TcpHeard::end : TcpHeard::nothing;
    if (!unseal(header_.bytes)) return TcpHeard::altered;
  }
  frame = {header_.kind, std::exchange(in_, {})};
  has_header_ = false;
  return TcpHeard::frame;
}

bool TcpStream::discard() {
  in_.clear();
  if (ended_ || fill(kReadAtOnce)) return !ended_;
  in_.clear();
  return !ended_;
}

}  // namespace ubep
