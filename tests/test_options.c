/* test_options.c - command line, environment and pippin.conf; help and completion. */
#include "src/snapshots.h"
#include "tests/support.h"

#include <math.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "src/config.h"
#include "src/options_internal.h"
#include "src/paths.h"

static struct pp_error err;
static struct pp_options o;
static struct pp_paths paths; /* in an empty folder, so that the user's own pippin.conf is not read */

/* Arguments separated by '|', because some hold spaces. The strings live until the end of the program, as argv does. */
static enum pp_code parse(const char *line)
{
    static char *argv[PP_MAX_POSITIONAL + 64];
    int argc = 0;
    argv[argc++] = (char *)(uintptr_t)"pippin";
    char *copy = (char *)(uintptr_t)pp_copy_until_exit(line, strlen(line));
    assert_non_null(copy);
    for (char *arg; *line && (arg = strsep(&copy, "|"));)
        argv[argc++] = arg;
    argv[argc] = NULL;
    return pp_options_parse(argc, argv, &paths, &o, &err);
}

static void accept(const char *line)
{
    enum pp_code code = parse(line);
    if (code)
        fail_msg("<%s> was refused: %s", line, err.text);
}

/* Refused as a usage error whose text holds `text`. */
static void refuse(const char *line, const char *text)
{
    enum pp_code code = parse(line);
    if (code != PP_ERR_USAGE)
        fail_msg("<%s> gave code %d", line, (int)code);
    if (!strstr(err.text, text))
        fail_msg("<%s> says \"%s\", which lacks \"%s\"", line, err.text, text);
}

static int old_stdin;

/* Unless a test says otherwise, the input is a terminal, wherever the tests run. */
static int set_up(void **state)
{
    (void)state;
    int master, slave;
    static const char *const variables[] = {"LLAMA_ARG_MODEL", "LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_THREADS",
                                            "LLAMA_ARG_N_PREDICT",
                                            "LLAMA_ARG_DRAFT_MAX", "NO_COLOR"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    snprintf(paths.config, sizeof paths.config, "%s/options", test_tmpdir());
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0)
        return -1;
    old_stdin = dup(STDIN_FILENO);
    dup2(slave, STDIN_FILENO);
    close(slave); /* the master stays open, so that the terminal stays alive */
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dup2(old_stdin, STDIN_FILENO);
    close(old_stdin);
    return 0;
}

static void defaults(void **state)
{
    (void)state;
    accept("");
    assert_string_equal(o.command, "chat");
    assert_false(o.command_given);
    assert_string_equal(o.model, "");
    assert_null(o.draft);
    assert_int_equal(o.draft_max, 8);
    assert_null(o.drafter);
    assert_int_equal(o.n_predict, -1);
    assert_int_equal(o.n_prompt, 512);
    assert_int_equal(o.n_gen, 32);
    assert_int_equal(o.repetitions, 5);
    assert_int_equal(o.sampling.top_k, 40);
    assert_int_equal(o.kv_type, PP_KV_Q8);
    assert_false(o.kv_type_given || o.seed_given || o.no_color || o.help);
    assert_null(o.completion);
}

