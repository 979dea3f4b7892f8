// What is special to AMX: tile registers belong to a thread, are configured and released by each
// task, and exist only where the operating system grants them.
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/amx.h"
#include "dispatch/cli/commands.h"
#include "flashlane/info.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/cli.h"
#include "tests/support/problem.h"

#if defined(__linux__) && defined(__x86_64__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#endif

namespace flashlane::testing {
namespace {

bool HasAmx() { return SupportedTargets().front() == "AMX"; }

ExecOptions OnAmx() {
  ExecOptions options;
  options.target = "AMX";
  options.num_threads = 1;
  return options;
}

TEST(AmxTest, GoldenAnswers) {
  if (!HasAmx()) GTEST_SKIP() << "no vector target here works with AMX";
  cli::VerifyOptions options;
  options.paths = {FLASHLANE_TEST_DATA "/minilm", FLASHLANE_TEST_DATA "/cases"};
  options.targets = "AMX";
  options.kernels = "attention_flash";
  options.dtypes = "bf16";
  std::ostringstream out;
  int failed = -1;
  const Status status = cli::Verify(options, out, &failed);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(failed, 0) << out.str();
}

// Callers with unlike head sizes at once: each finds the bits it gets alone.
TEST(AmxTest, CallersWithUnlikeHeadSizesAtOnce) {
  if (!HasAmx()) GTEST_SKIP() << "no vector target here works with AMX";
  constexpr int64_t kHeadDims[] = {1, 16, 33, 80, 128};
  std::vector<Problem> problems;
  std::vector<Result> alone;
  for (const int64_t head_dim : kHeadDims) {
    ProblemSpec spec;
    spec.num_heads = 2;
    spec.seqlen_q = 65;
    spec.seqlen_k = 97;
    spec.head_dim = head_dim;
    spec.head_dim_v = head_dim + 7;
    spec.params.causal = head_dim % 2 == 0;
    problems.emplace_back(spec, DType::kBF16);
    alone.push_back(problems.back().Run(OnAmx()));
    ASSERT_TRUE(alone.back().status.ok()) << alone.back().status.message();
  }
  std::vector<int> differences(problems.size(), 0);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < problems.size(); ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        differences[i] += problems[i].Run(OnAmx()).bits != alone[i].bits;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < problems.size(); ++i) EXPECT_EQ(differences[i], 0) << kHeadDims[i];
}

TEST(AmxTest, EveryConfigurationIsReleased) {
  if (!HasAmx()) GTEST_SKIP() << "no vector target here works with AMX";
  if (AmxHardwareUsable()) GTEST_SKIP() << "only the emulator counts";
  const AmxEmulatorCounts& counts = GetAmxEmulatorCounts();
  const int64_t products = counts.products;
  ProblemSpec spec;
  spec.batch = 2;
  spec.seqlen_q = spec.seqlen_k = 40;
  spec.head_dim = spec.head_dim_v = 64;
  ASSERT_TRUE(Problem(spec, DType::kBF16).Run(OnAmx()).status.ok());
  EXPECT_GT(counts.products, products);  // it was the tiles that multiplied
  EXPECT_GT(counts.configures, 0);
  EXPECT_EQ(counts.configures, counts.releases);
  EXPECT_EQ(counts.live_configurations, 0);
}

TEST(AmxTest, OnlyBF16UsesTiles) {
  if (!HasAmx()) GTEST_SKIP() << "no vector target here works with AMX";
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.name != "attention_flash") continue;
    EXPECT_EQ(kernel.units.front() == "amx", kernel.dtype == DType::kBF16);
  }
}

#if defined(__linux__) && defined(__x86_64__)

// From here on the kernel answers arch_prctl(ARCH_REQ_XCOMP_PERM) with EPERM, in this process and
// in what it starts.
bool RefuseTilePermission() {
  constexpr uint32_t kRequestPermission = 0x1023;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequestPermission, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class AmxPermissionTest : public cli::CliTest {};

TEST_F(AmxPermissionTest, WhereItIsRefusedTheNextTargetIsChosen) {
  cli::Outcome info, run;
  const std::string input = FLASHLANE_TEST_DATA "/minilm/layer0.safetensors";
  bool refused = false;
  std::thread([&] {  // the filter is this thread's and its children's
    refused = RefuseTilePermission();
    if (!refused) return;
    info = Flashlane("info --json");
    run = Flashlane("run '" + input + "' --dtype bf16 --target AMX --out '" + Path("o") + "'");
  })
      .join();
  if (!refused) GTEST_SKIP() << "no seccomp filters here";
  ASSERT_EQ(info.exit_code, 0) << info.err;
  const size_t supported = info.out.find("\"supported\"");
  ASSERT_NE(supported, std::string::npos);
  EXPECT_EQ(info.out.find("\"AMX\"", supported), std::string::npos) << info.out;
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("'AMX' is compiled in but this CPU does not run it"), std::string::npos)
      << run.err;
}

#endif

}  // namespace
}  // namespace flashlane::testing
