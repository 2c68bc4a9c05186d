// Runs a target without libFuzzer: on its examples, on files, and on mutations of the examples.
//
//   ubep_fuzz_pod --mutations 1000 --seed 1
//   ubep_fuzz_pod --write DIRECTORY       the examples as files, for libFuzzer
//   ubep_fuzz_pod FILE...                 what libFuzzer found
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fuzz_inputs/fuzz_input.hpp"
#include "support/random.hpp"

namespace {

using ubep::test::Random;

void run(const std::string& input) {
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

std::size_t place_in(const std::string& input, Random& random) {
  return static_cast<std::size_t>(random.up_to(input.size()));
}

void mutate_once(std::string& input, const std::vector<std::string>& examples, Random& random) {
  const std::size_t at = place_in(input, random);
  switch (random.below(8)) {
    case 0:  // a bit
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ 1 << random.below(8));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random.below(256));
      break;
    case 2:
      input.insert(at, 1, static_cast<char>(random.below(256)));
      break;
    case 3:
      input.erase(at, static_cast<std::size_t>(random.between(1, 16)));
      break;
    case 4: {  // a number that is an end of something
      static constexpr std::uint64_t kEnds[] = {0,      1,          0x7f,       0xff,
                                                0xffff, 0x7fffffff, 0xffffffff, ~std::uint64_t{0}};
      const std::uint64_t value = kEnds[random.below(8)];
      const std::size_t bytes = std::size_t{1} << random.below(4);
      if (at + bytes <= input.size()) std::memcpy(input.data() + at, &value, bytes);
      break;
    }
    case 5: {  // a part again, elsewhere
      const std::string part = input.substr(at, static_cast<std::size_t>(random.between(1, 32)));
      input.insert(place_in(input, random), part);
      break;
    }
    case 6: {  // a part of another
      const std::string& other = random.pick(examples);
      const std::string part =
          other.substr(place_in(other, random), static_cast<std::size_t>(random.between(1, 64)));
      input.insert(at, part);
      break;
    }
    default:
      input.resize(at);
  }
}

void write_all(const std::string& directory, const std::vector<std::string>& examples) {
  std::filesystem::create_directories(directory);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    std::ofstream(directory + "/example-" + std::to_string(i), std::ios::binary) << examples[i];
  }
}

}  // namespace

int main(int argc, char** argv) {
  int mutations = 1000;
  double seconds = 1e6;
  std::uint64_t seed = 1;
  std::string directory;
  std::vector<std::string> files;
  CLI::App app{"Gives a target inputs that somebody else chose"};
  app.add_option("--mutations", mutations, "of the examples");
  app.add_option("--seconds", seconds, "at most");
  app.add_option("--seed", seed, "of the first mutation");
  app.add_option("--write", directory, "write the examples there instead");
  app.add_option("file", files, "inputs to run instead");
  CLI11_PARSE(app, argc, argv);
  const std::vector<std::string> examples = ubep::test::example_inputs();
  if (!directory.empty()) {
    write_all(directory, examples);
    return 0;
  }
  for (const std::string& path : files) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    run(text.str());
  }
  if (!files.empty()) return 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (const std::string& example : examples) run(example);
  int done = 0;
  for (; done < mutations && std::chrono::steady_clock::now() < until; ++done) {
    Random random(seed + static_cast<std::uint64_t>(done));
    std::string input = random.pick(examples);
    for (int n = random.between(1, 6); n > 0; --n) mutate_once(input, examples, random);
    run(input);
  }
  fmt::print("{} examples, {} mutations from seed {}\n", examples.size(), done, seed);
  return 0;
}
