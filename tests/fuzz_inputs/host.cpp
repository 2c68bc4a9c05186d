// Rank 0, and somebody who sends it anything in the place of the others, over real sockets.
#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/set_up.hpp"
#include "ubep/version.hpp"

namespace ubep::test {
namespace {

Hello a_hello() {
  Hello hello = {};
  hello.magic = kMagic;
  hello.wire_version = kWireVersion;
  hello.rank = 1;
  hello.size = 3;
  hello.fields[0] = 8;
  hello.fields[1] = 2;
  return hello;
}

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
  Hello one = a_hello();
  one.pid = 1;
  Hello two = one;
  two.rank = 2;
  two.pid = 2;
  Hello other = one;
  other.fields[1] = 3;
  Hello old = one;
  old.wire_version = 1;
  Hello keyed = one;
  keyed.keyed = 1;
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
      std::string("\0", 1) + a_message("", keyed),
      std::string("\2", 1) + a_message("", keyed) + a_message(segment, one),
      std::string("\0", 1) + a_message("", one, 3) + a_message(segment, one),
  };
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ubep::test::run_set_up(0, {data, size}, ubep::test::send_all);
  return 0;
}
