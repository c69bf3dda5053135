/* fuzz_import.c - the bytes are a file of conversations: what is read is written again, and then stays as it is. */
#include <stdlib.h>
#include <string.h>

#include "src/export.h"
#include "src/import.h"
#include "tests/hostile.h"

static struct pp_buf text_of(const struct pp_import *im, enum pp_export_form form)
{
    struct pp_export x = {.form = form, .several = true};
    struct pp_error err;
    for (size_t i = 0; i < im->n; i++)
        pp_export_add(&x, &im->list[i]);
    if (pp_export_end(&x, &err))
        abort();
    return x.out;
}

/* Nothing that a terminal obeys. */
static void check_harmless(const struct pp_buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        const unsigned char c = (unsigned char)b->data[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
            abort();
    }
}

static void check_again(const struct pp_import *im, enum pp_export_form form)
{
    struct pp_import again;
    struct pp_error err;
    struct pp_buf once = text_of(im, form);
    check_harmless(&once);
    if (pp_import_read(once.data, once.len, &again, &err) || again.n != im->n)
        abort();
    struct pp_buf twice = text_of(&again, form);
    if (once.len != twice.len || memcmp(once.data, twice.data, once.len) != 0)
        abort();
    pp_buf_free(&once);
    pp_buf_free(&twice);
    pp_import_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_import im;
    struct pp_error err;
    if (pp_import_read((const char *)data, size, &im, &err))
        return 0;
    check_again(&im, PP_EXPORT_JSON);
    check_again(&im, PP_EXPORT_JSONL);
    struct pp_buf text = text_of(&im, PP_EXPORT_MARKDOWN);
    check_harmless(&text);
    pp_buf_free(&text);
    pp_import_free(&im);
    return 0;
}