static void values(void **state)
{
    (void)state;
    accept("run|-m|a.gguf|--ctx-size=4096|-n|32|--temp|0|--top-k|1|--top-p|0.5|--min-p|1e-2|--repeat-penalty|1.1|"
           "--frequency-penalty|-0.5|--presence-penalty|0.5|--repeat-last-n|-1|-t|2|--kv-type|f16|--kv-memory|3G|"
           "--seed|18446744073709551615|-sys|Be brief.|-p|hi there|-f|-|--stats|--save|--ignore-eos|-md|d.gguf|"
           "--draft-max|5|--draft-always|--drafter|model|--draft-p-min|0.4|"
           "--kernels|scalar|--activations|bf16|--chat-template-file|t.jinja");
    assert_string_equal(o.command, "run");
    assert_true(o.command_given);
    assert_string_equal(o.model, "a.gguf");
    assert_int_equal(o.ctx_size, 4096);
    assert_int_equal(o.n_predict, 32);
    assert_true(o.sampling.temp == 0.0f);
    assert_int_equal(o.sampling.top_k, 1);
    assert_true(o.sampling.top_p == 0.5f);
    assert_true(o.sampling.min_p == 0.01f);
    assert_true(o.sampling.frequency_penalty == -0.5f);
    assert_int_equal(o.sampling.penalty_last_n, -1);
    assert_int_equal(o.threads, 2);
    assert_int_equal(o.kv_type, PP_KV_F16);
    assert_true(o.kv_type_given);
    assert_true(o.kv_memory == 3ull << 30);
    assert_true(o.sampling.seed == UINT64_MAX && o.seed_given);
    assert_string_equal(o.system, "Be brief.");
    assert_string_equal(o.prompt, "hi there");
    assert_string_equal(o.file, "-");
    assert_true(o.stats && o.save && !o.raw && o.ignore_eos);
    assert_string_equal(o.draft, "d.gguf");
    assert_int_equal(o.draft_max, 5);
    assert_true(o.draft_always);
    assert_string_equal(o.drafter, "model");
    assert_true(o.draft_p_min == 0.4f);
    assert_string_equal(o.kernels, "scalar");
    assert_int_equal(pp_options_activations(&o), PP_ACT_BF16);
    accept("run");
    assert_int_equal(pp_options_activations(&o), PP_ACT_AUTO);
    accept("run|--raw|--activations|auto");
    assert_true(o.raw);
    assert_int_equal(pp_options_activations(&o), PP_ACT_AUTO);
    accept("run|--activations|f32");
    assert_int_equal(pp_options_activations(&o), PP_ACT_F32);
    accept("run|--activations|pair");
    assert_int_equal(pp_options_activations(&o), PP_ACT_PAIR);

    accept("run|--temp|1|--temp=0.25|-p|--not an option"); /* the last one wins; a value is a value */
    assert_true(o.sampling.temp == 0.25f);
    assert_string_equal(o.prompt, "--not an option");
    accept("run|-p|a|-p||-p|b|-f|c|-f|-"); /* texts and files for a model are put together */
    assert_string_equal(o.prompt, "a\n\nb");
    assert_int_equal(o.n_files, 2);
    assert_string_equal(o.files[0], "c");
    refuse("embed|-f|a|-f|b", "pippin embed reads one file");
    accept("run|--prompt=a=b|--system=");
    assert_string_equal(o.prompt, "a=b");
    assert_string_equal(o.system, "");
    accept("bench|-p|128|-n|16|-r|3|--json");
    assert_int_equal(o.n_prompt, 128);
    assert_int_equal(o.n_gen, 16);
    assert_int_equal(o.repetitions, 3);
    assert_int_equal(o.n_predict, -1);
    accept("run|-ngl|0|--device|cpu|--seed|7|--seed|-1");
    assert_false(o.seed_given);
    accept("run|--kv-memory|512MiB");
    assert_true(o.kv_memory == 512ull << 20);
    assert_int_equal(o.layout_cache, 0);
    accept("run|--quant|q4_k");
    accept("chat|--quant|q8_0");
    refuse("run|--quant|q9_z", "--quant expects one of");
    accept("run|--layout-cache|20G");
    assert_true(o.layout_cache == 20ull << 30);
    accept("chat|--layout-cache|off");
    assert_true(o.layout_cache == PP_LAYOUTS_OFF);
    accept("bench|--layout-cache|0");
    assert_true(o.layout_cache == PP_LAYOUTS_OFF);
    accept("chat");
    assert_int_equal(o.snapshot_quota, 0);
    accept("chat|--snapshot-quota|20G");
    assert_true(o.snapshot_quota == 20ull << 30);
    accept("run|--snapshot-quota|0");
    assert_true(o.snapshot_quota == PP_SNAPSHOTS_OFF);
    accept("chat|--snapshot-quota|off");
    assert_true(o.snapshot_quota == PP_SNAPSHOTS_OFF);
}

static void lists(void **state)
{
    (void)state;
    accept("run|--lora|a.gguf|--lora-scaled|C:b.gguf:0.5|--stop|x|--stop|y z|--logit-bias|5+1.5|--logit-bias|6-2|"
           "--logit-bias|7-inf|--logit-bias|8=-3");
    assert_int_equal(o.n_lora, 2);
    assert_string_equal(o.lora[0].path, "a.gguf");
    assert_true(o.lora[0].scale == 1.0f);
    assert_string_equal(o.lora[1].path, "C:b.gguf");
    assert_true(o.lora[1].scale == 0.5f);
    assert_int_equal(o.n_stops, 2);
    assert_string_equal(o.stops[1], "y z");
    assert_int_equal(o.sampling.n_bias, 4);
    assert_int_equal(o.sampling.bias[0].token, 5);
    assert_true(o.sampling.bias[0].bias == 1.5f);
    assert_true(o.sampling.bias[1].bias == -2.0f);
    assert_true(isinf(o.sampling.bias[2].bias) && o.sampling.bias[2].bias < 0);
    assert_true(o.sampling.bias[3].bias == -3.0f);
    accept("run|--lora|a.gguf|--lora|b.gguf|--lora-scaled|a.gguf:0.5|--lora|/dev/null|"
           "--lora-scaled|/dev/../dev/null:2");
    assert_int_equal(o.n_lora, 3); /* an adapter given twice counts once, with the later strength, as in the chat */
    assert_string_equal(o.lora[0].path, "a.gguf");
    assert_true(o.lora[0].scale == 0.5f && o.lora[1].scale == 1.0f && o.lora[2].scale == 2.0f);
    accept("run|-md|d.gguf|--draft-lora|a.gguf|--draft-lora|C:b.gguf:-0.5|--draft-lora|C:c.gguf");
    assert_int_equal(o.n_draft_lora, 3);
    assert_string_equal(o.draft_lora[0].path, "a.gguf");
    assert_true(o.draft_lora[0].scale == 1.0f);
    assert_string_equal(o.draft_lora[1].path, "C:b.gguf");
    assert_true(o.draft_lora[1].scale == -0.5f);
    assert_string_equal(o.draft_lora[2].path, "C:c.gguf");
    refuse("run|--draft-lora|a.gguf:1000", "--draft-lora");
    /* Unset variables of a script: */
    static const char *const nameless[][2] = {
        {"convert||x", "`pippin convert`: an argument is empty"}, {"models|info|", "an argument is empty"}, {"run|-m|",
                                                                                                             "-m"},
        {"run|-md|", "-md"}, {"convert|--base||a|b", "--base"}, {"run|-f|", "-f"}, {"logits|--ids|1|-o|", "-o"},
        {"run|--chat-template-file|", "--chat-template-file"}, {"imatrix|--in-file|", "--in-file"},
        {"bench|--write|", "--write"}, {"logits|--ids|1|-o|-", "\"-\" is not possible here"}};
    for (size_t i = 0; i < sizeof nameless / sizeof *nameless; i++)
        refuse(nameless[i][0], nameless[i][1]);
    accept("run|--draft-max|15");
    refuse("run|--draft-max|16", "--draft-max"); /* 15 is the most at a time */
    refuse("run|--draft-lora|", "--draft-lora");
    refuse("tokenize|--draft-lora|a.gguf", "--draft-lora");
    refuse("run|--lora|1|--lora|2|--lora|3|--lora|4|--lora|5|--lora|6|--lora|7|--lora|8|--lora|9", "--lora");
    refuse("run|--stop|", "--stop");
    static const char *const bad[] = {"--lora-scaled|b.gguf", "--lora-scaled|:1", "--lora-scaled|b:x",
                                      "--lora-scaled|b:nan",
                                      "--logit-bias|5", "--logit-bias|x+1", "--logit-bias|5+x", "--logit-bias|-5+1",
                                      "--logit-bias|99999999999+1", "--logit-bias|5*2", "--logit-bias|5+"};
    char line[128];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(line, sizeof line, "run|%s", bad[i]);
        refuse(line, strncmp(bad[i], "--lora", 6) == 0 ? "--lora-scaled" : "--logit-bias");
    }
}

