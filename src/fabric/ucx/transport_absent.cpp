// In place of transport.cpp and library.cpp in builds without UCX's headers.
#include "fabric/ucx/transport.hpp"
#include "ubep/status.hpp"

namespace ubep {

struct UcxTransport::Impl {};

UcxTransport::UcxTransport(int, int) {
  throw Error(ErrorCode::setup,
              "ranks on several hosts need UCX, and this build has none: install its development "
              "files and build again");
}
UcxTransport::~UcxTransport() = default;
std::string UcxTransport::describe() const { return {}; }
void UcxTransport::connect(int, const std::string&, std::vector<Window>) {}
void UcxTransport::put(const Place&, std::span<const std::byte>) {}
void UcxTransport::put_word(const Place&, std::uint64_t) {}
void UcxTransport::get(const Place&, std::span<std::byte>, int*) {}
void UcxTransport::post() {}
int UcxTransport::progress() { return 0; }
bool UcxTransport::flushed(int) { return true; }
void UcxTransport::finish(Deadline) {}
const char* UcxTransport::failure(int) const { return nullptr; }
std::uint64_t UcxTransport::bytes() const { return 0; }
std::string UcxTransport::version() { return {}; }

}  // namespace ubep
