// Tests that run once for each instruction set that is built in and that this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <string>

namespace ubep::test {

// Runs each test on one instruction set.
class OnEachTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

struct TargetName {
  std::string operator()(const testing::TestParamInfo<std::int64_t>& instance) const {
    return hwy::TargetName(instance.param);
  }
};

inline auto each_target() { return testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }

}  // namespace ubep::test
