/* cmd_bench.h - shared by the files of `pippin bench`. Everything belongs to the one thread that runs the command. */
#ifndef PP_SRC_CMD_BENCH_H
#define PP_SRC_CMD_BENCH_H

#include "engine/bench.h"
#include "src/cmd_common.h"

enum { BENCH_MAX_LIST = 16 };

/* --- results ---------------------------------------------------------------------------------------------------- */

/* One measurement with its samples. What does not apply is -1 (depth, rows) or 0. */
struct bench_result {
    char name[96];          /* unique, and the same in every run with the same options: "decode 32 @ 512" */
    const char *what;       /* "prefill", "decode", "rows", ...; a string literal, as is unit */
    const char *unit;       /* "tokens/s", "ms", ... */
    bool more_is_better;
    int64_t tokens, depth;
    int rows, threads;
    const char *kv_type;    /* or NULL */
    double ratio;           /* rows: relative to the time of one row */
    double read_bps;        /* bytes per second that had to be read, at the median; 0: not computed */
    double roof_bps;        /* bandwidth of the read test with the same number of threads */
    double accepted;        /* acceptance rate of drafts; 0: none, or not reported */
    double formula;         /* tokens/s by the formula, from measured costs and a given acceptance rate; 0: not
                             * computed */
    double *samples;        /* [n] */
    int n;
};

struct bench_summary {
    double median, least, most, deviation;
};

struct bench_kernels {      /* a table of times by kernel */
    char name[96];
    struct pp_profile profile;
};

struct bench_memory {
    uint64_t rss, peak, anonymous, mapped; /* of the process; mapped: file pages in it */
    uint64_t model, engine, kv_used, kv_total;
    uint64_t work;                         /* the part of `engine` that is not weights */
};

struct bench_report {
    struct bench_result *results; /* [n] */
    size_t n, cap;
    struct bench_kernels *kernels; /* [n_kernels] */
    size_t n_kernels, cap_kernels;
    struct bench_memory memory;   /* rss 0: not measured */
    double roof_bps;              /* for the first engine's threads; 0: not measured */
    uint64_t engine_bytes;        /* packed weights and work space of the first engine */
    uint64_t token_bytes;         /* bytes of weights that decoding a token reads; 0: unknown */
    double choose_us;             /* median time to sample a token */
    bool interleaved;             /* all measurements were interleaved */
    int64_t full_layers;          /* the number of layers of the shape if the model has fewer; 0: it has all */
    int most_threads;             /* the number of threads, if more were asked for; else 0 */
    double micro_roof_bps;        /* the read test by one thread, for products alone; 0: not measured */
};

/* Adds a result with room for `repetitions` samples; NULL: out of memory. The pointer is valid until the next one is
 * added: keep the index. */
struct bench_result *bench_add(struct bench_report *r, int repetitions);
void bench_report_free(struct bench_report *r);
/* False: there are no samples, or memory runs out. */
bool bench_summarise(const double *samples, int n, struct bench_summary *out);

/* --- the command ------------------------------------------------------------------------------------------------ */

enum bench_what {
    BENCH_QUICK = 1, BENCH_DEPTH = 2, BENCH_ROWS = 4, BENCH_THREADS = 8, BENCH_KV = 16, BENCH_KERNELS = 32,
    BENCH_MEMORY = 64, BENCH_MICRO = 128, BENCH_START = 256, BENCH_TOKENIZER = 512, BENCH_TRACE = 1024,
    BENCH_RESUME = 2048, BENCH_SESSIONS = 4096, BENCH_SEVERAL = 8192, BENCH_LORA = 16384,
    BENCH_DRAFT = 32768,
    BENCH_PASSES = 127, /* those that bench_measure handles */
};

struct bench {
    const struct pp_options *o;
    const struct pp_paths *paths;
    const struct pp_cancel *cancel;
    unsigned what;                     /* enum bench_what */
    struct pp_cli_bar bar;

    char path[1024];
    bool temporary;                    /* the model is a random one, deleted at the end */
    struct pp_model *model;
    struct pp_tokenizer *tokenizer;    /* without a model, if only a tokenizer is needed */
    struct pp_adapter *adapters[PP_MAX_LORA_OPTIONS];
    struct pp_adapter_use uses[PP_MAX_LORA_OPTIONS];
    int n_adapters;
    int64_t n_prompt, n_gen;
    int repetitions;
    int64_t n_depths, depths[BENCH_MAX_LIST];   /* none: prefill at 0, decode after the prompt */
    int64_t n_rows, rows[BENCH_MAX_LIST];
    int64_t n_threads, threads[BENCH_MAX_LIST];
    int64_t n_kv_types, kv_types[BENCH_MAX_LIST];
    char kernels_name[16];             /* the set of kernels in use */
    struct bench_report report;
};

/* Shows the bar for the current measurement at once. */
void bench_show(struct bench *b, const char *what, uint64_t done, uint64_t total);
/* The same as a pp_progress callback while a prompt is processed; user: the struct bench. */
void bench_show_prompt(void *user, uint64_t done, uint64_t total);

/* cmd_bench_measure.c: passes of one model */
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

/* A file name for this process in TMPDIR or /tmp. */
void bench_temporary(char *path, size_t size, const char *ending);

/* cmd_bench_compare.c: --compare OLD NEW. *slower: something is, beyond noise and threshold. */
enum pp_code bench_compare(const struct pp_options *o, bool *slower, struct pp_error *err);

/* cmd_bench_report.c */
void bench_print_text(const struct bench *b);
void bench_print_json(const struct bench *b);

#endif
