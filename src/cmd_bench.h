/* cmd_bench.h - what the files of `pippin bench` share. Everything belongs to the one thread that runs the command. */
#ifndef PP_SRC_CMD_BENCH_H
#define PP_SRC_CMD_BENCH_H

#include "engine/bench.h"
#include "src/cmd_common.h"

enum { BENCH_MAX_LIST = 16 };

/* --- results ---------------------------------------------------------------------------------------------------- */

/* One figure, measured several times. What does not apply is -1 (depth, rows) or 0. */
struct bench_result {
    char name[96];          /* unique in a run, the same in every run with the same options: "decode 32 @ 512" */
    const char *what;       /* "prefill", "decode", "rows", ...; a literal, as is unit */
    const char *unit;       /* "tokens/s", "ms", ... */
    bool more_is_better;
    int64_t tokens, depth;
    int rows, threads;
    const char *kv_type;    /* or NULL */
    double ratio;           /* rows: to one row's time */
    double read_bps;        /* bytes a second that it had to read, at the median; 0: not told */
    double roof_bps;        /* what the read test reached with as many threads */
    double accepted;        /* of guesses of the answer: the share that stood; 0: none, or not told */
    double formula;         /* tokens/s by measured costs and a given acceptance; 0: not told */
    double *samples;        /* [n] */
    int n;
};

struct bench_summary {
    double median, least, most, deviation;
};

struct bench_kernels {      /* a table of where the time went */
    char name[96];
    struct pp_profile profile;
};

struct bench_memory {
    uint64_t rss, peak, anonymous, mapped; /* of the process; mapped: pages of files in it */
    uint64_t model, engine, kv_used, kv_total;
    uint64_t work;                         /* of `engine`: what are no weights */
};

struct bench_report {
    struct bench_result *results; /* [n] */
    size_t n, cap;
    struct bench_kernels *kernels; /* [n_kernels] */
    size_t n_kernels, cap_kernels;
    struct bench_memory memory;   /* rss 0: not asked for */
    double roof_bps;              /* of the first engine's threads; 0: not measured */
    uint64_t engine_bytes;        /* packed weights and work space of the first engine */
    uint64_t token_bytes;         /* weights that a token of decode reads; 0: not known */
    double choose_us;             /* to choose a token, the median */
    bool interleaved;             /* everything was measured in turn */
    int64_t full_layers;          /* a shape's layers, of which the model has only some; 0: all */
};

/* A new result with room for `repetitions` samples; NULL: out of memory. Valid until the next one is added: keep its
 * index. */
struct bench_result *bench_add(struct bench_report *r, int repetitions);
void bench_report_free(struct bench_report *r);
/* False: no samples, or out of memory. */
bool bench_summarise(const double *samples, int n, struct bench_summary *out);

/* --- the command ------------------------------------------------------------------------------------------------ */

enum bench_what {
    BENCH_QUICK = 1, BENCH_DEPTH = 2, BENCH_ROWS = 4, BENCH_THREADS = 8, BENCH_KV = 16, BENCH_KERNELS = 32,
    BENCH_MEMORY = 64, BENCH_MICRO = 128, BENCH_START = 256, BENCH_TOKENIZER = 512, BENCH_TRACE = 1024,
    BENCH_RESUME = 2048, BENCH_SESSIONS = 4096, BENCH_SEVERAL = 8192, BENCH_LORA = 16384,
    BENCH_DRAFT = 32768,
    BENCH_PASSES = 127, /* those that bench_measure does */
};

struct bench {
    const struct pp_options *o;
    const struct pp_paths *paths;
    const struct pp_cancel *cancel;
    unsigned what;                     /* enum bench_what */
    struct pp_cli_bar bar;

    char path[1024];
    bool temporary;                    /* the model is a random one that goes with us */
    struct pp_model *model;
    struct pp_tokenizer *tokenizer;    /* instead of a model, where no more of one is asked */
    struct pp_adapter *adapters[PP_MAX_LORA_OPTIONS];
    struct pp_adapter_use uses[PP_MAX_LORA_OPTIONS];
    int n_adapters;
    int64_t n_prompt, n_gen;
    int repetitions;
    int64_t n_depths, depths[BENCH_MAX_LIST];   /* none: prefill at 0, decode behind the prompt */
    int64_t n_rows, rows[BENCH_MAX_LIST];
    int64_t n_threads, threads[BENCH_MAX_LIST];
    int64_t n_kv_types, kv_types[BENCH_MAX_LIST];
    char kernels_name[16];             /* that were used */
    struct bench_report report;
};

/* The bar of what is being measured, from the first time on: most of it takes longer than a moment. */
void bench_show(struct bench *b, const char *what, uint64_t done, uint64_t total);
/* The same of a prompt, as pp_progress; user: the struct bench. */
void bench_show_prompt(void *user, uint64_t done, uint64_t total);

/* cmd_bench_measure.c: everything that is passes of one model */
enum pp_code bench_measure(struct bench *b, struct pp_error *err);

/* cmd_bench_micro.c, cmd_bench_start.c, cmd_bench_trace.c, cmd_bench_resume.c, cmd_bench_sessions.c */
enum pp_code bench_micro(struct bench *b, struct pp_error *err);
enum pp_code bench_start(struct bench *b, struct pp_error *err);
enum pp_code bench_tokenizer(struct bench *b, struct pp_error *err);
enum pp_code bench_trace(struct bench *b, struct pp_error *err);
enum pp_code bench_resume(struct bench *b, struct pp_error *err);
enum pp_code bench_sessions(struct bench *b, struct pp_error *err); /* needs no model */
enum pp_code bench_lora(struct bench *b, struct pp_error *err); /* cmd_bench_lora.c */
enum pp_code bench_draft(struct bench *b, struct pp_error *err); /* cmd_bench_draft.c */
enum pp_code bench_several(struct bench *b, struct pp_error *err); /* cmd_bench_several.c */

/* A file of this process in TMPDIR, or /tmp. */
void bench_temporary(char *path, size_t size, const char *ending);

/* cmd_bench_compare.c: --compare OLD NEW. *slower: something is, beyond noise and threshold. */
enum pp_code bench_compare(const struct pp_options *o, bool *slower, struct pp_error *err);

/* cmd_bench_report.c */
void bench_print_text(const struct bench *b);
void bench_print_json(const struct bench *b);

#endif
