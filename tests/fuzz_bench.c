/* fuzz_bench.c - compares two results of `pippin bench --json`. Input: a byte that says whether the comparison is
 * printed as JSON, the first result preceded by its length, the second. */
#include <stdio.h>
#include <stdlib.h>

#include "src/cmd_bench.h"
#include "tests/hostile.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (!freopen("/dev/null", "w", stdout))
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_options o = {.n_args = 1, .json = hostile_byte(&in) & 1};
    struct pp_error err;
    bool slower;
    size_t n;
    o.bench.threshold = 5;
    const uint8_t *old = hostile_piece(&in, &n);
    o.bench.compare = hostile_file(0, old, n);
    o.args[0] = hostile_file(1, in.data, in.size);
    (void)bench_compare(&o, &slower, &err);
    return 0;
}