static void strict_numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"12x", "", " 1", "1 ", "0x10", "99999999999999999999", "-5", "1.5", "+", "-",
                                      "nan", "1e3"};
    char line[128];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(line, sizeof line, "run|--top-k|%s", bad[i]);
        refuse(line, "--top-k expects a whole number");
    }
    refuse("bench|-p|99999999", "-p expects a whole number from 0 to 16777216, not");
    static const char *const bad_real[] = {"nan", "inf", "-1", "1e999", "0x1p3", "1,5", "", "1.5.2", "101", "--", "e",
                                           "1f"};
    for (size_t i = 0; i < sizeof bad_real / sizeof bad_real[0]; i++) {
        snprintf(line, sizeof line, "run|--temp=%s", bad_real[i]);
        refuse(line, "--temp expects a number");
    }
    static const char *const bad_size[] = {"4X", "-1", "G", "99999999999G", "1.5G", "4Gx", "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad_size / sizeof bad_size[0]; i++) {
        snprintf(line, sizeof line, "run|--kv-memory|%s", bad_size[i]);
        refuse(line, "--kv-memory expects a size");
        snprintf(line, sizeof line, "run|--layout-cache|%s", bad_size[i]);
        refuse(line, "--layout-cache expects a size such as 20G, or off");
    }
    refuse("run|--top-p|1.01", "from 0 to 1");
    refuse("run|--seed|-2", "--seed");
    refuse("run|--seed|18446744073709551616", "--seed");
    refuse("run|-t|9999999", "-t expects");
    refuse("run|-c|1", "-c: a context of 1 tokens is too small; give at least 32");
    refuse("run|--ctx-size|31", "give at least 32");
    refuse("run|-c|-1", "-c expects a whole number");
    accept("run|-c|32");
    accept("run|-c|0");
    refuse("run|--kv-type|q4", "q8_0");
    refuse("run|--kv-type|q", "q8 q8_0 f16 f32 fp8 q4_0");
    refuse("run|--kernels|sse", "avx2");
    refuse("run|--activations|f16", "bf16");
    refuse("run|-n", "-n needs a value");
    refuse("run|--stats=1", "takes no value");
}

static void commands(void **state)
{
    (void)state;
    accept("-m|run|tokenize|--bos"); /* a value is no command word */
    assert_string_equal(o.command, "tokenize");
    assert_string_equal(o.model, "run");
    accept("sessions|search|two words");
    assert_string_equal(o.subcommand, "search");
    assert_int_equal(o.n_args, 1);
    assert_string_equal(o.args[0], "two words");
    accept("sessions");
    assert_null(o.subcommand);
    accept("quantize|a|b|Q8_0");
    assert_int_equal(o.n_args, 3);
    assert_string_equal(o.args[2], "Q8_0");
    accept("convert|--outtype|f16|--|-a|--b");
    assert_string_equal(o.args[1], "--b");
    accept("chat|--continue|--theme|dark|--plain");
    assert_true(o.resume_latest && o.plain);

    refuse("sessions|serch|x", "did you mean search? Choose from: list search");
    refuse("run|--temp|0,7|-p|x", "--temp expects a number from 0 to 100, not \"0,7\"; use a decimal point, not a "
                                  "comma");
    refuse("sessions|delete|1234", "use `pippin sessions rm`");
    refuse("models|remove|a", "use `pippin models rm`");
    refuse("models|show|a", "use `pippin models info`");
    refuse("sesions", "did you mean \"sessions\"");
    refuse("--sytem|Be brief.", "did you mean --system?"); /* a misspelt option, not its value, is reported */
    refuse("--sytem|run|-p|x", "did you mean --system?");
    refuse("-hf|owner/name", "models pull");
    refuse("devices", "pippin doctor");
    refuse("pull|llama3", "there is no `pippin pull`; `pippin models pull URL`");
    refuse("ls", "`pippin models` lists");
    refuse("serve", "pippin is not a server");
    refuse("run|starter|Why?", "a model after -m");
    refuse("chat|starter", "a model goes after -m");
    refuse("--jinja|-p|x", "--jinja has no effect in pippin");
    refuse("--keep|4", "--overflow");
    accept("--theme|dark"); /* not with a prompt, since no chat uses that */
    refuse("--theme|dark|-p|x", "--theme is not an option of `pippin run`");
    refuse("-p|x|--plain", "--plain is not an option of `pippin run`");
    refuse("version", "did you mean --version?");
    accept("doctor|--json");
    refuse("doctor|list", "list");
    accept("sessions|export|1234|--format|jsonl|-o|x");
    refuse("sessions|export|1234|--format|pdf", "--format");
    refuse("sessions|frobnicate", "choose from: list search show rename export import backup rm forget");
    refuse("dir/model.gguf", "-m dir/model.gguf");
    refuse("run|hello", "-p");
    refuse("convert|a|b|c", "unexpected argument");
    refuse("run|--continue|--resume|abcd", "cannot be combined");
}

