// flashlane: the program. Exit codes: 0 done, 1 a comparison failed, 2 bad input or usage.

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <new>
#include <string>

#include <CLI/CLI.hpp>

#include "dispatch/cli/commands.h"
#include "dispatch/cli/params.h"
#include "flashlane/info.h"

namespace {

using flashlane::Status;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

// Whatever went wrong, on one line.
int BadInput(std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "flashlane: %s\n", message.c_str());
  return kBadInput;
}

int ExitCode(const Status& status, int failed) {
  if (!status.ok()) {
    return BadInput(std::string(StatusCodeName(status.code())) +
                    (status.message().empty() ? "" : ": ") + status.message());
  }
  if (!std::cout.flush()) return BadInput("standard output: cannot be written");
  return failed > 0 ? kFailed : 0;
}

// An option that takes a text. An empty one would count as an option that is not there.
CLI::Option* AddText(CLI::App* command, const std::string& name, std::string* value,
                     const std::string& help) {
  const auto not_empty = [](const std::string& text) {
    return text.empty() ? std::string("must not be empty") : std::string();
  };
  return command->add_option(name, *value, help)->check(CLI::Validator(not_empty, ""));
}

// Each Add function declares one subcommand and returns what runs it.

std::function<int()> AddInfo(CLI::App* app, flashlane::cli::InfoOptions* options) {
  CLI::App* info = app->add_subcommand("info", "CPU, vector targets and kernels");
  info->add_flag("--json", options->json, "Print one JSON object");
  return [options] { return ExitCode(flashlane::cli::Info(*options, std::cout), 0); };
}

// A flag that goes into the parameters as text, as if it stood in the file's metadata.
void AddParam(CLI::App* run, flashlane::cli::RunOptions* options, const std::string& key,
              const std::string& help) {
  run->add_option_function<std::string>(
      flashlane::cli::FlagName(key),
      [options, key](const std::string& text) { options->params[key] = text; }, help);
}

std::function<int()> AddRun(CLI::App* app, flashlane::cli::RunOptions* options) {
  CLI::App* run =
      app->add_subcommand("run", "Compute out and lse, or gradients, of one .safetensors file");
  run->add_option(
         "input", options->input,
         "Tensors q k v, optionally alibi_slopes bias mask sinks k_len q_start; or, paged, "
         "q k_cache v_cache block_table context_lens, optionally alibi_slopes sinks mask; or, "
         "backward, q k v do and what may stand beside q k v, optionally the forward's out lse; "
         "parameters in __metadata__")
      ->required();
  AddText(run, "--out", &options->output,
          "File to write: tensors out lse, or dq dk dv and, of bias and sinks, dbias dsinks")
      ->required();
  AddText(run, "--kernel", &options->kernel,
          "naive (the oracle), flash, paged or backward; default: as the file says");
  AddText(run, "--dtype", &options->dtype,
          "Convert the inputs to f32, f64, bf16 or f16; default: as stored");
  AddText(run, "--target", &options->target, "Vector target by name; default: the best");
  run->add_option("--threads", options->threads, "Threads at most; default: all");
  AddParam(run, options, "softmax_scale", "Number; none: 1 / sqrt(head_dim)");
  run->add_flag_function(
      "--causal,!--no-causal",
      [options](std::int64_t count) { options->params["causal"] = count > 0 ? "true" : "false"; },
      "Causal mask");
  AddParam(run, options, "window_size_left", "Integer >= 0, inclusive; none: no limit");
  AddParam(run, options, "window_size_right", "Integer >= 0, inclusive; none: no limit");
  AddParam(run, options, "softcap", "Number > 0; none: off");
  AddParam(run, options, "block_size", "Of paged cases: what k_cache must have; none: anything");
  AddParam(run, options, "k_len", "Keys in use; none: all");
  AddParam(run, options, "q_start", "Position of query 0: integer or bottom_right");
  return [options] { return ExitCode(flashlane::cli::Run(*options), 0); };
}

