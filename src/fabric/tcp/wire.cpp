#include "fabric/tcp/wire.hpp"

#include <unistd.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <span>
#include <utility>

#include "base/group_config.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

constexpr std::uint32_t kFrameMagic = 0x31'54'42'55;           // "UBT1"
constexpr std::uint64_t kHelloMagic = 0x31'50'43'54'42'55ULL;  // "UBTCP1"

class Writer {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      text_.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
    }
  }
  void signed_number(int value) { number(static_cast<std::uint32_t>(value)); }
  void bytes(std::span<const std::byte> data) {
    text_.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    text_.append(text);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Past the end it gives zeros, and fits() is false.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <std::unsigned_integral T>
  T number() {
    T value = 0;
    const std::string_view part = take(sizeof(T));
    for (std::size_t i = 0; i < part.size(); ++i) {
      value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(part[i])) << (8 * i));
    }
    return value;
  }
  int signed_number() { return static_cast<int>(number<std::uint32_t>()); }
  void bytes(std::span<std::byte> to) {
    const std::string_view part = take(to.size());
    if (!part.empty()) std::memcpy(to.data(), part.data(), part.size());
  }
  std::string_view text(std::size_t most) {
    const std::size_t length = number<std::uint32_t>();
    if (length > most) fits_ = false;
    return fits_ ? take(length) : std::string_view();
  }
  bool fits() const { return fits_; }
  bool at_end() const { return fits_ && text_.empty(); }

 private:
  std::string_view take(std::size_t count) {
    if (count > text_.size()) fits_ = false;
    if (!fits_) return {};
    const std::string_view part = text_.substr(0, count);
    text_.remove_prefix(count);
    return part;
  }

  std::string_view text_;
  bool fits_ = true;
};

}  // namespace

std::string encode_header(TcpKind kind, std::size_t bytes) {
  Writer writer;
  writer.number(kFrameMagic);
  writer.number(static_cast<std::uint32_t>(kind));
  writer.number(static_cast<std::uint32_t>(bytes));
  return writer.take();
}

std::optional<TcpHeader> decode_header(std::string_view text) {
  Reader reader(text);
  if (reader.number<std::uint32_t>() != kFrameMagic) return {};
  const auto kind = static_cast<TcpKind>(reader.number<std::uint32_t>());
  const auto bytes = reader.number<std::uint32_t>();
  if (!reader.at_end()) return {};
  return TcpHeader{kind, bytes};
}

std::string encode_hello(const JoinRequest& request, const JobKey::Nonce& nonce,
                         const std::string& regret) {
  Writer writer;
  writer.number(kHelloMagic);
  writer.number(kWireVersion);
  writer.signed_number(request.rank);
  writer.signed_number(request.size);
  writer.text(request.job);
  writer.signed_number(static_cast<int>(getpid()));
  writer.number(std::uint32_t{request.key.given() ? 1U : 0U});
  writer.bytes(nonce);
  writer.number(static_cast<std::uint32_t>(request.members.size()));
  for (int rank : request.members) writer.signed_number(rank);
  for (const AgreedField& field : request.fields) writer.number(field.value);
  writer.text(std::string_view(regret).substr(0, kMostTcpText));
  std::string text = writer.take();
  if (text.size() > kMostTcpHello) {
    throw Error(ErrorCode::setup, "the job's name has " + std::to_string(request.job.size()) +
                                      " bytes, expected some thousands at most");
  }
  return text;
}

std::optional<TcpHello> decode_hello(std::string_view text) {
  Reader reader(text);
  if (reader.number<std::uint64_t>() != kHelloMagic) return {};
  TcpHello hello;
  hello.wire_version = reader.number<std::uint32_t>();
  hello.rank = reader.signed_number();
  hello.size = reader.signed_number();
  hello.job = reader.text(kMostTcpHello);
  if (!reader.fits()) return {};
  if (hello.wire_version != kWireVersion) return hello;
  hello.pid = reader.signed_number();
  const auto keyed = reader.number<std::uint32_t>();
  hello.keyed = keyed == 1;
  reader.bytes(hello.nonce);
  const auto num_members = reader.number<std::uint32_t>();
  if (keyed > 1 || num_members > kMaxRanks) return {};
  for (std::uint32_t i = 0; i < num_members; ++i) hello.members.push_back(reader.signed_number());
  for (std::uint64_t& field : hello.fields) field = reader.number<std::uint64_t>();
  hello.regret = reader.text(kMostTcpText);
  if (!reader.at_end()) return {};
  return hello;
}

std::string tcp_claim(std::string_view hello) { return "tcp|" + std::string(hello); }

std::string encode_challenge(const TcpChallenge& challenge) {
  Writer writer;
  writer.bytes(challenge.nonce);
  writer.bytes(challenge.proof);
  return writer.take();
}

std::optional<TcpChallenge> decode_challenge(std::string_view text) {
  Reader reader(text);
  TcpChallenge challenge = {};
  reader.bytes(challenge.nonce);
  reader.bytes(challenge.proof);
  if (!reader.at_end()) return {};
  return challenge;
}

std::string encode_proof(const JobKey::Proof& proof) {
  Writer writer;
  writer.bytes(proof);
  return writer.take();
}

std::optional<JobKey::Proof> decode_proof(std::string_view text) {
  Reader reader(text);
  JobKey::Proof proof = {};
  reader.bytes(proof);
  if (!reader.at_end()) return {};
  return proof;
}

std::string encode_results(const std::vector<int>& members,
                           const std::vector<std::string>& messages) {
  Writer writer;
  for (int rank : members) writer.text(messages[static_cast<std::size_t>(rank)]);
  return writer.take();
}

std::optional<std::vector<std::string>> decode_results(std::string_view text,
                                                       const JoinRequest& request) {
  Reader reader(text);
  std::vector<std::string> messages(static_cast<std::size_t>(request.size));
  for (int rank : request.members) {
    messages[static_cast<std::size_t>(rank)] = reader.text(text.size());
  }
  if (!reader.at_end()) return {};
  return messages;
}

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMostTcpText));
  std::replace_if(
      result.begin(), result.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return result;
}

}  // namespace ubep
