/* test_export.c - conversations as files: an exported conversation comes back unchanged, files of other programs are
 * imported, and hostile files do no harm. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/export.h"
#include "src/fence.h"
#include "src/import.h"
#include "src/import_store.h"
#include "src/plain_text.h"
#include "tests/backend_fake.h"
#include "tests/support.h"

static struct pp_error err;

static struct pp_store *open_store(void)
{
    struct pp_store *st;
    assert_ok(pp_store_open(":memory:", &st, &err), err);
    return st;
}

static struct pp_message *add(struct pp_conversation *c, enum pp_role role, int64_t parent, const char *text)
{
    struct pp_message *m = &c->messages[c->n++];
    m->role = role;
    m->parent = parent;
    m->content = pp_strdup(text);
    m->content_len = strlen(text);
    m->created = 1700000000 + (int64_t)c->n;
    return m;
}

/* A conversation with two branches from the second question, a stopped answer, and everything that can be stored with
 * messages. */
static void make(struct pp_conversation *c)
{
    *c = (struct pp_conversation){0};
    c->messages = pp_calloc(8, sizeof *c->messages);
    assert_non_null(c->messages);
    c->session = (struct pp_session){
        .title = pp_strdup("A \x1b[31mred\x1b[0m title"), .model = pp_strdup("starter"),
        .template_name = pp_strdup("chatml"), .system = pp_strdup("Be \"kind\"."),
        .adapters = pp_strdup("[{\"path\":\"engine/starter/bard.gguf\",\"scale\":0.5}]"),
        .settings = pp_strdup("{\"temp\":0.25,\"seed\":9007199254740991}"), .created = 1700000000, .created_part = 7,
        .updated = 1700000100, .head = 7,
    };
    add(c, PP_ROLE_USER, 0, "Hello");
    struct pp_message *m = add(c, PP_ROLE_ASSISTANT, 1, "Hi!\n\n```c\nint main(");
    m->state = PP_MESSAGE_CANCELLED;
    m->reasoning = pp_strdup("They greet.\nI greet.");
    m->reasoning_len = strlen(m->reasoning);
    m->model = pp_strdup("Toy (Q4_0)");
    m->adapters = pp_strdup("[{\"path\":\"/a/bard.gguf\",\"scale\":0.5}]");
    m->params = pp_strdup("{\"temp\":0.1,\"seed\":9007199254740993}");
    m->stats = pp_strdup("{\"note\":\"\\\\\\\"12345678901234567890\",\"decode_tps\":12.345,"
                         "\"seed\":18446744073709551615,\"guessed\":[3,-9007199254740993,5]}");
    m->n_tokens = 9;
    add(c, PP_ROLE_USER, 2, "first branch");
    add(c, PP_ROLE_ASSISTANT, 3, "its \xE2\x80\xAE" "answer \xC2\x9B" "2J");
    add(c, PP_ROLE_ASSISTANT, 3, "")->context_from = 2; /* an earlier message */
    m = add(c, PP_ROLE_USER, 2, "second branch");
    m->context_from = 6; /* this message itself, as /compact does */
    m->context_note = pp_strdup("They had said hello.");
    add(c, PP_ROLE_ASSISTANT, 6, "the end")->state = PP_MESSAGE_PARTIAL;
}

static void assert_text(const char *a, const char *b)
{
    assert_string_equal(a ? a : "", b ? b : "");
}

static void assert_same(const struct pp_conversation *a, const struct pp_conversation *b)
{
    assert_text(a->session.title, b->session.title);
    assert_text(a->session.model, b->session.model);
    assert_text(a->session.template_name, b->session.template_name);
    assert_text(a->session.system, b->session.system);
    assert_text(a->session.adapters, b->session.adapters);
    assert_text(a->session.settings, b->session.settings);
    assert_true(a->session.created == b->session.created && a->session.created_part == b->session.created_part);
    assert_true(a->session.updated == b->session.updated);
    assert_true(a->session.head == b->session.head && a->n == b->n);
    for (size_t i = 0; i < a->n; i++) {
        const struct pp_message *x = &a->messages[i], *y = &b->messages[i];
        assert_true(x->role == y->role && x->state == y->state && x->parent == y->parent);
        assert_true(x->created == y->created && x->n_tokens == y->n_tokens && x->context_from == y->context_from);
        assert_text(x->content, y->content);
        assert_text(x->reasoning, y->reasoning);
        assert_text(x->model, y->model);
        assert_text(x->adapters, y->adapters);
        assert_text(x->params, y->params);
        assert_text(x->stats, y->stats);
        assert_text(x->context_note, y->context_note);
    }
}

static struct pp_buf text_of(const struct pp_conversation *c, enum pp_export_form form, int times)
{
    struct pp_export x = {.form = form, .several = times != 1};
    for (int i = 0; i < times; i++)
        pp_export_add(&x, c);
    assert_ok(pp_export_end(&x, &err), err);
    return x.out;
}

static struct pp_import read_text(const char *text)
{
    struct pp_import im;
    assert_ok(pp_import_read(text, strlen(text), &im, &err), err);
    return im;
}

/* No text contains terminal control sequences or characters that change the direction of writing. */
static void assert_harmless(const struct pp_buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        const unsigned char c = (unsigned char)b->data[i];
        assert_true((c >= 0x20 || c == '\n' || c == '\t') && c != 0x7F);
        assert_false(c == 0xC2 && (unsigned char)b->data[i + 1] < 0xA0);
    }
    assert_null(strstr(b->data, "\xE2\x80\xAE"));
}

/* --- there and back --------------------------------------------------------------------------------------------- */