/* As many words as the shell makes of a *. */
static void many_words(void **state)
{
    struct pp_buf line = {0};
    (void)state;
    pp_buf_str(&line, "sessions|import");
    for (int i = 0; i < PP_MAX_POSITIONAL; i++)
        pp_buf_fmt(&line, "|file %d.json", i);
    accept(pp_buf_cstr(&line));
    assert_int_equal(o.n_args, PP_MAX_POSITIONAL);
    assert_string_equal(o.args[PP_MAX_POSITIONAL - 1], "file 511.json");
    pp_buf_str(&line, "|more");
    refuse(pp_buf_cstr(&line), "unexpected argument \"more\": too many");
    pp_buf_free(&line);
}

static void no_command_word(void **state)
{
    (void)state;
    accept("-p|hi");
    assert_string_equal(o.command, "run");
    accept("--stats");
    assert_string_equal(o.command, "run");
    accept("--temp|0");
    assert_string_equal(o.command, "chat");
    accept("--continue");
    assert_string_equal(o.command, "chat");
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    dup2(ends[0], STDIN_FILENO); /* echo hi | pippin */
    accept("--temp|0");
    assert_string_equal(o.command, "run");
    accept("");
    assert_string_equal(o.command, "run");
    accept("--plain");
    assert_string_equal(o.command, "chat");
    accept("--help");
    assert_true(o.help && !o.command_given);
    close(ends[0]);
    close(ends[1]);
}

static void unknown_options(void **state)
{
    (void)state;
    refuse("run|--tmep|1", "did you mean --temp?");
    refuse("run|--top_k|1", "did you mean --top-k?");
    refuse("run|-temp|1", "did you mean --temp?");
    refuse("run|--xyzzyx", "--help");
    refuse("run|-Z", "unknown option -Z");
    refuse("run|--chunks|3", "it belongs to: perplexity, imatrix");
    refuse("tokenize|--temp|1", "it belongs to: chat, run");
    refuse("embed|-n|1", "it belongs to: chat, run, bench"); /* where -n is --predict, and --n-gen */
    refuse("run|-t|513", "from 0 to 512");
    refuse("run|--grammar|root ::= x", "--grammar-file FILE");
    refuse("run|-j|{}", "is --json-schema here");
    refuse("run|--grammar-file|x|--json-schema={}", "--json-schema");
    refuse("run|--json-schema={}|--ignore-eos", "ends where its grammar ends");
    refuse("chat|--grammar-file|x", "it belongs to: run");
    refuse("run|-hf|a/b", "-m");
    refuse("run|--model=", "needs a model");
    refuse("-cnv", "chat");
    refuse("run|-ngl|99", "CPU");
    refuse("run|-ngl|x", "-ngl expects");
    refuse("run|--device|vulkan:0", "CPU");
    char line[400];
    memset(line, 'a', sizeof line);
    memcpy(line, "run|--", 6);
    line[399] = 0;
    refuse(line, "unknown option");
}

static void help_and_version(void **state)
{
    (void)state;
    accept("run|--help");
    assert_true(o.help);
    assert_string_equal(o.command, "run");
    accept("-V");
    assert_true(o.version);
    accept("--completion|zsh");
    assert_string_equal(o.completion, "zsh");
    refuse("--completion|tcsh", "bash");
}

/* --- environment and pippin.conf --------------------------------------------------------------------------------- */

static void write_conf(const char *text)
{
    char path[600];
    assert_ok(pp_make_dirs(paths.config, &err), err);
    snprintf(path, sizeof path, "%s/pippin.conf", paths.config);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
}

static void remove_conf(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/pippin.conf", paths.config);
    unlink(path);
}

