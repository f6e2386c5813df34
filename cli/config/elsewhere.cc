#include "cli/config/elsewhere.h"

#include <algorithm>

namespace fathom::cli {
namespace {

constexpr std::string_view kLlama = "llama.cpp";
constexpr std::string_view kVllm = "vLLM";
constexpr std::string_view kServers = "vLLM and SGLang";
constexpr std::string_view kOllama = "ollama";

constexpr std::string_view kOneGpu = "a process has one GPU; run a server a GPU behind a router";
constexpr std::string_view kOneMachine = "a server is one machine";
constexpr std::string_view kSamplers =
    "the samplers are --temperature, --top-k, --top-p, --min-p and the penalties";
constexpr std::string_view kConstraints =
    "requests to `fathom serve` may ask for JSON, a schema, a grammar or an expression";
constexpr std::string_view kModes = "`fathom chat MODEL` converses, `fathom run MODEL` completes";
constexpr std::string_view kCheckpoint = "config.json of the checkpoint says it";

constexpr ElsewhereFlag kFlags[] = {
    // Where a model is.
    {"--tensor-parallel-size --tp --tp-size -tp", kServers, "1", kOneGpu},
    {"--pipeline-parallel-size --pp --pp-size -pp", kServers, "1", kOneGpu},
    {"--data-parallel-size --dp --dp-size -dp", kServers, "1", kOneGpu},
    {"--expert-parallel-size --ep --ep-size", kServers, "1", kOneGpu},
    {"--enable-expert-parallel", kVllm, "", kOneGpu, true},
    {"--nnodes", kServers, "1", kOneMachine},
    {"--node-rank", kServers, "0", kOneMachine},
    {"--dist-init-addr", kServers, "", kOneMachine},
    {"--n-gpu-layers --gpu-layers -ngl", kLlama, "",
     "--device cuda has the whole model on the GPU, --device cpu none of it"},
    {"--split-mode -sm", kLlama, "none", kOneGpu},
    {"--tensor-split -ts", kLlama, "", kOneGpu},
    {"--main-gpu -mg", kLlama, "", "--device cuda:N"},
    {"--override-tensor -ot", kLlama, "", "the whole model is on one --device"},
    {"--cpu-moe -cmoe", kLlama, "", "the whole model is on one --device", true},
    {"--cpu-offload-gb", kServers, "0", "the whole model is on one --device"},
    {"--numa", kLlama, "", "threads keep to their CPUs; --no-pin-threads frees them"},
    {"--no-mmap", kLlama, "", "weights are laid out for the processor in memory, never mapped",
     true, true},
    {"--mlock", kLlama, "", "weights are in memory of the process; limits of the system hold",
     true},

    // What a model is.
    {"--hf-repo -hf -hfr", kLlama, "",
     "name it as MODEL: ORG/NAME of the local cache; `hf download ORG/NAME` fetches it"},
    {"--hf-file -hff", kLlama, "", "MODEL is a directory of safetensors, not a file"},
    {"--download-dir", kVllm, "", "nothing is downloaded; HF_HUB_CACHE names another cache"},
    {"--revision", kServers, "", "name it in MODEL: ORG/NAME@REV"},
    {"--quantization", kServers, "auto",
     "the checkpoint says it; `fathom quantize` writes another"},
    {"--load-format", kServers, "auto", "safetensors are read, whatever their formats"},
    {"--tokenizer-mode", kServers, "auto", "tokenizer.json of the model is read"},
    {"--skip-tokenizer-init", kServers, "", "`fathom serve` needs its tokenizer", true},
    {"--rope-scaling", kLlama, "", kCheckpoint},
    {"--rope-freq-base", kLlama, "", kCheckpoint},
    {"--rope-freq-scale", kLlama, "", kCheckpoint},
    {"--lora --lora-scaled --lora-modules", kLlama, "", "there are no adapters"},
    {"--enable-lora", kVllm, "", "there are no adapters", true},
    {"--mmproj", kLlama, "", "models here read text alone"},
    {"--image", kLlama, "", "models here read text alone"},
    {"--chat-template --chat-template-file", kServers, "",
     "no template is run; --chat-format names a built-in encoder"},
    {"--jinja", kLlama, "", "no template is run; --chat-format names a built-in encoder", true},
    {"--generation-config", kVllm, "auto", "generation_config.json of the checkpoint is read"},

    // How it is computed.
    {"--flash-attn -fa", kLlama, "auto", "--attention chooses the form of attention"},
    {"--attention-backend", kServers, "",
     "--attention chooses the form, --pin OP=VARIANT the code of an op"},
    {"--enforce-eager --disable-cuda-graph --no-cuda-graphs", kServers, "", "--cuda-graphs off",
     true},
    {"--disable-radix-cache", "SGLang", "", "--no-prefix-cache", true},
    {"--no-enable-prefix-caching", kVllm, "", "--no-prefix-cache", true},
    {"--batch-size -b", kLlama, "", "--max-num-batched-tokens N, the tokens of a step"},
    {"--ubatch-size -ub", kLlama, "", "--prefill-chunk N, prompt tokens of a request in a step"},
    {"--threads-batch -tb", kLlama, "", "--threads counts for prompts and answers"},
    {"--cache-type-v -ctv", kLlama, "",
     "keys and values are one row here: --kv-cache-dtype, also -ctk"},
    {"--cont-batching -cb", kLlama, "", "requests always share steps", true, true},
    {"--swap-space", kVllm, "0", "preempted requests are computed again"},
    {"--kv-offload-dir --kv-offload-gb", kServers, "", "cached pages stay where the model is"},
    {"--schedule-policy --scheduling-policy", kServers, "fcfs", "requests run as they come"},
    {"--speculative-config", kVllm, "", "--speculative mtp or ngram, and --speculative-tokens N"},
    {"--speculative-num-steps", "SGLang", "", "--speculative-tokens N"},
    {"--speculative-num-draft-tokens", "SGLang", "",
     "--speculative-width W, which does not count the token before the guesses"},
    {"--model-draft -md", kLlama, "", "--speculative mtp drafts by the model's own layer"},

    // What is asked for.
    {"--reverse-prompt -r", kLlama, "", "--stop TEXT"},
    {"--mirostat", kLlama, "0", kSamplers},
    {"--typical --typical-p", kLlama, "1.0", kSamplers},
    {"--xtc-probability", kLlama, "0.0", kSamplers},
    {"--dry-multiplier", kLlama, "0.0", kSamplers},
    {"--dynatemp-range", kLlama, "0.0", kSamplers},
    {"--samplers", kLlama, "", kSamplers},
    {"--repeat-last-n", kLlama, "-1", "penalties look at the whole prompt and answer"},
    {"--grammar --grammar-file", kLlama, "", kConstraints},
    {"--json-schema --json-schema-file -j -jf", kLlama, "", kConstraints},
    {"--guided-decoding-backend --grammar-backend", kServers, "xgrammar", "xgrammar is built in"},
    {"--format", kOllama, "", kConstraints},
    {"--keep", kLlama, "", "an answer ends where the context does; nothing is dropped from it"},
    {"--context-shift", kLlama, "",
     "an answer ends where the context does; nothing is dropped from it", true},
    {"--prompt-cache", kLlama, "", "nothing of a prompt is kept in files"},
    {"--no-display-prompt", kLlama, "", "--echo prints the prompt, nothing else does", true, true},
    {"--escape -e", kLlama, "", "the shell has $'one\\ntwo' for newlines in -p", true},
    {"--no-escape", kLlama, "", "a prompt is taken as it is", true, true},

    // How it is talked to.
    {"--conversation -cnv", kLlama, "", kModes, true},
    {"--no-conversation -no-cnv", kLlama, "", kModes, true},
    {"--interactive --interactive-first -i", kLlama, "", kModes, true},
    {"--single-turn -st", kLlama, "", kModes, true},
    {"--system-prompt -sys", kLlama, "", "`fathom chat MODEL --system TEXT`"},
    {"--think", kOllama, "", "`fathom chat MODEL --thinking on`"},
    {"--hidethinking", kOllama, "", "`fathom chat MODEL --thinking off` does without", true},
    {"--keepalive", kOllama, "", "a model is loaded as long as its program runs"},
    {"--nowordwrap", kOllama, "", "lines are never wrapped", true, true},
    {"--log-disable", kLlama, "", "--quiet", true},
    {"--disable-log-requests --no-enable-log-requests", kVllm, "",
     "requests are not logged; --trace-requests FILE writes them", true, true},
};

struct ElsewhereCommand {
  std::string_view names;
  std::string_view instead;
};

constexpr ElsewhereCommand kCommands[] = {
    {"pull download", "nothing is downloaded here; `hf download ORG/NAME` fills the local cache"},
    {"push cp rm stop ps", "there is no store of models and no daemon; models are directories"},
    {"list ls",
     "`fathom version` lists the models that came with the program; others are "
     "directories"},
    {"show", "`fathom inspect MODEL`"},
    {"create convert", "`fathom quantize SRC DST` writes another format"},
    {"perplexity", "`fathom eval MODEL --ppl FILE`"},
    {"man", "`fathom help --man` prints the manual page"},
    {"generate complete", "`fathom run MODEL -p TEXT`"},
    {"server", "`fathom serve MODEL`"},
    {"cli", "`fathom chat MODEL`"},
};

// The next of the names in a list, which is cut off it.
std::string_view take_name(std::string_view& names) {
  const size_t end = std::min(names.find(' '), names.size());
  const std::string_view name = names.substr(0, end);
  names.remove_prefix(std::min(end + 1, names.size()));
  return name;
}

bool lists(std::string_view names, std::string_view typed) {
  while (!names.empty())
    if (take_name(names) == typed) return true;
  return false;
}

}  // namespace

const ElsewhereFlag* find_elsewhere_flag(std::string_view typed) {
  std::string name(typed);
  std::replace(name.begin(), name.end(), '_', '-');
  for (const ElsewhereFlag& flag : kFlags)
    if (lists(flag.names, name)) return &flag;
  return nullptr;
}

std::string_view find_elsewhere_command(std::string_view typed) {
  for (const ElsewhereCommand& command : kCommands)
    if (lists(command.names, typed)) return command.instead;
  return {};
}

}  // namespace fathom::cli