static void comes_back(void **state)
{
    (void)state;
    struct pp_conversation c, again;
    struct pp_store *st = open_store();
    make(&c);
    for (int form = PP_EXPORT_JSON; form <= PP_EXPORT_JSONL; form++) {
        struct pp_buf text = text_of(&c, (enum pp_export_form)form, 1);
        struct pp_import im = read_text(text.data);
        assert_harmless(&text);
        assert_true(im.n == 1 && im.left_out == 0 && im.no_text == 0);
        assert_same(&c, &im.list[0]);
        /* the same through a store, which holds other conversations already */
        assert_ok(pp_conversation_add(st, &im.list[0], &err), err);
        assert_int_equal(strlen(im.list[0].session.key), 16);
        assert_ok(pp_conversation_read(st, im.list[0].session.id, &again, &err), err);
        assert_same(&c, &again);
        struct pp_buf same = text_of(&again, (enum pp_export_form)form, 1);
        assert_string_equal(text.data, same.data);
        pp_buf_free(&same);
        pp_buf_free(&text);
        pp_conversation_clear(&again);
        pp_import_free(&im);
    }
    pp_conversation_clear(&c);
    pp_store_close(st);
}

static void several(void **state)
{
    (void)state;
    struct pp_conversation c;
    make(&c);
    for (int form = PP_EXPORT_JSON; form <= PP_EXPORT_JSONL; form++)
        for (int n = 2; n < 4; n++) {
            struct pp_buf text = text_of(&c, (enum pp_export_form)form, n);
            struct pp_import im = read_text(text.data);
            assert_int_equal(im.n, n);
            assert_same(&c, &im.list[n - 1]);
            pp_import_free(&im);
            pp_buf_free(&text);
        }
    pp_conversation_clear(&c);
}

/* A system prompt in thousands of pieces is joined in linear time. */
static void system_in_pieces(void **state)
{
    enum { MANY = 20000, SECONDS = 10 }; /* a hundredth of this time suffices */
    static const char piece[] = "{\"role\":\"system\",\"content\":\"sixty-nine bytes of what is to be said at the "
                                "beginning of the whole.\"},";
    (void)state;
    struct pp_buf text = {0};
    pp_buf_str(&text, "[");
    for (int i = 0; i < MANY; i++)
        pp_buf_str(&text, piece);
    pp_buf_str(&text, "{\"role\":\"user\",\"content\":\"Hi\"}]");
    const uint64_t began = pp_now_ns();
    struct pp_import im = read_text(pp_buf_cstr(&text));
    assert_true(pp_now_ns() - began < (uint64_t)SECONDS * 1000000000);
    assert_true(im.n == 1 && im.list[0].n == 1);
    assert_int_equal(strlen(im.list[0].session.system), MANY * 71 - 2);
    assert_non_null(strstr(im.list[0].session.system, "whole.\n\nsixty-nine"));
    pp_import_free(&im);
    pp_buf_free(&text);
}

/* Bytes that are not UTF-8, and NULs, become U+FFFD, as on the screen. */
static void bytes_that_are_no_text(void **state)
{
    (void)state;
    struct pp_conversation c = {.messages = pp_calloc(1, sizeof *c.messages)};
    struct pp_message *m = add(&c, PP_ROLE_USER, 0, "a\xFF" "bXc");
    m->content[3] = 0;
    c.session.head = 1;
    struct pp_buf text = text_of(&c, PP_EXPORT_JSON, 1);
    struct pp_import im = read_text(text.data);
    assert_string_equal(im.list[0].messages[0].content, "a\xEF\xBF\xBD" "b\xEF\xBF\xBD" "c");
    pp_import_free(&im);
    pp_buf_free(&text);
    pp_conversation_clear(&c);
    im = read_text("{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\\\\u0000\\u0000\"},"
                   "{\"role\":\"assistant\",\"content\":[{\"text\":\"\\u0000c\"}],\"reasoning\":\"d\\u0000e\"}]}");
    assert_string_equal(im.list[0].messages[0].content, "a\xEF\xBF\xBD" "b\\u0000\xEF\xBF\xBD");
    assert_string_equal(im.list[0].messages[1].content, "\xEF\xBF\xBD" "c");
    assert_string_equal(im.list[0].messages[1].reasoning, "d\xEF\xBF\xBD" "e");
    pp_import_free(&im);
    /* Lone surrogates, which JSON can spell, become U+FFFD as well. */
    im = read_text("{\"messages\":[{\"role\":\"user\",\"content\":"
                   "\"a\\ud83d\\uDE00b\\ud83dc\\ude00d\\ud83d\\ud83d\\ude00\\\\ud83d\\ud83d\\n\"}]}");
    assert_string_equal(im.list[0].messages[0].content,
                        "a\xF0\x9F\x98\x80" "b\xEF\xBF\xBD" "c\xEF\xBF\xBD" "d\xEF\xBF\xBD\xF0\x9F\x98\x80"
                        "\\ud83d\xEF\xBF\xBD\n");
    pp_import_free(&im);
}

/* A file that is not UTF-8 throughout: the valid parts are kept, and the invalid ones counted. */
static void bytes_in_a_file(void **state)
{
    (void)state;
    struct pp_import im = read_text("{\"title\":\"T\374\",\"messages\":["
                                    "{\"role\":\"system\",\"content\":\"S\377\"},"
                                    "{\"role\":\"user\",\"content\":\"M\374ller \xC3\xA9 \\u0000 caf\303\"}]}");
    assert_int_equal(im.no_utf8, 4);
    assert_string_equal(im.list[0].session.title, "T\xEF\xBF\xBD");
    assert_string_equal(im.list[0].session.system, "S\xEF\xBF\xBD");
    assert_string_equal(im.list[0].messages[0].content,
                        "M\xEF\xBF\xBDller \xC3\xA9 \xEF\xBF\xBD caf\xEF\xBF\xBD");
    pp_import_free(&im);
    im = read_text("[{\"role\":\"user\",\"content\":\"\xC3\xA9\"}]");
    assert_int_equal(im.no_utf8, 0);
    pp_import_free(&im);
}