/* Options that would have no effect are refused, and the error says what to do. */
static void idle_options(void **state)
{
    (void)state;
    refuse("run|-p|x|--imatrix|im.gguf", "add --quant TYPE");
    refuse("--imatrix|im.gguf", "add --quant TYPE");
    accept("run|-p|x|--imatrix|im.gguf|--quant|q4_0");
    accept("quantize|a|b|q4_0|--imatrix|im.gguf");
    refuse("convert|a|b|--imatrix|im.gguf", "belongs to: ");
    refuse("sessions|--best-first", "--best-first has no effect here: it belongs to `pippin sessions search`; leave "
                                    "it out");
    refuse("sessions|rm|abcd|--limit|3", "it belongs to `pippin sessions list` or `search`");
    refuse("sessions|backup|x|--json", "`pippin sessions list`, `search`, `show`, `export` or `import`");
    accept("sessions|--limit|3");
    accept("sessions|export|--all|--json");
    refuse("sessions|export|abcd|--format|md|--json", "--format and --json cannot be combined");
    refuse("models|info|x|--sha256|aa", "`pippin models add` or `pull`");
    refuse("models|-c|512", "pippin models info");
    accept("models|info|starter|-c|512|--kv-type|f16");
    refuse("lora|list|--rank|4", "pippin lora train");
    refuse("lora|info|x|-o|y", "pippin lora train");
    accept("lora|info|x|-t|1");
    refuse("lora|train|x|-o|y|--val|a|--val-share|0.2", "--val and --val-share cannot be combined");
    refuse("lora|train|x|-o|y|--steps|4|--epochs|2", "--steps and --epochs cannot be combined");
    refuse("logits|--ids|1,2|-f|x|-o|y", "--ids and --file cannot be combined; give one of them");
    refuse("run|--raw|-p|x|--thinking|off", "--raw and --thinking cannot be combined: a raw prompt uses no chat "
                                            "template");
    refuse("run|--raw|-p|x|--save", "--raw and --save cannot be combined: a raw prompt has no turns");
    refuse("chat|--temporary|--resume|abcd", "--temporary and --resume cannot be combined: a temporary chat starts "
                                             "empty");
    refuse("run|-p|x|--no-draft|--draft-always", "--no-draft and --draft-always cannot be combined");
    refuse("run|-p|x|--drafter|lookup|--no-draft",
           "--no-draft and --drafter cannot be combined"); /* --drafter chooses the draft */
    accept("run|-p|x|-md|small.gguf|--draft-max|4|--no-draft"); /* even with a draft model at hand */
    refuse("run|-p|x|--drafter|lookup|-md|small.gguf", "--model-draft is for a draft model");
    accept("chat|--drafter|lookup|-md|small.gguf");
    refuse("bench|--threshold|3", "add that, or leave --threshold out");
    refuse("bench|--write|x.gguf", "--shape");
    refuse("bench|--type|q4_0", "--shape");
    accept("bench|micro|--type|q4_0");
    refuse("bench|start|--depth|64", "`kernels`, `memory`, `micro`, `resume` or `all`");
    accept("bench|start|resume|--depth|64");
    accept("bench|--depth|64|--rows|2");
    refuse("bench|-md|small.gguf", "pippin bench draft");
    refuse("bench|-m|x|--shape|stories-15m", "--shape and --model cannot be combined");
    refuse("bench|--compare|a|b|-n|4", "--compare and --n-gen cannot be combined: --compare measures nothing");
    accept("bench|--compare|a|b|--threshold|3%|--json");
    refuse("imatrix|--in-file|a|--chunks|3", "add -f FILE");
    accept("imatrix|--in-file|a|--chunks|3|-f|x");
    write_conf("[model]\nquant = q4_0\nctx-size = 512\n[sampling]\nseed = 3\n");
    accept("run|-p|x|--imatrix|im.gguf"); /* a configuration may set the type, */
    accept("models|list");                /* which applies to all commands */
    accept("lora|list");
    remove_conf();
}

