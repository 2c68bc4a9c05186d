// A file with these bytes, which has a name while it lives.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace ubep::test {

class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    std::size_t done = 0;
    while (fd_ >= 0 && done < bytes.size()) {
      const ssize_t got = write(fd_, bytes.data() + done, bytes.size() - done);
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// A safetensors file of that header and so many bytes of data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  return file + header + data;
}

}  // namespace ubep::test