/* A zero byte, as files may contain after a crash, does not end a text unnoticed. */
static void zeros_in_a_file(void **state)
{
    (void)state;
    static const char texts[][64] = {"{\"messages\":[{\"role\":\"user\",\n\"content\":\"aXb\"}]}",
                                     "\n{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}X"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pp_import im;
        char text[64];
        const size_t n = strlen(texts[i]);
        memcpy(text, texts[i], sizeof text);
        *strchr(text, 'X') = 0;
        assert_int_equal(pp_import_read(text, n, &im, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "line 2"));
    }
}

static void markdown(void **state)
{
    (void)state;
    struct pp_conversation c;
    make(&c);
    struct pp_buf text = text_of(&c, PP_EXPORT_MARKDOWN, 1);
    const char *body = strstr(text.data, "## System");
    assert_harmless(&text);
    assert_true(strncmp(text.data, "# A \xE2\x90\x9B[31mred", 14) == 0);
    assert_string_equal(body,
                        "## System\n\nBe \"kind\".\n\n## You\n\nHello\n\n## Answer (stopped)\n\n"
                        "*Toy (Q4_0), bard 0.50*\n\n"
                        "> *Thinking:*\n>\n> They greet.\n> I greet.\n\nHi!\n\n```c\nint main(\n```\n"
                        "\n## You\n\nsecond branch\n\n## Answer (unfinished)\n\nthe end\n"
                        "\n---\n\n3 messages on other branches are not here; the JSON form has all.\n");
    pp_buf_free(&text);
    pp_conversation_clear(&c);
}

static void block_is(const char *text, size_t wanted, const char *code)
{
    struct pp_buf out = {0};
    pp_fence_blocks(text, strlen(text), PP_FENCE_INDENT, wanted, &out);
    assert_string_equal(pp_buf_cstr(&out), code);
    pp_buf_free(&out);
}

/* Code as it is copied: without its fences and their indentation, also where the text ends within the code. */
static void blocks(void **state)
{
    static const char text[] = "Two:\n\n```c\nint a;\n\n  int b;\n```\n\n"
                               "1. in a list\n\n   ~~~\n   x\n     ```\n  y\n   ~~~\r\n"
                               "`` ` `` and ```inline```\n\n````\n```\r\nlast";
    (void)state;
    assert_int_equal(pp_fence_blocks(text, strlen(text), PP_FENCE_INDENT, 0, NULL), 3);
    assert_int_equal(pp_fence_blocks("none", 4, PP_FENCE_INDENT, 1, NULL), 0);
    block_is(text, 1, "int a;\n\n  int b;\n");
    block_is(text, 2, "x\n  ```\ny\n");
    block_is(text, 3, "```\nlast\n");
    block_is(text, 4, "");
}

/* A fence is added only where code is not closed. */
static void fences(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"```ls``` lists", ""}, {"~~~\n~~~ no end\n~~~ \t", ""}, {"```\na\n````\r", ""}, {"    ```", ""},
        {"~~~ `c`", "~~~\n"}, {"````\n```", "````\n"}, {"```c\n```d", "```\n"}, {"   ```\n    ```", "```\n"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pp_conversation c = {.messages = pp_calloc(1, sizeof *c.messages), .session = {.head = 1}};
        assert_non_null(c.messages);
        add(&c, PP_ROLE_USER, 0, texts[i][0]);
        struct pp_buf text = text_of(&c, PP_EXPORT_MARKDOWN, 1), end = {0};
        pp_plain_text(&end, texts[i][0], strlen(texts[i][0]));
        pp_buf_fmt(&end, "\n%s", texts[i][1]);
        assert_string_equal(strstr(text.data, "## You\n\n") + strlen("## You\n\n"), end.data);
        pp_buf_free(&text);
        pp_buf_free(&end);
        pp_conversation_clear(&c);
    }
}

/* --- from other programs ---------------------------------------------------------------------------------------- */

static void assert_talk(const char *text, const char *system, const char *title)
{
    struct pp_import im = read_text(text);
    assert_int_equal(im.n, 1);
    const struct pp_conversation *c = &im.list[0];
    assert_int_equal(c->n, 3);
    assert_string_equal(c->session.system, system);
    assert_string_equal(c->session.title, title);
    assert_string_equal(c->session.model, "");
    assert_string_equal(c->messages[0].content, "Hello");
    assert_int_equal(c->messages[0].role, PP_ROLE_USER);
    assert_string_equal(c->messages[1].content, "Hi");
    assert_int_equal(c->messages[1].role, PP_ROLE_ASSISTANT);
    assert_string_equal(c->messages[2].content, "Bye");
    assert_int_equal(c->messages[2].parent, 2);
    assert_int_equal(c->session.head, 3);
    pp_import_free(&im);
}

static void other_programs(void **state)
{
    (void)state;
    assert_talk("[{\"role\":\"user\",\"content\":\"Hello\"},{\"role\":\"assistant\",\"content\":\"Hi\"},"
                "{\"role\":\"user\",\"content\":\"Bye\"}]", "", "Hello");
    assert_talk("\xEF\xBB\xBF{\"title\":\"T\\nU\",\"model\":\"gpt-9\",\"messages\":["
                "{\"role\":\"system\",\"content\":\"S\"},"
                "{\"role\":\"developer\",\"content\":\"D\"},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hello\"}]},"
                "{\"role\":\"assistant\",\"content\":\"Hi\"},{\"role\":\"user\",\"content\":\"Bye\"}]}",
                "S\n\nD", "T U");
    assert_talk("\n{\"role\":\"user\",\"content\":\"Hello\"}\n{\"role\":\"assistant\",\"content\":\"Hi\"}\n\n"
                "{\"role\":\"user\",\"content\":\"Bye\"}", "", "Hello");
    assert_talk("{\"conversations\":[{\"from\":\"system\",\"value\":\"S\"},{\"from\":\"human\",\"value\":\"Hello\"},"
                "{\"from\":\"gpt\",\"value\":\"Hi\"},{\"from\":\"human\",\"value\":\"Bye\"}]}\n", "S", "Hello");
    assert_talk("[{\"name\":\"N\",\"chat_messages\":[{\"sender\":\"human\",\"text\":\"Hello\"},"
                "{\"sender\":\"assistant\",\"text\":\"Hi\"},{\"sender\":\"human\",\"text\":\"Bye\"}]}]", "", "N");
}