static void precedence(void **state)
{
    (void)state;
    write_conf("# mine\n[model]\nmodel = conf.gguf\nmodel-draft = draft.gguf\nthreads = 3\nctx-size = 100\n"
               "lora = c.gguf\ndraft-lora = e.gguf:0.5\nno-draft = off\n"
               "[sampling]\ntemp = 0.5\nstop = a\nstop = b\n[ui]\ntheme = light\nno-color = yes\n");
    accept("chat");
    assert_string_equal(o.model, "conf.gguf");
    assert_string_equal(o.draft, "draft.gguf");
    assert_string_equal(o.draft_lora[0].path, "e.gguf");
    assert_int_equal(o.threads, 3);
    assert_true(o.sampling.temp == 0.5f);
    assert_string_equal(o.theme, "light");
    assert_true(o.no_color && !o.no_draft);
    assert_int_equal(o.n_stops, 2);
    accept("tokenize"); /* options of other commands are ignored in pippin.conf */
    assert_string_equal(o.model, "conf.gguf");
    assert_null(o.draft);

    setenv("LLAMA_ARG_THREADS", "5", 1);
    setenv("LLAMA_ARG_CTX_SIZE", "200", 1);
    accept("run|--ctx-size|300|--lora|d.gguf|--stop|c");
    assert_int_equal(o.threads, 5);
    assert_int_equal(o.ctx_size, 300);
    assert_int_equal(o.n_lora, 1); /* a list from a source of higher priority replaces it */
    assert_string_equal(o.lora[0].path, "d.gguf");
    assert_int_equal(o.n_stops, 1);
    accept("run|-m|other.gguf"); /* the draft in pippin.conf is for the model there */
    assert_null(o.draft);
    assert_int_equal(o.n_draft_lora, 0);
    accept("run|-m|other.gguf|-md|x");
    assert_string_equal(o.draft, "x");
    setenv("LLAMA_ARG_MODEL", "env.gguf", 1);
    accept("run");
    assert_string_equal(o.model, "env.gguf");
    setenv("LLAMA_ARG_THREADS", "many", 1);
    refuse("run", "LLAMA_ARG_THREADS");
    unsetenv("LLAMA_ARG_THREADS");
    unsetenv("LLAMA_ARG_CTX_SIZE");
    unsetenv("LLAMA_ARG_MODEL");

    write_conf("[sampling]\ntmep = 1\n");
    refuse("run", "pippin.conf:2: tmep is unknown in [sampling]; did you mean temp?");
    write_conf("[sampling]\ntemperature = 1\n");
    refuse("run", "pippin.conf:2: temperature is unknown in [sampling]; did you mean temp?");
    write_conf("[model]\ntemp = 1\n");
    refuse("run", "pippin.conf:2: temp is unknown in [model]; it belongs in [sampling]");
    accept("run|--help"); /* --help works with a faulty configuration, too */
    write_conf("\n\n[sampling]\ntemp = warm\n");
    refuse("run", "pippin.conf:4: temp expects a number");
    write_conf("[samplin]\ntemp = 1\n");
    refuse("run", "not in a known section");
    write_conf("[ui]\nplain = perhaps\n");
    refuse("chat", "yes or no");
    remove_conf();
    setenv("NO_COLOR", "", 1);
    accept("chat");
    assert_false(o.no_color);
    setenv("NO_COLOR", "1", 1);
    accept("chat");
    assert_true(o.no_color);
    unsetenv("NO_COLOR");
}

static void conf_format(void **state)
{
    (void)state;
    const char *name, *system;
    struct pp_buf b = {0};
    pp_buf_str(&b, "[persona Pirate]\nsystem = You are a pirate.\n    Answer in\n  rhymes.\n\n"
                   "[persona Long one]\nsystem = ");
    size_t begin = b.len;
    for (int i = 0; i < 400; i++)
        pp_buf_fmt(&b, "%s%s%d", i ? " " : "", i % 7 ? "wörd" : "#tag", i);
    char *wanted = pp_strdup(b.data + begin);
    pp_buf_str(&b, "\n# a comment that is longer than inih's lines: ");
    for (int i = 0; i < 60; i++)
        pp_buf_str(&b, "x = y ");
    pp_buf_str(&b, "\n[ui]\ntheme = mono ; with a remark\n");
    write_conf(b.data);
    accept("chat");
    assert_string_equal(o.theme, "mono");
    assert_true(pp_config_persona(o.config, 0, &name, &system));
    assert_string_equal(name, "Pirate");
    assert_string_equal(system, "You are a pirate.\nAnswer in\nrhymes.");
    assert_true(pp_config_persona(o.config, 1, &name, &system));
    assert_string_equal(name, "Long one");
    assert_string_equal(system, wanted);
    assert_false(pp_config_persona(o.config, 2, &name, &system));
    const struct pp_config_entry *theme = NULL;
    for (size_t i = 0; i < pp_config_count(o.config) && !theme; i++)
        theme = strcmp(pp_config_at(o.config, i)->section, "ui") == 0 ? pp_config_at(o.config, i) : NULL;
    assert_non_null(theme);
    assert_string_equal(theme->key, "theme");
    assert_string_equal(theme->value, "mono");
    assert_int_equal(pp_config_count(NULL), 0);
    pp_free(wanted);

    pp_buf_str(&b, "what is this\n");
    int lines = 0;
    for (size_t i = 0; i < b.len; i++)
        lines += b.data[i] == '\n';
    char at[64];
    snprintf(at, sizeof at, "pippin.conf:%d:", lines);
    write_conf(b.data);
    assert_int_equal(parse("chat"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, at)); /* the right line number, although inih passes long lines in pieces */
    pp_buf_clear(&b);

    pp_buf_str(&b, "[ui]\ntheme = ");
    for (int i = 0; i < 500; i++)
        pp_buf_char(&b, ' ');
    pp_buf_str(&b, "x\n");
    write_conf(b.data);
    assert_int_equal(parse("chat"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "pippin.conf:2: the line is too long"));
    pp_buf_free(&b);

    write_conf("[persona 0123456789 123456789 123456789 123456789]\nsystem = x\n");
    accept("chat");
    write_conf("[persona 0123456789 123456789 123456789 1234567890]\nsystem = x\n"); /* longer than what could be
                                                                                        stored */
    refuse("chat", "pippin.conf:2: system: the name of a persona must have");
    write_conf("[persona Pirate]\nsystem = M\374ller\n"); /* refused like /system in the chat */
    refuse("chat", "pippin.conf:2: system: the text is not valid UTF-8");
    write_conf("[sampling]\nsystem = M\374ller\n");
    refuse("run|-p|x", "pippin.conf:2: system: the text is not valid UTF-8");
    remove_conf();
    refuse("run|-p|x|-sys|M\374ller", "-sys: the text is not valid UTF-8");
    accept("run|-p|x|-sys|M\303\274ller");
    write_conf("[persona ]\nsystem = x\n");
    refuse("chat", "the name of a persona must have");
    write_conf("[persona None]\nsystem = x\n");
    refuse("chat", "choose another name");
    write_conf("[persona M\374ller]\nsystem = x\n");
    refuse("chat", "pippin.conf:2: system: the name of the persona is not valid UTF-8");
    write_conf("[sampling]\n= 3\n");
    refuse("run", "pippin.conf:2: the name before the value is missing");
    char *deep = pp_strdup(paths.config), folder[300]; /* a path that is longer than an error's text */
    snprintf(folder, sizeof folder, "%s/%0200d", deep, 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(paths.config, sizeof paths.config, "%s", folder);
    write_conf("[sampling]\ntemp = warm\n");
    refuse("run", "pippin.conf:2: temp expects a number from 0 to 100");
    remove_conf();
    assert_int_equal(rmdir(folder), 0);
    snprintf(paths.config, sizeof paths.config, "%s", deep);
    pp_free(deep);

    struct pp_config *c;
    char path[600];
    snprintf(path, sizeof path, "%s/pippin.conf", paths.config);
    assert_ok(pp_write_file(path, "a\0b", 3, 0600, &err), err);
    assert_int_equal(pp_config_load(path, &c, &err), PP_ERR_FORMAT);
    remove_conf();
    assert_ok(pp_config_load(path, &c, &err), err);
    assert_int_equal(pp_config_count(c), 0);
    pp_config_free(c);
}

/* Any content of the file gives settings or an error, and (under ASan) no memory error. */
static void conf_of_noise(void **state)
{
    (void)state;
    static const char alphabet[] = "[]=;# \t\n\r\"ab\xff\xef\xbb\xbf:system";
    char path[600], text[1500];
    struct pp_config *c;
    assert_ok(pp_make_dirs(paths.config, &err), err);
    snprintf(path, sizeof path, "%s/noise.conf", paths.config);
    srand(11);
    for (int round = 0; round < 400; round++) {
        size_t n = (size_t)rand() % sizeof text;
        for (size_t i = 0; i < n; i++) /* long stretches of letters, beyond the length of inih's line buffer */
            text[i] = rand() % (round % 40 + 2) ? 'w' : alphabet[(size_t)rand() % (sizeof alphabet - 1)];
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, n, f), n);
        fclose(f);
        enum pp_code code = pp_config_load(path, &c, &err);
        assert_true(code == PP_OK || code == PP_ERR_FORMAT);
        for (size_t i = 0; i < pp_config_count(c); i++)
            assert_true(pp_config_at(c, i)->line >= 1);
        pp_config_free(c);
    }
}

