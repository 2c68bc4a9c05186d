// Rank 0, and somebody who sends it anything in the place of the others, over real sockets.
#include <thread>

#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/set_up.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep::test {
namespace {

struct Hello {
  std::uint64_t magic = 0x3150454255;
  std::uint32_t wire_version = kWireVersion;
  std::int32_t rank = 1;
  std::int32_t size = 3;
  std::int32_t pid = 0;
  std::uint64_t keyed = 0;
  std::uint64_t nonce[4] = {};
  std::uint64_t fields[kMaxAgreedFields] = {8, 2};
};

// Whether it waits for orders; how many descriptors of which kinds go with it, its length, and the
// message.
std::string a_message(const std::string& fds, const Hello& hello,
                      std::size_t length = sizeof(Hello)) {
  std::string message = {1, static_cast<char>(fds.size())};
  message += fds;
  const auto bytes = static_cast<std::uint16_t>(length);
  message.append(reinterpret_cast<const char*>(&bytes), 2);
  return message +
         std::string(reinterpret_cast<const char*>(&hello), sizeof(hello)).substr(0, length);
}

// Each message over a socket of its own.
void send_all(const JoinRequest& request, Bytes& bytes) {
  std::vector<Socket> guests;
  for (int n = 0; n < 8 && bytes.left() != 0; ++n) {
    Socket socket = Socket::connect(socket_name(request), request.deadline);
    if (!socket.valid()) return;
    const bool stays = bytes.up_to(1) != 0;
    std::vector<int> fds(static_cast<std::size_t>(bytes.up_to(3)));
    for (int& fd : fds) fd = a_descriptor(bytes.up_to(6));
    std::string message(bytes.take<std::uint16_t>() % (3 * sizeof(Hello)), '\0');
    bytes.take(message.data(), message.size());
    if (!message.empty()) (void)socket.send(message.data(), message.size(), fds);
    for (const int fd : fds) close(fd);
    if (stays) guests.push_back(std::move(socket));
  }
  // Answers to probes, or not.
  for (Socket& guest : guests) {
    std::vector<std::byte> order(512);
    std::vector<int> theirs;
    (void)guest.receive(order.data(), order.size(), theirs, request.deadline);
    for (const int fd : theirs) close(fd);
    const auto can = bytes.take<std::uint32_t>();
    (void)guest.send(&can, sizeof(can));
  }
}

}  // namespace

std::vector<std::string> example_inputs() {
  Hello one;
  one.pid = 1;
  Hello two = one;
  two.rank = 2;
  two.pid = 2;
  Hello other = one;
  other.fields[1] = 3;
  Hello old = one;
  old.wire_version = 1;
  Hello beyond = one;
  beyond.rank = 70;
  const std::string segment(1, '\0');
  const std::string both("\0\1", 2);
  return {
      std::string("\0", 1) + a_message(segment, one) + a_message(segment, two),
      std::string("\1", 1) + a_message(both, one) + a_message(both, two),
      std::string("\1", 1) + a_message(both, one) + a_message(segment, two),
      std::string("\1", 1) + a_message(std::string("\2\4", 2), one) + a_message(both, two),
      std::string("\0", 1) + a_message(segment, one) + a_message(segment, one),
      std::string("\0", 1) + a_message(segment, other),
      std::string("\0", 1) + a_message(segment, old, 20),
      std::string("\0", 1) + a_message(segment, beyond),
      std::string("\0", 1) + a_message("", one, 3) + a_message(segment, one),
  };
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep;
  using namespace ubep::test;
  const long files = open_files();
  const auto begin = std::chrono::steady_clock::now();
  {
    Bytes bytes(data, size);
    const JoinRequest request = a_request(0, 3, bytes.up_to(1) != 0);
    std::thread guests([&] { send_all(request, bytes); });
    try {
      const Segments segments = join_processes(request, own_segment(request)).segments;
      for (const auto& segment : segments) {
        promise(segment->bytes() == kSegmentBytes, "a segment has the size that was agreed");
        promise(segment->data()[kSegmentBytes - 1] == std::byte{0}, "all of it can be read");
      }
    } catch (const Error&) {
    }
    guests.join();
  }
  promise(open_files() == files, "no descriptor is left over");
  promise(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "it ends in time");
  return 0;
}