static void a_message_by_itself(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"role\": \"user\", \"content\": \"Hello\"}",
        "{\n  \"role\": \"user\",\n  \"content\": \"Hello\"\n}\n",
        "[\n{\"role\": \"user\",\n\"content\": \"Hello\"}]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pp_import im = read_text(texts[i]);
        assert_int_equal(im.n, 1);
        assert_int_equal(im.list[0].n, 1);
        assert_string_equal(im.list[0].messages[0].content, "Hello");
        pp_import_free(&im);
    }
}

/* Trees: if there are two answers, the one that was on the screen is kept, too; messages of tools are dropped, and
 * their children stay. */
static void trees_of_other_programs(void **state)
{
    (void)state;
    struct pp_import im = read_text(
        "[{\"title\":\"T\",\"create_time\":1700000000.5,\"update_time\":1700000001,\"current_node\":\"d\",\"mapping\":{"
        "\"d\":{\"message\":{\"author\":{\"role\":\"assistant\"},"
        "\"content\":{\"content_type\":\"text\",\"parts\":[\"two\"]}},"
        "\"parent\":\"t\",\"children\":[]},"
        "\"r\":{\"message\":null,\"parent\":null,\"children\":[\"a\"]},"
        "\"a\":{\"message\":{\"author\":{\"role\":\"user\"},"
        "\"content\":{\"content_type\":\"text\",\"parts\":[\"Hello\","
        "{\"asset_pointer\":\"x\"}]}},\"parent\":\"r\",\"children\":[\"b\",\"t\"]},"
        "\"b\":{\"message\":{\"author\":{\"role\":\"assistant\"},\"content\":{\"parts\":[\"one\"]}},\"parent\":\"a\","
        "\"children\":[]},"
        "\"t\":{\"message\":{\"author\":{\"role\":\"tool\"},\"content\":{\"parts\":[\"42\"]}},\"parent\":\"a\","
        "\"children\":[\"d\",\"nobody\"]}}}]");
    assert_true(im.n == 1 && im.left_out == 1 && im.no_text == 1);
    const struct pp_conversation *c = &im.list[0];
    assert_true(c->n == 3 && c->session.head == 3 && c->session.created == 1700000000);
    assert_string_equal(c->messages[1].content, "one");
    assert_string_equal(c->messages[2].content, "two");
    assert_true(c->messages[1].parent == 1 && c->messages[2].parent == 1);
    pp_import_free(&im);
    im = read_text("[{\"title\":\"W\",\"chat\":{\"history\":{\"currentId\":\"2\",\"messages\":{"
                   "\"1\":{\"role\":\"user\",\"content\":\"Hello\",\"parentId\":null,\"childrenIds\":[\"2\",\"3\"]},"
                   "\"2\":{\"role\":\"assistant\",\"content\":\"a\",\"parentId\":\"1\",\"childrenIds\":[]},"
                   "\"3\":{\"role\":\"assistant\",\"content\":\"b\",\"parentId\":\"1\",\"childrenIds\":[]}}}}}]");
    assert_true(im.n == 1 && im.list[0].n == 3 && im.list[0].session.head == 2);
    assert_string_equal(im.list[0].session.title, "W");
    pp_import_free(&im);
    /* nodes that name each other in circles: each is read once */
    im = read_text("[{\"mapping\":{"
                   "\"a\":{\"message\":{\"role\":\"user\",\"content\":\"x\"},\"children\":[\"a\",\"a\",\"b\"]},"
                   "\"b\":{\"message\":{\"role\":\"user\",\"content\":\"y\"},\"parent\":\"a\","
                   "\"children\":[\"a\",\"b\"]}}}]");
    assert_int_equal(im.list[0].n, 2);
    assert_string_equal(im.list[0].messages[0].content, "x");
    assert_string_equal(im.list[0].messages[1].content, "y");
    pp_import_free(&im);
}

/* A program that continued our file does not know about ids. */
static void carried_on_elsewhere(void **state)
{
    (void)state;
    struct pp_import im = read_text(
        "{\"pippin\":1,\"title\":\"T\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\",\"id\":1},"
        "{\"role\":\"assistant\",\"content\":\"Hi\",\"id\":3},{\"role\":\"user\",\"content\":\"new\"},"
        "{\"role\":\"assistant\",\"content\":\"newer\",\"reasoning\":\"hm\"}],"
        "\"branches\":[{\"role\":\"assistant\",\"content\":\"Ho\",\"id\":2,\"parent\":1}]}");
    const struct pp_conversation *c = &im.list[0];
    assert_true(c->n == 5 && c->session.head == 5);
    assert_string_equal(c->messages[1].content, "Ho");
    assert_string_equal(c->messages[4].reasoning, "hm");
    assert_true(c->messages[2].parent == 1 && c->messages[3].parent == 3 && c->messages[4].parent == 4);
    pp_import_free(&im);
}

/* --- what is wrong ----------------------------------------------------------------------------------------------- */