/* --- the table, help, completion --------------------------------------------------------------------------------- */

/* Two options may share a spelling only if no command knows both, and only if both take a value or neither does. */
static void table_is_consistent(void **state)
{
    (void)state;
    for (size_t i = 0; i < pp_n_option_specs; i++) {
        const struct pp_option *a = &pp_option_specs[i];
        assert_true(a->name && a->help && a->set && a->commands);
        assert_false(a->env && !a->arg);
        for (size_t k = 0; k < i; k++) {
            const struct pp_option *b = &pp_option_specs[k];
            assert_string_not_equal(a->name, b->name);
            const char *others = a->others, *word;
            size_t n;
            while (others && pp_next_word(&others, &word, &n)) {
                assert_int_equal(word[0], '-');
                if (!pp_word_in(b->others, word, n))
                    continue;
                assert_int_equal(a->commands & b->commands, 0);
                assert_int_equal(!a->arg, !b->arg);
            }
        }
        for (size_t k = 0; k < pp_n_foreign_options; k++) {
            const char *others = a->others, *word;
            size_t len;
            while (others && pp_next_word(&others, &word, &len))
                assert_false(pp_word_in(pp_foreign_options[k].names, word, len));
            char dashed[64];
            int n = snprintf(dashed, sizeof dashed, "--%s", a->name);
            assert_false(pp_word_in(pp_foreign_options[k].names, dashed, (size_t)n));
        }
    }
}

static void foreign_words_are_foreign(void **state)
{
    (void)state;
    for (size_t i = 0; i < pp_n_foreign_commands; i++)
        for (int k = 0; k < PP_CMD_COUNT; k++)
            assert_false(pp_word_in(pp_foreign_commands[i].names, pp_command_specs[k].name,
                                    strlen(pp_command_specs[k].name)));
}

static char *printed(void (*print)(FILE *, const char *), const char *arg)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    print(f, arg);
    fclose(f);
    return text;
}

static void print_completion(FILE *out, const char *shell)
{
    assert_true(pp_options_completion(out, shell));
}

static void help_texts(void **state)
{
    (void)state;
    char *text = printed(pp_options_help, NULL);
    for (int i = 0; i < PP_CMD_COUNT; i++)
        assert_non_null(strstr(text, pp_command_specs[i].help));
    assert_non_null(strstr(text, "-m, --model MODEL"));
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        assert_in_range(strcspn(line, "\n"), 0, 80);
    free(text);
    text = printed(pp_options_help, "perplexity");
    assert_non_null(strstr(text, "--chunks N"));
    assert_null(strstr(text, "--temp"));
    free(text);
    text = printed(pp_options_help, "sessions");
    assert_non_null(strstr(text, "forget ID"));
    free(text);
    text = printed(pp_options_help, "quantize"); /* the help to which an error about another type refers */
    for (size_t i = 0; pp_quantize_type(i); i++)
        assert_non_null(strstr(text, pp_quantize_type(i)));
    free(text);
}

