#include "cli/about/command_texts.h"

namespace fathom::cli {
namespace {

using Usage = std::string_view;

// ---- The program

constexpr Usage kProgramUsage[] = {"fathom COMMAND [OPTIONS]", "fathom help COMMAND"};
constexpr Example kProgramExamples[] = {
    {"fathom run tiny-v3-nvfp4 -p \"Once upon a time\"", "a story by the model that ships with it"},
    {"fathom doctor", "what this machine has to offer"},
    {"fathom help run", "the flags of a command, with examples"},
};

// ---- Text from models

constexpr Usage kRunUsage[] = {
    "fathom run MODEL -p TEXT [OPTIONS]", "fathom run MODEL -f FILE [OPTIONS]",
    "... | fathom run MODEL [OPTIONS]", "fathom run MODEL --prompts FILE --out FILE [OPTIONS]"};
constexpr std::string_view kRunDetails =
    "The prompt is the text of -p, a file, or what is piped in. One from a file or a pipe loses "
    "exactly one newline at its end, which editors and echo put there; -p keeps every character. "
    "A pipe counts as a file: -f /dev/stdin and -f <(command) are read to their end.\n"
    "\n"
    "The answer goes to standard output as it is written, the figures to standard error. Ctrl-C "
    "ends the answer.\n"
    "\n"
    "With --prompts many prompts are answered together. Answers are appended to --out as they end; "
    "begun again after an interruption the run goes on with what has no answer yet.";
constexpr Example kRunExamples[] = {
    {"fathom run tiny-v3-nvfp4 -p \"Once upon a time\" -n 64", "a story of at most 64 tokens"},
    {"fathom run tiny-v3-nvfp4 -f prompt.txt --temperature 0", "the likeliest text, every time"},
    {"echo \"The king\" | fathom run tiny-v3-nvfp4 --seed 7", "the same story for the same seed"},
    {"fathom run tiny-v3-nvfp4 --prompts in.jsonl --out out.jsonl -n 100", "many prompts"},
};

constexpr Usage kChatUsage[] = {"fathom chat MODEL [OPTIONS]",
                                "fathom chat --url http://HOST:PORT [OPTIONS]"};
constexpr std::string_view kChatDetails =
    "Answers stream; Ctrl-C stops an answer, not the program. A paste is one message; a \\ at the "
    "end of a line goes on in the next, and \"\"\" begins and ends a message of several lines. "
    "/help lists the commands that a conversation knows.";
constexpr Example kChatExamples[] = {
    {"fathom chat tiny-v3-nvfp4", "a conversation with the model that ships with it"},
    {"fathom chat ORG/NAME --system \"Answer in one line.\" --temperature 0.6",
     "a model of the local Hugging Face cache"},
    {"fathom chat --url http://127.0.0.1:8000", "the model of a running server"},
};

constexpr Usage kServeUsage[] = {"fathom serve MODEL [OPTIONS]",
                                 "fathom serve --as PRESET --dummy-weights [OPTIONS]"};
constexpr std::string_view kServeDetails =
    "Prints `ready ADDRESS` when requests are answered. SIGTERM lets running requests end; a "
    "second signal ends it at once. Addresses other than loopback need a key.";
constexpr Example kServeExamples[] = {
    {"fathom serve tiny-v3-nvfp4", "http://127.0.0.1:8000, with a page for browsers"},
    {"fathom serve ORG/NAME --host 0.0.0.0 --api-key-file keys.txt",
     "for other machines, with keys"},
    {"fathom serve ORG/NAME --max-num-seqs 4 --max-model-len 8k", "in less memory"},
};

constexpr Usage kTokenizeUsage[] = {"fathom tokenize MODEL -p TEXT [OPTIONS]",
                                    "fathom tokenize MODEL --chat FILE.json [OPTIONS]",
                                    "fathom tokenize MODEL --decode IDS"};
constexpr std::string_view kTokenizeDetails =
    "Needs tokenizer.json of the model and no weights. Text is taken as it is, newlines included.";
constexpr Example kTokenizeExamples[] = {
    {"fathom tokenize tiny-v3-nvfp4 -p \"Once upon a time\"", "a line a token"},
    {"fathom tokenize tiny-v3-nvfp4 -p \"Once\" --ids", "the ids as a JSON list"},
    {"fathom tokenize tiny-v3-nvfp4 --decode \"1, 2, 3\"", "the text of ids"},
};

// ---- Looking at models and machines

constexpr Usage kInspectUsage[] = {"fathom inspect MODEL [OPTIONS]",
                                   "fathom inspect --as PRESET [OPTIONS]"};
constexpr std::string_view kInspectDetails =
    "Reads no weights: what it prints of a model of 700 GB takes a second. With --as it needs no "
    "files at all; `fathom presets` lists what is built in.";
constexpr Example kInspectExamples[] = {
    {"fathom inspect tiny-v3-nvfp4", "a model of this machine"},
    {"fathom inspect --as deepseek-r1-nvfp4 --device 8xh200", "does R1 fit on eight H200?"},
    {"fathom inspect --as deepseek-v3 --explain q_b_proj", "why an op gets its kernel"},
};

constexpr Usage kDoctorUsage[] = {"fathom doctor [OPTIONS]"};
constexpr std::string_view kDoctorDetails =
    "Measures the rate of memory and of multiplications for a few seconds, and lists what each "
    "kernel would run as.";
constexpr Example kDoctorExamples[] = {
    {"fathom doctor", "everything, measured"},
    {"fathom doctor --no-measure --json", "what is there, for programs"},
};

constexpr Usage kPresetsUsage[] = {"fathom presets [OPTIONS]"};
constexpr std::string_view kPresetsDetails =
    "What `--as` knows: descriptions of published models that need no files, for plans, dry runs "
    "and measurements with random weights.";
constexpr Example kPresetsExamples[] = {
    {"fathom presets", "names, parameters, layers, formats, bytes"},
    {"fathom presets --json", "the same for programs"},
};

constexpr Usage kTraceUsage[] = {"fathom trace MODEL -p TEXT [OPTIONS]",
                                 "fathom trace --dry --as PRESET [OPTIONS]",
                                 "fathom trace diff A B [OPTIONS]"};
constexpr std::string_view kTraceDetails =
    "A dry run has shapes, kernels and costs and needs no weights; a real one has times too. "
    "trace.json opens in Perfetto and chrome://tracing.";
constexpr Example kTraceExamples[] = {
    {"fathom trace --dry --as deepseek-r1-nvfp4 --out-dir r1", "what R1 computes, without weights"},
    {"fathom trace tiny-v3-nvfp4 -p \"Once\" --gen 8 --out-dir t", "eight steps, with times"},
    {"fathom trace diff t1 t2", "the first op that differs, and what became slower"},
};

constexpr Usage kTraceDiffUsage[] = {"fathom trace diff A B [OPTIONS]"};
constexpr std::string_view kTraceDiffDetails =
    "Exit code 1 if an op differs or became slower than allowed.";
constexpr Example kTraceDiffExamples[] = {
    {"fathom trace diff before after", "two directories of traces"},
    {"fathom trace diff before after --fail-slower 5", "5 % slower is too slow"},
};

// ---- Measuring

constexpr Usage kBenchUsage[] = {"fathom bench kernel|model|serve|compare [OPTIONS]"};
constexpr std::string_view kBenchDetails = "`fathom help bench kernel` has the flags of the first.";
constexpr Example kBenchExamples[] = {
    {"fathom bench model tiny-v3-nvfp4", "tokens a second of this machine"},
    {"fathom bench kernel --list", "the cases of kernels"},
};

constexpr Usage kBenchKernelUsage[] = {"fathom bench kernel [OPTIONS]",
                                       "fathom bench kernel --as PRESET [OPTIONS]",
                                       "fathom bench kernel --list"};
constexpr std::string_view kBenchKernelDetails =
    "Every row is checked against the oracle before it is timed; a wrong row has no time. Exit "
    "code 1 if a row is not ok.";
constexpr Example kBenchKernelExamples[] = {
    {"fathom bench kernel --suite decode --kernels rmsnorm", "one kernel on the shapes of a step"},
    {"fathom bench kernel --suite reference23 --out-dir r", "23 kernels, with a roofline"},
    {"fathom bench kernel --as deepseek-r1-nvfp4 --list", "every call of R1's own graph"},
};

constexpr Usage kBenchModelUsage[] = {"fathom bench model MODEL [OPTIONS]",
                                      "fathom bench model --as PRESET --dummy-weights [OPTIONS]"};
constexpr std::string_view kBenchModelDetails =
    "Prefill and decode without tokenizer and sampler, and how near decoding is to the rate at "
    "which memory was read in the same run.";
constexpr Example kBenchModelExamples[] = {
    {"fathom bench model tiny-v3-nvfp4", "512 tokens in, 128 out"},
    {"fathom bench model --as deepseek-v2-lite --layers 2 --dummy-weights -p 0 -n 16",
     "two layers, decoding alone"},
};

constexpr Usage kBenchServeUsage[] = {"fathom bench serve [OPTIONS]"};
constexpr std::string_view kBenchServeDetails =
    "Drives any server of the OpenAI or Anthropic API; figures and JSON keys are those of `vllm "
    "bench serve`.";
constexpr Example kBenchServeExamples[] = {
    {"fathom bench serve --base-url http://127.0.0.1:8000 --num-prompts 200 --request-rate 4",
     "200 requests, four a second"},
    {"fathom bench serve --dataset agent --sessions 16 --out-dir load",
     "sessions with tools, whose prompts grow"},
};

constexpr Usage kBenchCompareUsage[] = {"fathom bench compare BEFORE AFTER [OPTIONS]"};
constexpr std::string_view kBenchCompareDetails =
    "Takes the all_kernels.csv of two runs of `fathom bench kernel --out-dir`.";
constexpr Example kBenchCompareExamples[] = {
    {"fathom bench compare a/all_kernels.csv b/all_kernels.csv", "row by row"},
    {"fathom bench compare a/all_kernels.csv b/all_kernels.csv --fail-slower 5%",
     "exit code 1 if a row is 5 % slower"},
};

constexpr Usage kRooflineUsage[] = {"fathom roofline INPUT [OPTIONS]"};
constexpr std::string_view kRooflineDetails =
    "INPUT is all_kernels.csv of a benchmark or the directory of a trace.";
constexpr Example kRooflineExamples[] = {
    {"fathom roofline r/all_kernels.csv --out-file r.svg", "a drawing of a benchmark"},
    {"fathom roofline r/all_kernels.csv -o md", "which rows are far from the roof, and why"},
};

constexpr Usage kEvalUsage[] = {
    "fathom eval MODEL --ppl FILE [OPTIONS]",
    "fathom eval MODEL --vectors FILE [OPTIONS]",
    "fathom eval MODEL --ids FILE --logits-out FILE [OPTIONS]",
    "fathom eval MODEL --ppl FILE --compare OTHER [OPTIONS]",
};
constexpr std::string_view kEvalDetails = "Exit code 1 if a bound or a budget is missed.";
constexpr Example kEvalExamples[] = {
    {"fathom eval tiny-v3-nvfp4 --ppl text.txt", "perplexity of a text"},
    {"fathom eval tiny-v3-nvfp4 --ppl text.txt --compare other --max-kl 0.01",
     "how far two models are apart"},
    {"fathom eval MODEL --vectors golden.json --dtype f32", "against outputs of the reference"},
};

// ---- Making models

constexpr Usage kQuantizeUsage[] = {"fathom quantize SRC DST [OPTIONS]"};
constexpr std::string_view kQuantizeDetails =
    "Begun again after an interruption it goes on where it was.";
constexpr Example kQuantizeExamples[] = {
    {"fathom quantize deepseek-v3 deepseek-v3-nvfp4 --format nvfp4", "MLPs, experts and o_proj"},
    {"fathom quantize SRC DST --format fp8_block --scope all-linear", "attention as well"},
    {"fathom quantize SRC DST --calibrate text.txt", "with scales for --activations nvfp4"},
};

constexpr Usage kVerifyUsage[] = {"fathom verify MODEL [OPTIONS]"};
constexpr std::string_view kVerifyDetails =
    "Reads every byte of a model once: hashes where some are recorded, the index against the "
    "shards, shapes, the tokenizer, and numbers that are not finite. Ends with 0, or with 65 and "
    "what was found.";
constexpr Example kVerifyExamples[] = {
    {"fathom verify tiny-v3-nvfp4", "whether the model is as it was written"},
    {"fathom verify DIR --json", "for programs"},
};

constexpr Usage kSynthUsage[] = {"fathom synth DST [OPTIONS]"};
constexpr std::string_view kSynthDetails =
    "The checkpoint has a tokenizer and runs in every command; its text is noise.";
constexpr Example kSynthExamples[] = {
    {"fathom synth tiny --version v3 --format nvfp4", "four layers of V3 in NVFP4"},
    {"fathom synth tiny-v4 --version v4 --seed 7", "V4, of another seed"},
};

// ---- The program itself

constexpr Usage kVersionUsage[] = {"fathom version [OPTIONS]"};
constexpr std::string_view kVersionDetails =
    "The first line is what --version prints; then come the facts of the build, for reports of "
    "faults.";
constexpr Example kVersionExamples[] = {
    {"fathom version", "version, commit, compiler, what is compiled in"},
    {"fathom version --json", "the same for programs"},
};

constexpr Usage kHelpUsage[] = {"fathom help [COMMAND...]", "fathom help --man [COMMAND...]",
                                "fathom help --out-dir DIR"};
constexpr std::string_view kHelpDetails =
    "The same as `fathom COMMAND --help`; --man prints the manual page as roff, --json every "
    "command and flag for programs.";
constexpr Example kHelpExamples[] = {
    {"fathom help bench kernel", "the flags of a command"},
    {"fathom help --man run | man -l -", "its manual page"},
    {"fathom help --out-dir share",
     "all manual pages and completions, as an installation has them"},
};

constexpr Usage kCompletionUsage[] = {"fathom completion bash|zsh|fish"};
constexpr std::string_view kCompletionDetails =
    "Prints a script that makes the shell complete commands, flags, their words and the names of "
    "models. An installation has them in place.";
constexpr Example kCompletionExamples[] = {
    {"fathom completion bash > ~/.local/share/bash-completion/completions/fathom", "bash"},
    {"fathom completion zsh > ~/.zfunc/_fathom", "zsh, with ~/.zfunc in fpath"},
    {"fathom completion fish > ~/.config/fish/completions/fathom.fish", "fish"},
};

constexpr CommandText kTexts[] = {
    {"", kProgramUsage, "", kProgramExamples},
    {"run", kRunUsage, kRunDetails, kRunExamples},
    {"chat", kChatUsage, kChatDetails, kChatExamples},
    {"serve", kServeUsage, kServeDetails, kServeExamples},
    {"tokenize", kTokenizeUsage, kTokenizeDetails, kTokenizeExamples},
    {"inspect", kInspectUsage, kInspectDetails, kInspectExamples},
    {"doctor", kDoctorUsage, kDoctorDetails, kDoctorExamples},
    {"presets", kPresetsUsage, kPresetsDetails, kPresetsExamples},
    {"trace", kTraceUsage, kTraceDetails, kTraceExamples},
    {"trace diff", kTraceDiffUsage, kTraceDiffDetails, kTraceDiffExamples},
    {"bench", kBenchUsage, kBenchDetails, kBenchExamples},
    {"bench kernel", kBenchKernelUsage, kBenchKernelDetails, kBenchKernelExamples},
    {"bench model", kBenchModelUsage, kBenchModelDetails, kBenchModelExamples},
    {"bench serve", kBenchServeUsage, kBenchServeDetails, kBenchServeExamples},
    {"bench compare", kBenchCompareUsage, kBenchCompareDetails, kBenchCompareExamples},
    {"roofline", kRooflineUsage, kRooflineDetails, kRooflineExamples},
    {"eval", kEvalUsage, kEvalDetails, kEvalExamples},
    {"quantize", kQuantizeUsage, kQuantizeDetails, kQuantizeExamples},
    {"verify", kVerifyUsage, kVerifyDetails, kVerifyExamples},
    {"synth", kSynthUsage, kSynthDetails, kSynthExamples},
    {"version", kVersionUsage, kVersionDetails, kVersionExamples},
    {"help", kHelpUsage, kHelpDetails, kHelpExamples},
    {"completion", kCompletionUsage, kCompletionDetails, kCompletionExamples},
};

}  // namespace

const CommandText* find_command_text(std::string_view command) {
  for (const CommandText& text : kTexts)
    if (text.command == command) return &text;
  return nullptr;
}

std::string_view model_text() {
  return "MODEL is a directory in the layout of Hugging Face; the name of a model that came with "
         "the program, such as tiny-v3-nvfp4; or ORG/NAME[@REVISION] in the local cache of Hugging "
         "Face (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface). Nothing is downloaded.";
}

std::string_view exit_code_text() {
  return "0: done. 1: a check that was asked for failed. 64: usage. 65: a bad model or input file. "
         "69: hardware, a driver or a library is missing. 70: a fault of the engine. 74: input or "
         "output failed. 78: the configuration cannot be met. 130: interrupted.";
}

std::string_view value_source_text() {
  return "A flag's value comes from the command line, else from the environment (FATHOM_ and the "
         "flag in upper case, - as _), else from the file of --config, else it is the default. "
         "Dashes and underscores within a flag are alike; of a flag that is given twice the last "
         "counts, where it does not say that it may be repeated.";
}

}  // namespace fathom::cli