static void refused(const char *text, const char *why)
{
    struct pp_import im;
    assert_int_equal(pp_import_read(text, strlen(text), &im, &err), PP_ERR_FORMAT);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    assert_true(im.n == 0 && !im.list);
}

static void mistakes(void **state)
{
    (void)state;
    refused("", "the file is empty");
    refused(" \n\n", "the file is empty");
    refused("Hello!\nHow are you?", "line 1");
    refused("{\n \"messages\": [\n  {\"role\": \"user\",, }\n]}", "line 3");
    refused("{\"role\":\"user\",\"content\":\"x\"}\n{\"role\":", "line 2");
    refused("{\"messages\":[]}", "no conversation");
    refused("{\"role\":\"tool\",\"content\":\"x\"}", "no conversation");
    refused("[]", "no conversation");
    refused("{\"text\":\"x\"}", "has no messages");
    refused("[{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]},7]", "conversation 2 has no messages");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n{\"role\":\"user\",\"content\":\"x\"}\n"
            "{\"messages\":[]}", "line 3");
    static const char *const ids[] = {"\"id\":1,\"parent\":2", "\"id\":3,\"parent\":3", "\"id\":2", "\"parent\":1",
                                      "\"id\":9,\"parent\":8"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        struct pp_buf b = {0};
        pp_buf_fmt(&b, "{\"pippin\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"id\":2}],"
                       "\"branches\":[{\"role\":\"user\",\"content\":\"y\",%s}]}", ids[i]);
        refused(b.data, "message 2");
        pp_buf_free(&b);
    }
}

/* However a file is altered, it is imported or refused. */
static void damaged(void **state)
{
    (void)state;
    struct pp_conversation c;
    struct pp_import im;
    uint32_t dice = 7;
    make(&c);
    struct pp_buf text = text_of(&c, PP_EXPORT_JSONL, 2);
    for (size_t n = 0; n < text.len; n++)
        if (pp_import_read(text.data, n, &im, &err) == PP_OK)
            pp_import_free(&im);
    for (int i = 0; i < 3000; i++) {
        const size_t at = (dice = dice * 1664525u + 1013904223u) % (uint32_t)text.len;
        const char was = text.data[at];
        text.data[at] = "\0\n\"{}[]:,19-\\e\xFF"[(dice >> 8) % 15];
        if (pp_import_read(text.data, text.len, &im, &err) == PP_OK) {
            struct pp_store *st = i % 50 ? NULL : open_store();
            for (size_t k = 0; st && k < im.n; k++)
                pp_conversation_add(st, &im.list[k], &err);
            pp_store_close(st);
            pp_import_free(&im);
        }
        text.data[at] = was;
    }
    pp_buf_free(&text);
    pp_conversation_clear(&c);
}

/* A conversation is added as a whole or not at all. */
static void nothing_by_halves(void **state)
{
    (void)state;
    struct pp_conversation c;
    struct pp_store *st = open_store();
    int64_t n;
    make(&c);
    c.messages[3].parent = 6;
    assert_int_equal(pp_conversation_add(st, &c, &err), PP_ERR_FORMAT);
    assert_true(c.session.id == 0 && c.messages[0].id == 0);
    assert_ok(pp_store_session_count(st, &n, &err), err);
    assert_int_equal(n, 0);
    pp_conversation_clear(&c);
    pp_store_close(st);
}

/* A conversation from another machine: what is stored with it refers to things that do not exist here. */
static void settled(void **state)
{
    (void)state;
    struct pp_conversation c;
    struct pp_paths p = {.data = "/nowhere", .config = "/nowhere", .starter = "engine/starter"};
    char what[100];
    make(&c);
    assert_false(pp_conversation_settle(&c, &p, what, sizeof what));
    assert_string_equal(c.session.template_name, "chatml");
    pp_free(c.session.model);
    pp_free(c.session.adapters);
    pp_free(c.session.template_name);
    c.session.model = pp_strdup("/theirs/model.gguf");
    c.session.adapters = pp_strdup("[{\"path\":\"/theirs/a.gguf\",\"scale\":1},"
                                   "{\"path\":\"engine/starter/bard.gguf\",\"scale\":0.5}]");
    c.session.template_name = pp_strdup("/theirs/t.jinja");
    assert_true(pp_conversation_settle(&c, &p, what, sizeof what));
    assert_string_equal(what, "model /theirs/model.gguf");
    assert_string_equal(c.session.model, "");
    assert_string_equal(c.session.template_name, "");
    assert_non_null(strstr(c.session.adapters, "bard"));
    assert_null(strstr(c.session.adapters, "theirs"));
    pp_conversation_clear(&c);
}

/* --- what is here already ----------------------------------------------------------------------------------------- */

static struct pp_importer *importer(struct pp_store *st, bool again)
{
    struct pp_importer *im;
    assert_ok(pp_importer_new(st, test_path("locks"), again, &im, &err), err);
    return im;
}

/* The outcome for the one conversation of a text; *id: of the conversation in the store, *n: of messages. */
static enum pp_import_outcome put(struct pp_store *st, const char *text, bool again, int64_t *id, size_t *n)
{
    struct pp_import im = read_text(text);
    struct pp_importer *to = importer(st, again);
    struct pp_import_result r;
    assert_int_equal(im.n, 1);
    assert_ok(pp_importer_put(to, &im.list[0], &r, &err), err);
    *id = im.list[0].session.id;
    *n = r.n_messages;
    assert_ok(pp_importer_flush(to, &err), err);
    pp_importer_free(to);
    pp_import_free(&im);
    return r.outcome;
}