/* Runs the script in bash, asks for the completions of a line, and compares. */
static void bash_completes(const char *script, const char *words, const char *expected)
{
    char command[900], got[4000] = "";
    snprintf(command, sizeof command,
             "bash --norc -c 'source %s; ids() { printf \"0a12\\tA title\\n0a34\\tAnother one\\n\"; };"
             " names() { printf \"bard\\tx\\nbarista\\ty\\nother\\tz\\nqwen:4b\\t-\\nqwen:8b:q4\\t-\\n\"; };"
             " COMP_WORDS=(%s); COMP_LINE=\"${COMP_WORDS[*]}\";"
             " COMP_LINE=${COMP_LINE// :/:} COMP_LINE=${COMP_LINE//: /:};"
             " COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pippin;"
             " echo \"${COMPREPLY[*]}\"'", script, words);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    got[n] = 0;
    assert_int_equal(pclose(f), 0);
    got[strcspn(got, "\n")] = 0;
    assert_string_equal(got, expected);
}

static void completion(void **state)
{
    (void)state;
    static const char *const shells[] = {"bash", "zsh", "fish"};
    for (size_t i = 0; i < 3; i++) {
        char *text = printed(print_completion, shells[i]);
        for (size_t k = 0; k < pp_n_option_specs; k++)
            assert_non_null(strstr(text, pp_option_specs[k].name));
        if (i == 0) {
            char path[300];
            snprintf(path, sizeof path, "%s/pippin.bash", test_tmpdir());
            assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
            bash_completes(path, "pippin sess", "sessions");
            bash_completes(path, "pippin sessions fo", "forget");
            bash_completes(path, "pippin perplexity --chu", "--chunks");
            bash_completes(path, "pippin run --chu", "");
            bash_completes(path, "pippin run --kv-type f", "f16 f32 fp8");
            bash_completes(path, "pippin --comp", "--completion");
            bash_completes(path, "ids run --resume 0a", "0a12  A title 0a34  Another one");
            bash_completes(path, "ids sessions show 0a1", "0a12");
            bash_completes(path, "names run --lora ba", "bard barista");
            bash_completes(path, "names models info bar", "bard barista");
            bash_completes(path, "names run -m qw", "qwen:4b qwen:8b:q4"); /* bash splits words at colons */
            bash_completes(path, "names run -m qwen : 8", "8b:q4");
            bash_completes(path, "names run --model = qwen : 8b : q", "q4");
            bash_completes(path, "names run -m qwen :", "4b 8b:q4");
            bash_completes(path, "names run -m qwen : 8b --see", "--seed");
        }
        free(text);
    }
    assert_false(pp_options_completion(stdout, "tcsh"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* Settings that a conversation remembers give way to the command line and override everything else. */
static void residual_mixture(void **state)
{
    (void)state;
    accept("run|--top-k|7|-p|x");
    assert_true(pp_options_given(&o, "top-k") && pp_options_given(&o, "prompt"));
    assert_false(pp_options_given(&o, "temp") || pp_options_given(&o, "p"));
    assert_ok(pp_options_recall(&o, "temp", "0.20000000000000001", &err), err);
    assert_ok(pp_options_recall(&o, "top-k", "3", &err), err);
    assert_ok(pp_options_recall(&o, "n", "12", &err), err);
    assert_ok(pp_options_recall(&o, "seed", "9007199254740991", &err), err);
    assert_true(o.sampling.temp == 0.2f);
    assert_int_equal(o.sampling.top_k, 7);
    assert_int_equal(o.n_predict, 12);
    assert_true(o.seed_given && o.sampling.seed == 9007199254740991);
    assert_int_equal(pp_options_recall(&o, "top-p", "3", &err), PP_ERR_USAGE);
    assert_int_equal(pp_options_recall(&o, "prompt", "y", &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_options_recall(&o, "", "y", &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_options_recall(&o, "use-draft", "1", &err), PP_ERR_NOT_FOUND);
    static const char *const others[] = {"model", "stop", "system", "persona", "logit-bias", "chat-template-file",
                                         "lora", "threads", "ctx-size", "kv-memory", "overflow", "reasoning", "bell"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(pp_options_recall(&o, others[i], "7", &err), PP_ERR_NOT_FOUND);
    assert_ok(pp_options_recall(&o, "draft-max", "7", &err), err);
    assert_int_equal(o.draft_max, 7);
    assert_true(!*o.model && !o.n_stops && !o.system && !o.threads && !o.ctx_size);
    assert_string_equal(o.prompt, "x");
    assert_true(pp_n_option_specs <= PP_MAX_OPTIONS);
}

TEST_GROUP(options)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults),   TEST(values),           TEST(lists),           TEST(strict_numbers),
        TEST(commands),   TEST(no_command_word),  TEST(many_words),      TEST(unknown_options),
        TEST(help_and_version), TEST(idle_options),
        TEST(precedence), TEST(conf_format),      TEST(conf_of_noise),   TEST(table_is_consistent),
        TEST(foreign_words_are_foreign),
        TEST(help_texts), TEST(completion),       TEST(residual_mixture),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
