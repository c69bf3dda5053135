#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/safetensors.h"
#include "engine/text.h"
#include "tests/support.h"

/* Opens a file with this header and n bytes of data, in memory of exactly its size. */
static enum pp_code open_text(const char *header, size_t n, struct pp_error *err)
{
    struct pp_safetensors *s;
    size_t length = strlen(header);
    uint8_t *file = malloc(8 + length + n);
    assert_non_null(file);
    for (unsigned i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    memset(file + 8 + length, 1, n);
    enum pp_code code = pp_safetensors_open_memory(file, 8 + length + n, "test file", &s, err);
    if (code == PP_OK) {
        unsigned sum = 0;
        for (size_t i = 0; i < pp_safetensors_n(s); i++)
            for (size_t k = 0; k < pp_safetensors_at(s, i)->size; k++)
                sum += ((const uint8_t *)pp_safetensors_at(s, i)->data)[k];
        assert_true(sum <= n);
    } else {
        assert_null(s);
    }
    pp_safetensors_close(s);
    free(file);
    return code;
}

static void test_hostile_headers(void **state)
{
    static const struct {
        enum pp_code code;
        const char *header;
    } cases[] = {
        {PP_OK, "{}"},
        {PP_OK, "{\"__metadata__\":{\"format\":\"pt\"}}"},
        {PP_OK, "{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}"},
        {PP_OK, "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[3,4]}}"},
        {PP_OK, "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[0,0]},"
                "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"},
        {PP_OK, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,2,2,2,2],\"data_offsets\":[0,16]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,1,1,2,2,2],\"data_offsets\":[0,16]}}"},
        {PP_ERR_FORMAT, ""},
        {PP_ERR_FORMAT, "[]"},
        {PP_OK, "{} \n\t\r "},
        {PP_ERR_FORMAT, "{"},
        {PP_ERR_FORMAT, "{}}"},
        {PP_ERR_FORMAT, "{} \"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}"},
        {PP_ERR_FORMAT, "{\"a\":1}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[17],\"data_offsets\":[0,17]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{\"x\":0,\"y\":4,\"z\":1}}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":\"0,4\"}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2.5],\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1e300],\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT,
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[4503599627370496,4503599627370496],\"data_offsets\":[0,0]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}"},
        {PP_ERR_UNSUPPORTED, "{\"a\":{\"dtype\":\"Q3\",\"shape\":[4],\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}"},
        {PP_ERR_FORMAT, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                        "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_error err = {0};
        enum pp_code code = open_text(cases[i].header, 16, &err);
        if (code != cases[i].code)
            fail_msg("%s: wanted code %d, got %d: %s", cases[i].header, (int)cases[i].code, (int)code, err.text);
    }
}

/* If a file is too short, the error says how much is missing, provided that the sizes are plausible. */
static void test_cut_off(void **state)
{
    static const char two[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3000000],\"data_offsets\":[0,3000000]},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[1000000],\"data_offsets\":[3000000,4000000]}}";
    struct pp_safetensors *s;
    struct pp_error err;
    (void)state;
    assert_int_equal(open_text(two, 4000000, &err), PP_OK);
    assert_int_equal(open_text(two, 2500000, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "tensor a lies beyond its end, 1.50 of 4.00 MB (37 %) are missing; download"));
    assert_non_null(strstr(err.text, "pippin models pull"));
    assert_int_equal(open_text(two, 3999999, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "tensor b lies beyond its end, 1 of 4000"));
    assert_non_null(strstr(err.text, " bytes is missing; download"));
    assert_int_equal(open_text(two, 3999990, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "beyond its end, 10 of 4000"));
    assert_non_null(strstr(err.text, " bytes are missing; download"));
    assert_int_equal(open_text("{\"a\":{\"dtype\":\"U8\",\"shape\":[9007199254740991],"
                               "\"data_offsets\":[0,9007199254740991]}}", 8, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "lies beyond the end of the file"));
    assert_int_equal(pp_safetensors_open_memory("\0\0\x10\0\0\0\0\0{\"a\":", 13, "test file", &s, &err),
                     PP_ERR_FORMAT); /* in its header */
    assert_non_null(strstr(err.text, "its header lies beyond its end, 1.05 of 1.05 MB (100 %) are missing"));
}

static void test_truncated_and_flipped(void **state)
{
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                                 "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[6,14]}}  ";
    _Static_assert((sizeof header - 1) % 2 == 0, "BF16 data are aligned");
    _Alignas(8) uint8_t file[8 + sizeof header - 1 + 14] = {(uint8_t)(sizeof header - 1)};
    struct pp_safetensors *s;
    struct pp_error err;
    (void)state;
    memcpy(file + 8, header, sizeof header - 1);
    for (size_t cut = 0; cut < sizeof file; cut++) {
        uint8_t *copy = malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy, file, cut);
        assert_int_not_equal(pp_safetensors_open_memory(copy, cut, "test file", &s, &err), PP_OK);
        free(copy);
    }
    for (size_t i = 0; i < sizeof file; i++)
        for (unsigned bit = 0; bit < 8; bit++) { /* no crash; some flips are harmless */
            file[i] = (uint8_t)(file[i] ^ 1u << bit);
            if (pp_safetensors_open_memory(file, sizeof file, "test file", &s, &err) == PP_OK)
                pp_safetensors_close(s);
            file[i] = (uint8_t)(file[i] ^ 1u << bit);
        }
    assert_ok(pp_safetensors_open_memory(file, sizeof file, "test file", &s, &err), err);
    const struct pp_tensor *a = pp_safetensors_find(s, "a"), *b = pp_safetensors_find(s, "b");
    assert_int_equal(a->ne[0], 3); /* the order of dimensions is reversed */
    assert_int_equal(a->ne[1], 2);
    assert_int_equal(a->type, PP_TYPE_LIMIT);
    assert_string_equal(pp_safetensors_dtype(s, a), "U8");
    assert_int_equal(b->type, PP_TYPE_BF16);
    assert_null(pp_safetensors_find(s, "c"));
    pp_safetensors_close(s);
}