/* Exported, continued on two branches, and imported; and the reverse. */
static void here_already(void **state)
{
    (void)state;
    struct pp_conversation c, all;
    struct pp_store *st = open_store(), *old = open_store();
    int64_t id, first, n_sessions;
    size_t n;
    make(&c);
    struct pp_buf text = text_of(&c, PP_EXPORT_JSON, 1);
    assert_int_equal(put(st, text.data, false, &first, &n), PP_IMPORT_ADDED);
    assert_int_equal(put(st, text.data, false, &id, &n), PP_IMPORT_HERE);
    assert_true(id == first);
    assert_int_equal(put(old, text.data, false, &id, &n), PP_IMPORT_ADDED);

    /* in the first store the unfinished answer is completed, a question is added after it, and the title is changed */
    assert_ok(pp_conversation_read(st, first, &all, &err), err);
    const struct pp_answer_text written = {.text = "the end, at last", .len = 16};
    assert_ok(pp_store_message_write(st, all.messages[6].id, &written, PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    struct pp_message more = {.session = first, .parent = all.messages[6].id, .role = PP_ROLE_USER,
                              .content = (char *)(uintptr_t)"More?", .content_len = 5};
    assert_ok(pp_store_message_add(st, &more, &err), err);
    pp_conversation_clear(&all);
    assert_int_equal(put(st, text.data, false, &id, &n), PP_IMPORT_HERE);
    assert_true(id == first);
    pp_buf_free(&text);

    /* imported into the older store, the continued conversation extends the one there */
    assert_ok(pp_conversation_read(st, first, &all, &err), err);
    text = text_of(&all, PP_EXPORT_JSON, 1);
    assert_int_equal(put(old, text.data, false, &id, &n), PP_IMPORT_EXTENDED);
    assert_int_equal(n, 2); /* the complete answer, which becomes a branch next to the partial one, and what follows
                               it */
    pp_conversation_clear(&all);
    assert_ok(pp_conversation_read(old, id, &all, &err), err);
    assert_true(all.n == 9 && all.messages[8].parent == 8 && all.messages[7].parent == 6);
    assert_string_equal(all.messages[6].content, "the end");
    assert_int_equal(all.session.head, 7); /* the branch on the screen is another one, and stays */
    assert_int_equal(put(old, text.data, false, &id, &n), PP_IMPORT_HERE);
    pp_conversation_clear(&all);

    /* unless a second copy is asked for */
    assert_int_equal(put(old, text.data, true, &id, &n), PP_IMPORT_ADDED);
    assert_ok(pp_store_session_count(old, &n_sessions, &err), err);
    assert_int_equal(n_sessions, 2);
    assert_int_equal(put(old, text.data, false, &id, &n), PP_IMPORT_HERE);
    pp_buf_free(&text);
    pp_conversation_clear(&c);
    pp_store_close(st);
    pp_store_close(old);
}

/* The branch on the screen was continued elsewhere: the tip moves. That of an open conversation stays. */
static void goes_on(void **state)
{
    (void)state;
    static const char begun[] = "{\"title\": \"T\", \"create_time\": 1600000000, \"messages\": ["
                                "{\"role\": \"user\", \"content\": \"one\", \"create_time\": 1600000001},"
                                "{\"role\": \"assistant\", \"content\": \"two\", \"create_time\": 1600000002}%s]}";
    static const char third[] = ",{\"role\": \"user\", \"content\": \"three\", \"create_time\": 1600000003}";
    struct pp_store *st = open_store();
    struct pp_session s;
    char text[2][600];
    int64_t id, first;
    size_t n;
    int lock;
    snprintf(text[0], sizeof text[0], begun, "");
    snprintf(text[1], sizeof text[1], begun, third);
    assert_int_equal(put(st, text[0], false, &first, &n), PP_IMPORT_ADDED);
    assert_ok(pp_store_session_get(st, first, &s, &err), err);
    assert_ok(pp_session_lock(test_path("locks"), s.key, &lock, &err), err);
    assert_int_equal(put(st, text[1], false, &id, &n), PP_IMPORT_BUSY);
    assert_true(id == first && n == 1);
    close(lock);
    pp_session_clear(&s);
    assert_int_equal(put(st, text[1], false, &id, &n), PP_IMPORT_EXTENDED);
    assert_true(id == first && n == 1);
    assert_ok(pp_store_session_get(st, first, &s, &err), err);
    assert_int_equal(s.n_messages, 3);
    struct pp_message m;
    assert_ok(pp_store_message_get(st, s.head, &m, &err), err);
    assert_string_equal(m.content, "three");
    pp_message_clear(&m);
    pp_session_clear(&s);
    assert_int_equal(put(st, text[0], false, &id, &n), PP_IMPORT_HERE);
    pp_store_close(st);
}

/* Without times only the text can tell, and a text that continues differently is another conversation. */
static void without_times(void **state)
{
    (void)state;
    static const char form[] = "{\"messages\": [%s{\"role\": \"user\", \"content\": \"Hello\"},"
                               "{\"role\": \"assistant\", \"content\": \"%s\"}]}";
    static const char system[] = "{\"role\": \"system\", \"content\": \"Be brief.\"},";
    struct pp_store *st = open_store();
    char text[400];
    int64_t id, first;
    size_t n;
    snprintf(text, sizeof text, form, "", "Hi");
    assert_int_equal(put(st, text, false, &first, &n), PP_IMPORT_ADDED);
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_HERE);
    assert_true(id == first);
    snprintf(text, sizeof text, form, "", "Good day");
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_ADDED);
    snprintf(text, sizeof text, form, system, "Hi");
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_ADDED);
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_HERE);
    pp_store_close(st);
}

