// System calls, trapped by a filter that lets through only those made at one address, in
// raw_call().
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <csignal>
#include <cstddef>
#include <cstdint>

#include "steady/watch_state.hpp"

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" {
// System call `number` with six arguments; the address behind the instruction that makes it.
long ubep_test_raw_call(long number, const long* arguments);
extern const char ubep_test_raw_call_made[];  // NOLINT(readability-identifier-naming): a label
}

#if defined(__x86_64__)
asm(R"(
  .text
  .type ubep_test_raw_call, @function
ubep_test_raw_call:
  movq %rdi, %rax
  movq %rsi, %rcx
  movq 0(%rcx), %rdi
  movq 8(%rcx), %rsi
  movq 16(%rcx), %rdx
  movq 24(%rcx), %r10
  movq 32(%rcx), %r8
  movq 40(%rcx), %r9
  syscall
ubep_test_raw_call_made:
  ret
  .size ubep_test_raw_call, . - ubep_test_raw_call
)");
#else
asm(R"(
  .text
  .type ubep_test_raw_call, %function
ubep_test_raw_call:
  mov x8, x0
  mov x9, x1
  ldp x0, x1, [x9]
  ldp x2, x3, [x9, 16]
  ldp x4, x5, [x9, 32]
  svc 0
ubep_test_raw_call_made:
  ret
  .size ubep_test_raw_call, . - ubep_test_raw_call
)");
#endif

namespace ubep::test {
namespace {

void count(long number) {
  Watched& seen = watch_state.seen;
  if (!watch_state.on) return;
  if (number == SYS_clock_gettime) {
    ++seen.clock_calls;
  } else if (watch_state.in_waiter) {
    ++seen.waiter_calls;
  } else {
    ++seen.system_calls;
    seen.last_call = number;
  }
}

void on_trap(int, siginfo_t* info, void* context) {
  count(info->si_syscall);
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const auto& registers = machine.gregs;
  const long arguments[] = {
      static_cast<long>(registers[REG_RDI]), static_cast<long>(registers[REG_RSI]),
      static_cast<long>(registers[REG_RDX]), static_cast<long>(registers[REG_R10]),
      static_cast<long>(registers[REG_R8]),  static_cast<long>(registers[REG_R9])};
  machine.gregs[REG_RAX] = ubep_test_raw_call(info->si_syscall, arguments);
#else
  long arguments[6];
  for (std::size_t i = 0; i < 6; ++i) arguments[i] = static_cast<long>(machine.regs[i]);
  machine.regs[0] = static_cast<std::uint64_t>(ubep_test_raw_call(info->si_syscall, arguments));
#endif
}

}  // namespace

bool trap_system_calls() {
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  const auto made = reinterpret_cast<std::uint64_t>(ubep_test_raw_call_made);
  constexpr std::uint32_t kWhere = offsetof(seccomp_data, instruction_pointer);
  const auto load = [](std::uint32_t at) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
  };
  // `equal` and `differs`: how many instructions to leave out.
  const auto compare = [](std::uint32_t value, std::uint8_t equal, std::uint8_t differs) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, equal, differs);
  };
  sock_filter program[] = {
      load(kWhere),
      compare(static_cast<std::uint32_t>(made), 0, 2),
      load(kWhere + 4),
      compare(static_cast<std::uint32_t>(made >> 32), 7, 0),
      load(offsetof(seccomp_data, nr)),
      compare(SYS_rt_sigreturn, 5, 0),
      compare(SYS_clone, 4, 0),
      compare(SYS_clone3, 3, 0),
      compare(SYS_exit, 2, 0),
      compare(SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace ubep::test

#else

namespace ubep::test {
bool trap_system_calls() { return false; }
}  // namespace ubep::test

#endif
