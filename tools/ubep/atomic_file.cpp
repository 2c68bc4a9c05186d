#include "tools/ubep/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {
namespace {

namespace fs = std::filesystem;

// The file that a write to `path` replaces: the end of a chain of links, or `path` itself.
fs::path resolve_target(const std::string& path) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);
  if (error) throw InputError(fmt::format("cannot write {}: {}", path, error.message()));
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(fmt::format("cannot write {}: it exists and is not a regular file", path));
  }
  return target;
}

// A new file beside `target`; removed again unless it was renamed over the target.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target)
      : path_(target.parent_path() /
              fmt::format(".{}.{}.{}.tmp", target.filename().string(), ::getpid(),
                          std::chrono::steady_clock::now().time_since_epoch().count())),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
  }

  bool opened() const { return fd_ >= 0; }

  // Both return false with errno set on failure.
  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return true;
  }
  bool rename_to(const fs::path& target) {
    // The data must be on the disk before the new name is, or a crash could leave an empty file.
    renamed_ = ::fsync(fd_) == 0 && std::rename(path_.c_str(), target.c_str()) == 0;
    return renamed_;
  }

 private:
  fs::path path_;
  int fd_;
  bool renamed_ = false;
};

}  // namespace

void write_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  const fs::path target = resolve_target(path);
  TemporaryFile file(target);
  bool good = file.opened();
  for (const std::span<const std::byte> part : parts) good = good && file.write(part);
  good = good && file.rename_to(target);
  if (!good) throw InputError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

void write_file(const std::string& path, std::string_view text) {
  const std::array parts = {std::as_bytes(std::span(text))};
  write_file(path, parts);
}

void check_writable(const std::string& path, const char* option) {
  const std::filesystem::path target(path);
  const auto folder = target.has_parent_path() ? target.parent_path() : ".";
  if (path.empty() || path == "-" || std::filesystem::is_directory(target) ||
      access(folder.c_str(), W_OK) != 0) {
    throw InputError(fmt::format("{}: '{}' is not a file that can be written", option, path));
  }
}

}  // namespace ubep::tools