static void test_write(void **state)
{
    static const float x[] = {1, 2, 3, 4, 5, 6}, y[] = {-0.0f};
    struct pp_tensor out[] = {
        {.name = "logits", .type = PP_TYPE_F32, .n_dims = 2, .ne = {3, 2, 1, 1}, .data = x, .size = sizeof x},
        {.name = "a \"name\"", .type = PP_TYPE_F32, .n_dims = 1, .ne = {1, 1, 1, 1}, .data = y, .size = sizeof y},
    };
    struct pp_safetensors *s;
    struct pp_error err;
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/out.safetensors", test_tmpdir());
    assert_ok(pp_safetensors_write(path, out, 2, &err), err);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    assert_int_equal(pp_safetensors_n(s), 2);
    const struct pp_tensor *t = pp_safetensors_find(s, "logits");
    assert_int_equal(t->ne[0], 3);
    assert_int_equal(t->ne[1], 2);
    assert_memory_equal(t->data, x, sizeof x);
    assert_memory_equal(pp_safetensors_find(s, "a \"name\"")->data, y, sizeof y);
    pp_safetensors_close(s);
    const uint16_t half[2] = {0x3c00, 0xc000};
    out[1].type = PP_TYPE_BF16;
    out[1].ne[0] = 2;
    out[1].data = half;
    out[1].size = sizeof half;
    assert_ok(pp_safetensors_write(path, out, 2, &err), err);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    t = pp_safetensors_find(s, "a \"name\"");
    assert_string_equal(pp_safetensors_dtype(s, t), "BF16");
    assert_memory_equal(t->data, half, sizeof half);
    pp_safetensors_close(s);
    out[1].type = PP_TYPE_Q8_0;
    assert_int_equal(pp_safetensors_write(path, out, 2, &err), PP_ERR_USAGE);
}

#define BYTES(s) s, sizeof(s) - 1

/* Files that downloads leave in place of a model, and models in formats that are not supported: the error says what the
 * file is, and what to do. */
static void test_other_files(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says, *and_says;
    } cases[] = {
        {BYTES(""), "is empty", "download it again"},
        {BYTES("version https://git-lfs.github.com/spec/v1\nsize 9\n"), "Git LFS pointer", "git lfs pull"},
        {BYTES("\n <!DOCTYPE html><html><body>Access to this model is restricted"), "web page", "login"},
        {BYTES("<html>401"), "web page", "login"},
        {BYTES("PK\003\004 and what an archive holds"), "zip archive", "safetensors or GGUF"},
        {BYTES("\x80\002} and what a pickle says"), "PyTorch", "safetensors or GGUF"},
        {BYTES("tjgg\001\000\000\000 and much more, up to here"), "before GGUF", "use the model in GGUF"},
        {BYTES("\x1f\x8b\010 and what is packed in it"), "compressed", "unpack it"},
        {BYTES("\x28\xb5\x2f\xfd and what is packed in it"), "compressed", "unpack it"},
    };
    struct pp_error err;
    struct pp_gguf *g;
    struct pp_safetensors *s;
    struct pp_tokenizer *tokenizer;
    struct cJSON *json;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) { /* as files that are read as a whole */
        assert_ok(pp_write_file(test_path("other.json"), cases[i].bytes, cases[i].n, 0600, &err), err);
        assert_int_equal(pp_json_read(test_tmpdir(), "other.json", &json, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_int_equal(pp_tokenizer_open(test_path("other.json"), &tokenizer, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, cases[i].says));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = 0; kind < 2; kind++) {
            const enum pp_code code = kind ? pp_gguf_open_memory(cases[i].bytes, cases[i].n, "it", &g, &err)
                                           : pp_safetensors_open_memory(cases[i].bytes, cases[i].n, "it", &s, &err);
            assert_int_equal(code, PP_ERR_FORMAT);
            assert_non_null(strstr(err.text, cases[i].says));
            assert_non_null(strstr(err.text, cases[i].and_says));
        }
    /* each format opened as the other */
    assert_int_equal(pp_gguf_open_memory(BYTES("\016\0\0\0\0\0\0\0{\"a\":{}}      and data"), "it", &g, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "give the folder that contains it"));
    assert_int_equal(pp_safetensors_open_memory(BYTES("GGUF\003\0\0\0 and what a header holds"), "it", &s, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "a GGUF file"));
    /* a file in neither format */
    assert_int_equal(pp_gguf_open_memory(BYTES("a text, which goes on for longer than a header"), "it", &g, &err),
                     PP_ERR_FORMAT);
    assert_string_equal(err.text, "it is not a GGUF file");
}

TEST_GROUP(safetensors)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_truncated_and_flipped),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_other_files),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