/* Imports what a text has, and adds it to *out as it is exported from there. */
static void import_all(struct pp_store *st, const char *text, struct pp_buf *out)
{
    struct pp_importer *im;
    struct pp_import read = read_text(text);
    struct pp_export x = {.form = PP_EXPORT_JSON, .several = true};
    assert_ok(pp_importer_new(st, test_path("locks"), false, &im, &err), err);
    for (size_t i = 0; i < read.n; i++) {
        struct pp_import_result result;
        struct pp_conversation c;
        assert_ok(pp_importer_put(im, &read.list[i], &result, &err), err);
        assert_int_equal(result.outcome, PP_IMPORT_ADDED);
        assert_ok(pp_importer_flush(im, &err), err);
        assert_ok(pp_conversation_read(st, read.list[i].session.id, &c, &err), err);
        pp_export_add(&x, &c);
        pp_conversation_clear(&c);
    }
    assert_ok(pp_export_end(&x, &err), err);
    pp_importer_free(im);
    pp_import_free(&read);
    *out = x.out;
}

/* Two conversations with the same question in the same second, or without times, stay two in every store they are
 * imported to. */
static void begun_alike(void **state)
{
    (void)state;
    static const char untimed[] =
        "[{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"},"
        "               {\"role\": \"assistant\", \"content\": \"A\"}]},"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"},"
        "               {\"role\": \"assistant\", \"content\": \"B\"}]}]";
    static const char form[] =
        "{\"pippin\": 1, \"created\": %s, \"messages\": ["
        "{\"role\": \"user\", \"content\": \"Hello\", \"id\": 1, \"created\": 1700000000},"
        "{\"role\": \"assistant\", \"content\": \"%s\", \"id\": 2, \"created\": 1700000001}]}";
    struct pp_store *st = open_store(), *other = open_store();
    struct pp_buf out, again;
    char text[400];
    int64_t id, first;
    size_t n;
    import_all(st, untimed, &out);
    import_all(other, out.data, &again);
    assert_string_equal(out.data, again.data);
    pp_buf_free(&out);
    pp_buf_free(&again);
    snprintf(text, sizeof text, form, "1700000000.25", "A");
    assert_int_equal(put(st, text, false, &first, &n), PP_IMPORT_ADDED);
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_HERE);
    snprintf(text, sizeof text, form, "1700000000.999", "B");
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_ADDED);
    snprintf(text, sizeof text, form, "1700000000", "A"); /* from an older version, whose times are whole seconds: first
                                                             the file, then the database */
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_HERE);
    assert_true(id == first);
    assert_int_equal(put(other, text, false, &first, &n), PP_IMPORT_ADDED);
    snprintf(text, sizeof text, form, "1700000000.5", "A");
    assert_int_equal(put(other, text, false, &id, &n), PP_IMPORT_HERE);
    assert_true(id == first);
    pp_store_close(st);
    pp_store_close(other);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static void files(void **state)
{
    (void)state;
    struct pp_buf text = {0};
    struct stat st;
    char name[128], *read;
    size_t n;
    const char *path = test_path("talk.md");
    pp_buf_str(&text, "first");
    assert_ok(pp_export_write(path, &text, &err), err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    pp_buf_str(&text, " and second");
    assert_int_equal(pp_export_write(path, &text, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "exists"));
    assert_ok(pp_read_file(path, 100, &read, &n, &err), err);
    assert_string_equal(read, "first");
    pp_free(read);
    assert_int_equal(pp_export_write("/nowhere/x.md", &text, &err), PP_ERR_IO);
    pp_buf_free(&text);
    pp_export_name("Hello, who are you?", name, sizeof name);
    assert_string_equal(name, "Hello-who-are-you.md");
    pp_export_name("../../etc/passwd", name, sizeof name);
    assert_string_equal(name, "etc-passwd.md");
    pp_export_name("\x1b[2J \xE2\x80\xAE", name, sizeof name);
    assert_string_equal(name, "2J.md");
    pp_export_name("?", name, sizeof name);
    assert_string_equal(name, "conversation.md");
    pp_export_name(NULL, name, sizeof name);
    assert_string_equal(name, "conversation.md");
    assert_int_equal(pp_export_form_of("a/b.JSON"), PP_EXPORT_JSON);
    assert_int_equal(pp_export_form_of("a.jsonl"), PP_EXPORT_JSONL);
    assert_int_equal(pp_export_form_of("a.json/b"), -1);
    assert_int_equal(pp_export_form_of("b.txt"), PP_EXPORT_MARKDOWN);
    assert_int_equal(pp_export_check_name("a.PDF", &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, ".md"));
    assert_int_equal(pp_export_check_name("a.pdf/b", &err), PP_OK);
    assert_int_equal(pp_export_check_name("notes.2026", &err), PP_OK);
    assert_int_equal(pp_export_check_name("notes", &err), PP_OK);
}

static bool says(const char *what)
{
    return strstr(pp_controller_status(fix.c)->notice, what) != NULL;
}

/* Exported from the chat and imported again: it exists already; after it was deleted, it is restored. */
static void in_the_chat(void **state)
{
    (void)state;
    char line[512];
    const char *path = test_path("chat.jsonl");
    assert_int_equal(fix_slash("/export"), PP_SLASH_DONE);
    assert_true(says("nothing to export yet"));
    fixture_turn(&fix, "one", "a");
    fixture_turn(&fix, "two", "b");
    const int64_t id = pp_controller_session_id(fix.c);
    snprintf(line, sizeof line, "/export %s", path);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, says("conversation written to"));
    assert_true(says("chat.jsonl"));
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, says("exists"));
    assert_int_equal(mkdir(test_path("a folder"), 0700), 0); /* a folder in which the file gets its name from the
                                                                title */
    for (int i = 1; i <= 2; i++) {
        snprintf(line, sizeof line, "/export '%s'", test_path("a folder"));
        assert_int_equal(fix_slash(line), PP_SLASH_DONE);
        pump_until(&fix, says(i == 1 ? "written to " : "/a folder/one-2.md"));
    }
    char here[PATH_MAX]; /* an empty name in quotes counts as no name */
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(test_path("a folder")), 0);
    assert_int_equal(fix_slash("/export \"\""), PP_SLASH_DONE);
    pump_until(&fix, says("/a folder/one-3.md"));
    assert_int_equal(chdir(here), 0);
    path = test_path("chat.jsonl");
    snprintf(line, sizeof line, "/export %s", test_path("chat.pdf"));
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, says("not as pdf"));
    assert_int_not_equal(access(test_path("chat.pdf"), F_OK), 0);
    snprintf(line, sizeof line, "/import %s", path);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, says("this conversation is already here"));
    assert_int_equal(fix_slash("/delete yes"), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 0);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_session_id(fix.c) != id && pp_controller_n_messages(fix.c) == 4);
    assert_true(says("imported"));
    assert_string_equal(fix_message(2)->text, "two");
    fixture_turn(&fix, "three", "c"); /* the restored conversation can be continued */
    assert_non_null(strstr(fix.fake->messages, "\"content\":\"two\""));
    struct pp_store *other; /* another database is imported from */
    assert_ok(pp_store_open(test_path("other #1?.db"), &other, &err), err);
    size_t n;
    int64_t there;
    assert_int_equal(put(other, "{\"messages\": [{\"role\": \"user\", \"content\": \"elsewhere\"}]}", false, &there,
                         &n), PP_IMPORT_ADDED);
    pp_store_close(other);
    snprintf(line, sizeof line, "/import %s", test_path("other #1?.db"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fix_slash(line), PP_SLASH_DONE);
        pump_until(&fix, says(i ? "this conversation is already here" : "conversation imported"));
        pump_until(&fix, pp_controller_n_messages(fix.c) == 1);
        assert_string_equal(fix_message(0)->text, "elsewhere");
    }
    assert_int_equal(fix_slash("/import"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/import /nowhere/x.json"), PP_SLASH_DONE);
    pump_until(&fix, says("/nowhere/x.json"));
}

/* The database disappears while the program runs: the conversation on the screen is saved to a separate file, which can
 * be imported. */
static void rescued(void **state)
{
    (void)state;
    struct pp_close_report w = {0};
    char path[700], name[40];
    struct pp_conversation c;
    struct pp_store *st = open_store();
    int64_t id;
    size_t n;
    fixture_turn(&fix, "one", "a");
    fix_ask("two");
    fake_text(&fix, "half", 1);
    snprintf(name, sizeof name, "rescued-%s", fix_status()->session_key);
    pump_until(&fix, fix_message(3)->len);
    assert_int_equal(unlink(fix.paths.db), 0);
    fake_text(&fix, " an answer", 2);
    pp_controller_close(fix.c, &w);
    fix.c = NULL;
    assert_true(!w.saved && w.gone);
    assert_non_null(strstr(w.text, "deleted, moved or replaced"));
    snprintf(path, sizeof path, "%s/%s.json", fix.paths.data, name);
    assert_non_null(strstr(w.text, path));
    char *text;
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    assert_int_equal(put(st, text, false, &id, &n), PP_IMPORT_ADDED);
    assert_ok(pp_conversation_read(st, id, &c, &err), err);
    assert_int_equal(c.n, 4);
    assert_string_equal(c.messages[2].content, "two");
    assert_string_equal(c.messages[3].content, "half an answer");
    pp_conversation_clear(&c);
    pp_free(text);
    pp_store_close(st);
    assert_int_not_equal(access(fix.paths.db, F_OK), 0); /* a deleted database is not created again */

    /* without messages there is nothing to save */
    fixture_ready(&fix);
    assert_int_equal(unlink(fix.paths.db), 0);
    pp_controller_close(fix.c, &w);
    fix.c = NULL;
    assert_true(w.saved && !w.gone && !*w.text);
}

/* If memory runs out while a message is read, that is an error, and not a message without text. */
static void whole_or_an_error(void **state)
{
    (void)state;
    static const char text[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"Short.\"}, {\"role\": \"user\", "
                               "\"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"two\", "
                               "\"reasoning\": \"hm\"}]}";
    const uint64_t before = pp_mem_count();
    struct pp_import im = read_text(text);
    const uint64_t n = pp_mem_count() - before;
    pp_import_free(&im);
    for (uint64_t at = 1; at <= n; at++) {
        pp_mem_fail_at(at, 0);
        const enum pp_code code = pp_import_read(text, sizeof text - 1, &im, &err);
        pp_mem_fail_at(0, 0);
        if (code) {
            assert_int_equal(code, PP_ERR_NOMEM);
            continue;
        }
        assert_int_equal(im.left_out, 0);
        assert_int_equal(im.list[0].n, 2);
        assert_string_equal(im.list[0].session.system, "Short.");
        assert_string_equal(im.list[0].messages[1].reasoning, "hm");
        pp_import_free(&im);
    }
}

TEST_GROUP(export)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(several),
        cmocka_unit_test(system_in_pieces),
        cmocka_unit_test(bytes_that_are_no_text),
        cmocka_unit_test(zeros_in_a_file), cmocka_unit_test(bytes_in_a_file),
        cmocka_unit_test(markdown), cmocka_unit_test(fences), cmocka_unit_test(blocks),
        cmocka_unit_test(other_programs),
        cmocka_unit_test(a_message_by_itself),
        cmocka_unit_test(trees_of_other_programs),
        cmocka_unit_test(carried_on_elsewhere),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(damaged),
        cmocka_unit_test(nothing_by_halves),
        cmocka_unit_test(whole_or_an_error),
        cmocka_unit_test(settled),
        cmocka_unit_test(here_already),
        cmocka_unit_test(goes_on),
        cmocka_unit_test(without_times), cmocka_unit_test(begun_alike),
        cmocka_unit_test(files),
        cmocka_unit_test_setup_teardown(in_the_chat, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(rescued, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("export", tests, NULL, NULL);
}