std::function<int()> AddVerify(CLI::App* app, flashlane::cli::VerifyOptions* options) {
  CLI::App* verify = app->add_subcommand(
      "verify", "Compare kernels on every vector target with the answers in .safetensors files");
  verify->add_option("paths", options->paths, "Files, or folders of *.safetensors")->required();
  AddText(verify, "--kernel", &options->kernels, "all, or names: naive,flash,paged");
  AddText(verify, "--target", &options->targets, "all that the machine supports, or names");
  AddText(verify, "--dtype", &options->dtypes, "all, or names: f32,f64,bf16,f16");
  verify->add_option("--threads", options->threads, "Threads at most; default: all");
  verify->add_flag("--json", options->json, "Print one JSON object");
  verify->add_flag("--time", options->time,
                   "Also time each with all its threads, and print every row");
  AddText(verify, "--record", &options->record,
          "Write the bits of every result to this file, for --against");
  AddText(verify, "--against", &options->against,
          "Compare the results bit for bit with such a file; changes fail");
  verify->add_flag("--verbose", options->verbose, "Print every row");
  return [options] {
    int failed = 0;
    const Status status = flashlane::cli::Verify(*options, std::cout, &failed);
    return ExitCode(status, failed);
  };
}

std::function<int()> AddContracts(CLI::App* app, flashlane::cli::ContractsOptions* options) {
  CLI::App* contracts = app->add_subcommand(
      "contracts", "Kernel contracts (FKC version 1): what each kernel accepts, returns and costs");
  AddText(contracts, "--kernel", &options->kernel,
          "naive, flash, paged, paged_naive, backward, backward_naive; default: all");
  AddText(contracts, "--out", &options->folder,
          "Folder for one file per kernel; default: print them");
  return [options] { return ExitCode(flashlane::cli::Contracts(*options, std::cout), 0); };
}

std::function<int()> AddJudge(CLI::App* app, flashlane::cli::JudgeOptions* options) {
  CLI::App* judge = app->add_subcommand(
      "judge", "Measure what calls cost on this machine, and how well that predicts others");
  AddText(judge, "--kernel", &options->kernels, "all, or names: naive,flash,paged,backward");
  AddText(judge, "--dtype", &options->dtypes, "all, or names: f32,f64,bf16,f16");
  AddText(judge, "--target", &options->targets, "all that the machine supports, or names");
  judge->add_flag("--quick", options->quick, "Seconds in place of minutes");
  AddText(judge, "--out", &options->output,
          "File for the coefficients, the timings and the machine, as JSON");
  AddText(judge, "--check", &options->check,
          "Such a file: hold its coefficients against new timings, and fit nothing");
  judge->add_flag("--json", options->json, "Print that JSON in place of a table");
  return [options] { return ExitCode(flashlane::cli::Judge(*options, std::cout), 0); };
}

int Main(int argc, char** argv) {
  CLI::App app("Attention on CPUs: compute it, and verify it on every instruction set.",
               "flashlane");
  app.set_version_flag("--version", flashlane::Version());
  app.require_subcommand(1);
  flashlane::cli::InfoOptions info_options;
  flashlane::cli::RunOptions run_options;
  flashlane::cli::VerifyOptions verify_options;
  flashlane::cli::ContractsOptions contracts_options;
  flashlane::cli::JudgeOptions judge_options;
  const std::function<int()> info = AddInfo(&app, &info_options);
  const std::function<int()> run = AddRun(&app, &run_options);
  const std::function<int()> verify = AddVerify(&app, &verify_options);
  const std::function<int()> contracts = AddContracts(&app, &contracts_options);
  const std::function<int()> judge = AddJudge(&app, &judge_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return BadInput(error.what());
    return app.exit(error);  // --help, --version
  }
  if (app.got_subcommand("info")) return info();
  if (app.got_subcommand("contracts")) return contracts();
  if (app.got_subcommand("judge")) return judge();
  return app.got_subcommand("run") ? run() : verify();
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that went away shows as a failed write, which has a message and an exit code.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // so does a file that grows beyond the limit
  try {
    return Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return BadInput("out of memory");
  } catch (const std::exception& error) {
    return BadInput(error.what());
  }
}
