// A rank that joins, and a rank 0 that sends it anything, over real sockets.
#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/set_up.hpp"
#include "ubep/status.hpp"

namespace ubep::test {
namespace {

std::string an_order(std::uint32_t kind, std::int32_t cpu) {
  Order order = {};
  order.kind = static_cast<Order::Kind>(kind);
  order.cpu = cpu;
  return std::string(reinterpret_cast<const char*>(&order), sizeof(order));
}

// How many descriptors of which kinds go with it, its length, and the message.
std::string a_message(const std::string& fds, const std::string& bytes) {
  std::string message = {static_cast<char>(fds.size())};
  message += fds;
  const auto length = static_cast<std::uint16_t>(bytes.size());
  message.append(reinterpret_cast<const char*>(&length), 2);
  return message + bytes;
}

void send_all(const JoinRequest& request, Bytes& bytes) {
  try {
    const Socket listener = Socket::listen(socket_name(request), 4);
    const Socket socket = listener.accept(request.deadline);
    if (!socket.valid()) return;
    std::vector<std::byte> hello(4096);
    std::vector<int> theirs;
    (void)socket.receive(hello.data(), hello.size(), theirs, request.deadline);
    for (const int fd : theirs) close(fd);
    for (int n = 0; n < 20 && bytes.left() != 0; ++n) {
      std::vector<int> fds(static_cast<std::size_t>(bytes.up_to(6)));
      for (int& fd : fds) fd = a_descriptor(bytes.up_to(6));
      std::string message(bytes.take<std::uint16_t>() % (2 * sizeof(Order)), '\0');
      bytes.take(message.data(), message.size());
      (void)socket.send(message.data(), message.size(), fds);
      for (const int fd : fds) close(fd);
    }
  } catch (const Error&) {  // the name of the last run is still in use
  }
}

}  // namespace

std::vector<std::string> example_inputs() {
  const std::string go = a_message("", an_order(3, 0));
  const std::string probe = a_message("", an_order(2, 0));
  return {
      std::string("\0", 1) + a_message(std::string(2, '\0'), an_order(1, 0)) + probe + go,
      std::string("\1", 1) + a_message(std::string("\0\1\0\1", 4), an_order(1, 0)) + go,
      std::string("\1", 1) + a_message(std::string("\0\2\4\3", 4), an_order(1, 0)) + go,
      std::string("\0", 1) + a_message("", an_order(0, 0)),
      std::string("\2", 1) + a_message("", an_order(4, 0)) + go,
      std::string("\0", 1) + a_message(std::string(2, '\0'), an_order(1, 0)) +
          a_message(std::string("\0\6", 2), an_order(2, 0)) + a_message("", an_order(7, 0)) + go,
  };
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ubep::test::run_set_up(1, {data, size}, ubep::test::send_all);
  return 0;
}
