/* test_adapter_mix.c - sets of adapters: as JSON, as text for people, several in one comparison, and saved under a name
 * (presets). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/adapter_mix.h"
#include "tests/backend_fake.h"

static int setup(void **state)
{
    static char bard[700], barista[700];
    (void)state;
    fixture_init(&fix);
    snprintf(bard, sizeof bard, "%s/starter-bard.gguf", fix.paths.data);
    snprintf(barista, sizeof barista, "%s/lora-barista.gguf", fix.paths.data);
    fix.o.lora[0].path = bard;
    fix.o.lora[0].scale = 1;
    fix.o.lora[1].path = barista;
    fix.o.lora[1].scale = 0.5f;
    fix.o.n_lora = 2;
    fixture_ready(&fix);
    return 0;
}

/* --- the set itself --------------------------------------------------------------------------------------- */

/* A name that does not fit is cut at a character boundary, whatever the size of the buffer. */
static void no_character_is_cut(void **state)
{
    struct pp_adapter_mix a = {0};
    char name[32], label[32];
    (void)state;
    assert_true(pp_adapter_mix_add(&a, "/m/a", 1));
    assert_true(pp_adapter_mix_add(&a, "/m/\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9.gguf", 1));
    for (size_t cap = 1; cap < sizeof name; cap++) {
        pp_adapter_name(a.item[1].path, name, cap);
        assert_true(strlen(name) < cap && pp_utf8_valid(name, strlen(name)));
        pp_adapter_mix_label(&a, label, cap);
        assert_true(strlen(label) < cap && pp_utf8_valid(label, strlen(label)));
    }
    assert_string_equal(name, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9");
}

static void there_and_back(void **state)
{
    struct pp_adapter_mix a = {0}, b;
    char label[64], cut[12];
    (void)state;
    assert_true(pp_adapter_mix_add(&a, "/m/starter-bard.gguf", 0.8f));
    assert_true(pp_adapter_mix_add(&a, "/m/lora-x", -5));
    assert_true(pp_adapter_mix_add(&a, "/m/starter-bard.gguf", 0.4f)); /* the same adapter again, at another strength */
    assert_int_equal(a.n, 2);
    pp_adapter_mix_label(&a, label, sizeof label);
    assert_string_equal(label, "bard 0.40, x -2.00");
    pp_adapter_mix_label(&a, cut, sizeof cut);
    assert_string_equal(cut, "bard 0.40, ");
    char *json = pp_adapter_mix_json(&a);
    assert_string_equal(json, "[{\"path\":\"/m/starter-bard.gguf\",\"scale\":0.4},"
                              "{\"path\":\"/m/lora-x\",\"scale\":-2}]");
    assert_true(pp_adapter_mix_read(json, &b));
    assert_true(pp_adapter_mix_equal(&a, &b));
    pp_free(json);
    static const float strengths[] = {0.1f, 1.0f / 3, 1e-7f, 0.12345678f, -1.9999999f, 1e-45f, 1.17549435e-38f};
    for (size_t i = 0; i < sizeof strengths / sizeof *strengths; i++) { /* other digits would be another strength */
        a.item[0].scale = strengths[i];
        json = pp_adapter_mix_json(&a);
        assert_true(pp_adapter_mix_read(json, &b));
        assert_true(pp_adapter_mix_equal(&a, &b));
        pp_free(json);
    }
    assert_true(pp_adapter_mix_read("", &b) && b.n == 0);
    assert_false(pp_adapter_mix_read("{", &b));
    assert_false(pp_adapter_mix_read("[{\"path\":7},{\"path\":\"/a\",\"scale\":1e99}]", &b));
    assert_int_equal(b.n, 1);
    assert_true(b.item[0].scale == 2 && b.limited);
    assert_true(pp_adapter_mix_read("[{\"path\":\"/a\",\"scale\":-2}]", &b) && !b.limited);
    static const char *const no_strengths[] = {"", "x", "1x", "nan", "inf", "2.01", "-2.01", "1e99",
                                              "0x1", " 1"};
    float scale = 7;
    for (size_t i = 0; i < sizeof no_strengths / sizeof *no_strengths; i++)
        assert_false(pp_adapter_strength_read(no_strengths[i], &scale));
    assert_true(scale == 7);
    assert_true(pp_adapter_strength_read("-2", &scale) && scale == -PP_ADAPTER_MAX_STRENGTH);
    assert_true(pp_adapter_strength_read("0.5", &scale) && scale == 0.5f);
    assert_true(pp_adapter_strength(NAN) == 1 && pp_adapter_strength(-3) == -PP_ADAPTER_MAX_STRENGTH);
    for (int i = 0; i < PP_MAX_ADAPTERS; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%d", i);
        assert_true(pp_adapter_mix_add(&b, path, 1) == (i < PP_MAX_ADAPTERS - 1));
    }
}

static void nothing_at_strength_zero(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/lora bard 0"), PP_SLASH_DONE);
    assert_non_null(strstr(fix_status()->notice, "has no effect"));
    assert_int_equal(fix_slash("/lora bard 0.4"), PP_SLASH_DONE);
    assert_null(strstr(fix_status()->notice, "has no effect"));
}

/* --- side by side ----------------------------------------------------------------------------------------- */

static void finish_all(int first, int n)
{
    for (int i = 0; i < n; i++) {
        char text[24];
        snprintf(text, sizeof text, "answer %d", i);
        fake_choose(&fix, first + i);
        fake_text(&fix, text, 1);
        fake_done(&fix, PP_FINISH_END, PP_OK);
    }
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    fixture_flush(&fix);
}

/* Lets the worker report for all adapters that they fit, so that no later step has to wait for an inspection. */
static void all_fit(void)
{
    size_t n;
    pp_controller_adapters(fix.c, &n);
    pp_controller_inspect_adapters(fix.c);
    for (size_t i = 0; i < n; i++) {
        if (pp_controller_adapters(fix.c, &n)[i].fit == PP_FIT_YES)
            continue;
        fake_adapter(&fix, NULL);
        pump_until(&fix, pp_controller_adapters(fix.c, &n)[i].fit == PP_FIT_YES);
    }
}

static void compared(void **state)
{
    struct pp_store *st;
    struct pp_error err;
    struct pp_message m;
    (void)state;
    assert_int_equal(fix_slash("/compare none bard"), PP_SLASH_ERROR); /* there is no question */
    fixture_turn(&fix, "hello", "hi");
    assert_string_equal(pp_controller_message(fix.c, 1)->adapters, "bard 1.00, barista 0.50");
    all_fit();
    assert_int_equal(fix_slash("/compare none bard:0.5+barista bari:2"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 4);
    assert_string_equal(fix.fake->asked[1].adapters, "");
    assert_string_equal(fix.fake->asked[2].adapters, "bard 0.50, barista 0.50");
    assert_string_equal(fix.fake->asked[3].adapters, "barista 2.00");
    assert_true(fix.fake->asked[1].seed == fix.fake->asked[3].seed); /* the answers differ only in their adapters */
    assert_string_equal(pp_controller_alternative(fix.c, 1)->adapters, "bard 0.50, barista 0.50");
    assert_string_equal(fix_status()->adapters, ""); /* the first one is chosen */
    finish_all(1, 3);

    /* the conversation continues under the chosen answer's adapters */
    pp_controller_sibling(fix.c, 1, 1);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(pp_controller_message(fix.c, 1)->text, "answer 2");
    assert_string_equal(fix_status()->adapters, "barista 2.00");
    pp_controller_sibling(fix.c, 1, -1);
    assert_string_equal(fix_status()->adapters, "bard 0.50, barista 0.50");
    fixture_turn(&fix, "more", "yes");
    assert_string_equal(fix.fake->asked[4].adapters, "bard 0.50, barista 0.50");

    /* each answer is stored with the adapters it was given under */
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, fix.fake->asked[1].message_id, &m, &err), err);
    assert_string_equal(m.adapters, "[]");
    pp_message_clear(&m);
    assert_ok(pp_store_message_get(st, fix.fake->asked[3].message_id, &m, &err), err);
    assert_non_null(strstr(m.adapters, "lora-barista.gguf\",\"scale\":2}]"));
    pp_message_clear(&m);
    pp_store_close(st);
}

static void compared_and_left(void **state)
{
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    int64_t id = pp_controller_session_id(fix.c);
    all_fit();
    assert_int_equal(fix_slash("/compare bard none"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 3);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 0);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 2); /* both are still being written, each under its own
                                                                 adapters */
    assert_string_equal(pp_controller_alternative(fix.c, 0)->adapters, "bard 1.00");
    assert_string_equal(pp_controller_alternative(fix.c, 1)->adapters, "");
    finish_all(1, 2);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_status()->adapters, "");
}

static void mistakes(void **state)
{
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    static const struct {
        const char *line, *says;
    } wrong[] = {
        {"/compare", "two or more"}, {"/compare bard", "two or more"}, {"/compare brad none", "\"bard\""},
        {"/compare bard:3 none", "scale"}, {"/compare bard:x none", "scale"}, {"/compare bar none", "no adapter"},
        {"/compare none none none none none none none none none", "2 to 8"},
        {"/compare none none", "sets 1 and 2 are the same"},
        {"/compare none bard BARD:1.0", "sets 2 and 3 are the same"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(fix_slash(wrong[i].line), PP_SLASH_ERROR);
        assert_non_null(strstr(fix_status()->notice, wrong[i].says));
    }
    assert_int_equal(fix.fake->generations, 1);
    assert_string_equal(fix_status()->adapters, "bard 1.00, barista 0.50");
}

/* --- order ------------------------------------------------------------------------------------------------ */

static void order_is_kept(void **state)
{
    size_t n;
    (void)state;
    assert_int_equal(pp_controller_move_adapter(fix.c, 1, -1), 0);
    assert_int_equal(pp_controller_move_adapter(fix.c, 0, -1), 0);
    assert_string_equal(fix_status()->adapters, "barista 0.50, bard 1.00");
    fixture_turn(&fix, "hello", "hi");
    assert_string_equal(fix.fake->asked[0].adapters, "barista 0.50, bard 1.00");
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_move_adapter(fix.c, 1, -1), 0);
    assert_string_equal(pp_controller_adapters(fix.c, &n)[0].name, "bard");
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_string_equal(fix_status()->adapters, "barista 0.50, bard 1.00");
}

/* --- presets and notes ------------------------------------------------------------------------------------ */

static void again(void)
{
    fixture_flush(&fix);
    fixture_stop(&fix);
    fix.o.n_lora = 0;
    fixture_ready(&fix);
    fixture_flush(&fix); /* the folder has been listed */
    fixture_pump(&fix);
}

static void presets(void **state)
{
    size_t n;
    (void)state;
    assert_int_equal(fix_slash("/lora save Evening"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora bard off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora save coffee"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    const struct pp_named *p = pp_controller_presets(fix.c, &n);
    assert_int_equal(n, 2);
    assert_string_equal(p[0].name, "coffee");
    assert_string_equal(p[0].detail, "barista 0.50");
    assert_false(p[0].current || p[1].current);
    assert_int_equal(fix_slash("/lora preset even"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->adapters, "bard 1.00, barista 0.50");
    assert_true(pp_controller_presets(fix.c, &n)[1].current);
    fixture_turn(&fix, "hello", "hi");
    all_fit();
    assert_int_equal(fix_slash("/compare coffee none"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 3);
    assert_string_equal(fix.fake->asked[1].adapters, "barista 0.50");
    finish_all(1, 2);

    /* presets are still there in another run of the program that names no adapters */
    again();
    pump_until(&fix, (pp_controller_presets(fix.c, &n), n) == 2);
    assert_string_equal(fix_status()->adapters, "");
    assert_int_equal(fix_slash("/lora preset EVENING"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->adapters, "bard 1.00, barista 0.50");
    assert_int_equal(fix_slash("/lora drop even"), PP_SLASH_ERROR); /* dropping takes the full name */
    assert_int_equal(fix_slash("/lora drop evening"), PP_SLASH_DONE);
    again();
    pump_until(&fix, (pp_controller_presets(fix.c, &n), n) == 1);
    static const struct {
        const char *line, *says;
    } wrong[] = {{"/lora preset cofee", "\"coffee\""}, {"/lora preset", "NAME"}, {"/lora save none", "no adapter"},
                 {"/lora save a+b", "one word"}, {"/lora save a/b", "and /"}, {"/lora save two words", "one word"},
                 {"/lora add", "FILE"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(fix_slash(wrong[i].line), PP_SLASH_ERROR);
        assert_non_null(strstr(fix_status()->notice, wrong[i].says));
    }
}

static const struct pp_adapter_entry *entry(const char *name)
{
    size_t n;
    const struct pp_adapter_entry *a = pp_controller_adapters(fix.c, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(a[i].name, name) == 0)
            return &a[i];
    return NULL;
}

/* An adapter for which the list has no room is reported as such, instead of as a file that is no adapter. */
static void add_from_a_long_path(void)
{
    struct pp_buf line = {0};
    struct pp_error err;
    pp_buf_fmt(&line, "/lora add %s", fix.paths.data);
    for (int i = 0; i < 5; i++)
        pp_buf_fmt(&line, "/%0120d", i);
    assert_false(line.bad);
    assert_ok(pp_make_dirs(line.data + strlen("/lora add "), &err), err);
    assert_int_equal(fix_slash(line.data), PP_SLASH_DONE);
    pump_until(&fix, strstr(fix_status()->notice, "at most 511 are possible for an adapter"));
    pp_buf_free(&line);
}

/* A damaged adapter is reported as damaged, instead of as a file that is no adapter. */
static void add_damaged(void)
{
    char path[800], line[900];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/half.gguf", fix.paths.data);
    snprintf(line, sizeof line, "/lora add %s", path);
    assert_ok(pp_write_file(path, "GGUF\3\0\0\0\1\0\0\0", 12, 0600, &err), err);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, strstr(fix_status()->notice, "half.gguf"));
    assert_null(strstr(fix_status()->notice, "is not an adapter"));
    char *refused = pp_controller_take_refused(fix.c);
    assert_string_equal(refused, path);
    pp_free(refused);
    assert_null(pp_controller_take_refused(fix.c));
}

static void added_with_a_note(void **state)
{
    char folder[800], line[900];
    struct pp_error err;
    (void)state;
    snprintf(folder, sizeof folder, "%s/elsewhere/lora-cat", fix.paths.data);
    assert_ok(pp_make_dirs(folder, &err), err);
    snprintf(line, sizeof line, "/lora add %s", folder);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "is not an adapter"));
    snprintf(line, sizeof line, "%s/adapter_config.json", folder);
    assert_ok(pp_write_file(line, "{}", 2, 0600, &err), err);
    snprintf(line, sizeof line, "/lora add %s/elsewhere", fix.paths.data); /* all adapters in this folder */
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, entry("cat"));
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, strstr(fix_status()->notice, "is in the list already"));
    assert_int_equal(fix_slash("/lora add /no/such/file"), PP_SLASH_DONE);
    pump_until(&fix, strstr(fix_status()->notice, "/no/such/file"));
    add_from_a_long_path();
    add_damaged();
    pp_controller_note_adapter(fix.c, 2, "purrs");
    again();
    pump_until(&fix, entry("cat"));
    assert_string_equal(entry("cat")->note, "purrs");
    assert_true(entry("cat")->added);
    assert_null(entry("bard"));
}

/* Of two adapters with the same name, the name means the first; the second is reached by its path. */
static void two_of_a_name(void **state)
{
    char folder[800], line[900];
    struct pp_error err;
    (void)state;
    snprintf(folder, sizeof folder, "%s/more/bard", fix.paths.data);
    assert_ok(pp_make_dirs(folder, &err), err);
    snprintf(line, sizeof line, "%s/adapter_config.json", folder);
    assert_ok(pp_write_file(line, "{}", 2, 0600, &err), err);
    snprintf(line, sizeof line, "/lora add %s", folder);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    size_t n;
    pump_until(&fix, (pp_controller_adapters(fix.c, &n), n == 3));
    const struct pp_adapter_entry *all = pp_controller_adapters(fix.c, &n);
    assert_string_equal(all[2].name, all[0].name);
    assert_int_equal(fix_slash("/lora bard off"), PP_SLASH_DONE);
    assert_false(all[0].on || all[2].on);
    snprintf(line, sizeof line, "/lora %s 0.3", all[2].path);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    assert_true(!all[0].on && all[2].on && all[2].scale == 0.3f);
}

/* An adapter reached by a symbolic link has the link's name, not that of the file in a download store. */
static void by_a_link(void **state)
{
    char store[800], link[900], line[1000];
    struct pp_error err;
    (void)state;
    snprintf(store, sizeof store, "%s/store/0a1b2c", fix.paths.data);
    assert_ok(pp_make_dirs(store, &err), err);
    snprintf(line, sizeof line, "%s/adapter_config.json", store);
    assert_ok(pp_write_file(line, "{}", 2, 0600, &err), err);
    snprintf(link, sizeof link, "%s/shown", fix.paths.data);
    assert_ok(pp_make_dirs(link, &err), err);
    snprintf(link, sizeof link, "%s/shown/evening", fix.paths.data);
    assert_int_equal(symlink(store, link), 0);
    for (int whole = 0; whole < 2; whole++) {
        snprintf(line, sizeof line, "/lora add %s/shown%s", fix.paths.data, whole ? "/evening" : "");
        assert_int_equal(fix_slash(line), PP_SLASH_DONE);
        pump_until(&fix, strstr(fix_status()->notice, whole ? "evening was added" : "to the list"));
        assert_string_equal(entry("evening")->path, link);
        assert_null(entry("0a1b2c"));
    }
    assert_int_equal(fix_slash("/lora evening 0.5"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->adapters, "bard 1.00, barista 0.50, evening 0.50");
}

/* The list of adapters has a limit; whether there are more is reported. */
static void many(void **state)
{
    enum { LISTED = 256 };
    char folder[800], line[900];
    struct pp_error err;
    size_t n;
    (void)state;
    for (int i = 0; i <= LISTED; i++) {
        snprintf(folder, sizeof folder, "%s/adapters/a%03d", fix.paths.data, i);
        assert_ok(pp_make_dirs(folder, &err), err);
        snprintf(line, sizeof line, "%s/adapter_config.json", folder);
        assert_ok(pp_write_file(line, "{}", 2, 0600, &err), err);
    }
    again();
    pump_until(&fix, strstr(fix_status()->notice, "not all adapters are listed"));
    pp_controller_adapters(fix.c, &n);
    assert_int_equal(n, LISTED);
    assert_non_null(entry("a255"));
    assert_null(entry("a256"));
}

/* Names that contain the characters that separate names elsewhere. */
static void odd_names(void **state)
{
    static const char *const names[] = {"bard of avon", "a+b", "x:0.5"};
    char folder[800], line[900];
    struct pp_error err;
    size_t n;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(folder, sizeof folder, "%s/more/%s", fix.paths.data, names[i]);
        assert_ok(pp_make_dirs(folder, &err), err);
        snprintf(line, sizeof line, "%s/adapter_config.json", folder);
        assert_ok(pp_write_file(line, "{}", 2, 0600, &err), err);
    }
    snprintf(line, sizeof line, "/lora add %s/more", fix.paths.data);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, (pp_controller_adapters(fix.c, &n), n == 5));
    fixture_turn(&fix, "hello", "hi");
    all_fit();
    assert_int_equal(fix_slash("/compare bard of avon bard Bard of Avon:0.5+a+b:2 x:0.5 x:0.5:-1  a+b:0.25+x:0.5:0.75"),
                     PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 7);
    static const char *const written[] = {"bard of avon 1.00",           "bard 1.00",   "bard of avon 0.50, a+b 2.00",
                                          "x:0.5 1.00",        "x:0.5 -1.00", "a+b 0.25, x:0.5 0.75"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(fix.fake->asked[1 + i].adapters, written[i]);
    finish_all(1, 6);
    assert_int_equal(fix_slash("/lora bard of avon 0.5"), PP_SLASH_DONE);
    snprintf(line, sizeof line, "/compare none %s/more/a+b:0.5", fix.paths.data);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 9);
    assert_string_equal(fix.fake->asked[8].adapters, "a+b 0.50");
    finish_all(7, 2);
}

/* --- what they are and cost ------------------------------------------------------------------------------- */

/* An adapter that is not inspected yet is not reported as absent, and the line stays in the input to be tried again. */
static void still_looked_for(void **state)
{
    (void)state;
    fixture_flush(&fix);
    fixture_pump(&fix);
    pp_controller_load(fix.c, fix.model);
    assert_int_equal(fixture_state(&fix), PP_STATE_LOADING);
    assert_int_equal(fix_slash("/lora moose"), PP_SLASH_ERROR_EDIT);
    assert_non_null(strstr(fix_status()->notice, "still scanning for adapters"));
    fake_loaded(&fix);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    pump_until(&fix, pp_controller_settled(fix.c));
    assert_int_equal(fix_slash("/lora moose"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "there is no adapter"));
}

/* An answer that is continued is continued under the adapters that are on now, and its heading shows them from then
 * on. */
static void goes_on_under_others(void **state)
{
    struct pp_store *st;
    struct pp_error err;
    struct pp_message m;
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    assert_int_equal(fix_slash("/lora barista off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/continue"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 2);
    assert_string_equal(fix.fake->asked[1].adapters, "bard 1.00");
    assert_non_null(strstr(fix_status()->notice, "under bard 1.00; it was started under bard 1.00, barista 0.50"));

    /* if the model adds nothing, the answer is still shown under the adapters that it was written under */
    fake_choose(&fix, 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    fixture_flush(&fix);
    assert_string_equal(pp_controller_message(fix.c, 1)->adapters, "bard 1.00, barista 0.50");
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, fix.fake->asked[1].message_id, &m, &err), err);
    assert_non_null(strstr(m.adapters, "barista"));
    pp_message_clear(&m);
    pp_store_close(st);

    assert_int_equal(fix_slash("/continue"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 3);
    finish_all(2, 1);
    assert_string_equal(pp_controller_message(fix.c, 1)->adapters, "bard 1.00");
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, fix.fake->asked[1].message_id, &m, &err), err);
    assert_null(strstr(m.adapters, "barista"));
    pp_message_clear(&m);
    pp_store_close(st);
    const uint64_t told = fix_status()->notice_serial;
    assert_int_equal(fix_slash("/continue"), PP_SLASH_DONE); /* under the same adapters, which is not worth a notice */
    finish_all(3, 1);
    assert_int_equal(fix_status()->notice_serial, told);

    /* a compared answer, too, is continued under the adapters that are on; choosing it again switches them on */
    all_fit();
    assert_int_equal(fix_slash("/compare none barista"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 6);
    finish_all(4, 2);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_status()->adapters, "barista 0.50");
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora bard 0.25"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/continue"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 7);
    assert_string_equal(fix.fake->asked[6].adapters, "bard 0.25");
    finish_all(6, 1);
    pp_controller_sibling(fix.c, 1, -1);
    assert_string_equal(fix_status()->adapters, "");
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_status()->adapters, "bard 0.25");
}

static void misfits_stay_off(void **state)
{
    (void)state;
    fixture_flush(&fix);
    fixture_pump(&fix);
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    pp_controller_inspect_adapters(fix.c);
    pp_controller_inspect_adapters(fix.c); /* another inspection is requested while one is under way */
    assert_int_equal(fix.fake->inspections, 1);
    char misfit[900]; /* as the worker reports it; the list shows it next to bard */
    snprintf(misfit, sizeof misfit, "adapter %s: blk.0.attn_q.weight is [64, 64], not [576, 576]",
             entry("bard")->path);
    fake_adapter(&fix, misfit);
    pump_until(&fix, fix.fake->inspections == 2);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("barista")->fit == PP_FIT_YES);
    assert_int_equal(entry("barista")->facts.rank, 8);
    assert_int_equal(entry("bard")->fit, PP_FIT_NO);
    assert_string_equal(entry("bard")->reason, "blk.0.attn_q.weight is [64, 64], not [576, 576]");
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "[64, 64]"));
    assert_int_equal(fix_slash("/lora barista"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->adapters, "barista 0.50");
}

/* The adapters of a comparison are inspected first: the comparison makes no sense if one of them does not fit. */
static void compared_when_known(void **state)
{
    static const char misfit[] = "blk.7.attn_v.weight.lora_b holds values that are no numbers";
    char path[700];
    struct pp_error err;
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/compare none barista"), PP_SLASH_DONE);
    fake_adapter(&fix, NULL); /* the worker's report on bard, which was inspected first */
    pump_until(&fix, entry("bard")->fit == PP_FIT_YES);
    assert_false(pp_controller_settled(fix.c));
    assert_int_equal(fix.fake->generations, 1);
    fake_adapter(&fix, misfit);
    pump_until(&fix, entry("barista")->fit == PP_FIT_NO && pp_controller_settled(fix.c));
    assert_non_null(strstr(fix_status()->notice, "barista cannot be used with this model: blk.7.attn_v.weight"));
    assert_int_equal(fix_slash("/compare barista none"), PP_SLASH_ERROR); /* it is already known that it does not fit */
    assert_non_null(strstr(fix_status()->notice, "barista cannot be used with this model: blk.7"));
    assert_int_equal(fix.fake->generations, 1);
    assert_int_equal(fix_slash("/compare none bard"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 3);
    finish_all(1, 2);

    /* the file was replaced, but before it is inspected again the conversation changes; then once more, without a
     * change */
    snprintf(path, sizeof path, "%s", entry("barista")->path);
    assert_ok(pp_write_file(path, "whole now", 9, 0600, &err), err);
    assert_int_equal(fix_slash("/compare none barista"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/undo"), PP_SLASH_DONE);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("barista")->fit == PP_FIT_YES && pp_controller_settled(fix.c));
    assert_non_null(strstr(fix_status()->notice, "the conversation has changed in the meantime"));
    assert_int_equal(fix_slash("/redo"), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_settled(fix.c));
    assert_ok(pp_write_file(path, "and again", 9, 0600, &err), err);
    pp_controller_rescan(fix.c);
    pump_until(&fix, entry("barista")->fit == PP_FIT_UNKNOWN && pp_controller_settled(fix.c));
    assert_int_equal(fix_slash("/compare none barista"), PP_SLASH_DONE);
    assert_int_equal(fix.fake->generations, 3);
    fake_adapter(&fix, NULL);
    pump_until(&fix, fix.fake->generations == 5);
    assert_string_equal(fix.fake->asked[4].adapters, "barista 0.50");
}

/* Presets saved by another pippin while this one runs are seen when the list is opened again, and do not overwrite
 * newer ones of this one. */
static void presets_from_elsewhere(void **state)
{
    struct pp_error err;
    struct pp_store *st = fix_store();
    const struct pp_named *p;
    size_t n;
    (void)state;
    fixture_flush(&fix);
    fixture_pump(&fix);
    assert_int_equal(fix_slash("/lora save mine"), PP_SLASH_DONE);
    fixture_flush(&fix);
    assert_ok(pp_store_preset_put(st, "theirs", "[{\"path\":\"/m/bard.gguf\",\"scale\":0.25}]", &err), err);
    assert_int_equal(fix_slash("/lora preset theirs"), PP_SLASH_ERROR);
    pp_controller_rescan(fix.c);
    pump_until(&fix, (p = pp_controller_presets(fix.c, &n), n) == 2);
    assert_string_equal(p[1].name, "theirs");
    assert_string_equal(p[1].detail, "bard 0.25");
    pp_controller_rescan(fix.c); /* the list is read before the preset below is stored, but arrives after these
                                         commands were given */
    assert_int_equal(fix_slash("/lora drop theirs"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora save mine"), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_settled(fix.c));
    p = pp_controller_presets(fix.c, &n);
    assert_int_equal(n, 1);
    assert_string_equal(p[0].detail, "no adapter");
    assert_ok(pp_store_preset_put(st, "mine", NULL, &err), err); /* the other pippin deletes it, so it is gone here,
                                                                    too */
    pp_controller_rescan(fix.c);
    pump_until(&fix, pp_controller_settled(fix.c));
    pp_controller_presets(fix.c, &n);
    assert_int_equal(n, 0);
    assert_int_equal(fix_slash("/lora preset mine"), PP_SLASH_ERROR);
    pp_store_close(st);
}

/* Two adapters that cannot be on at once: the worker's report is shown before an answer is attempted. */
static void conflicts(void **state)
{
    (void)state;
    struct pp_switch_cost cost;
    fixture_flush(&fix);
    fixture_pump(&fix);
    assert_int_equal(fix_slash("/lora save both"), PP_SLASH_DONE);
    assert_int_equal(fix.fake->inspections, 1); /* both are on, so they are inspected */
    fix.fake->places.own[1] = fix.fake->places.scaled[1] = 6;
    fake_adapter(&fix, NULL);
    pump_until(&fix, fix.fake->inspections == 2);
    assert_null(strstr(fix_status()->notice, "conflicts"));
    fix.fake->places.own[1] = 4; /* barista replaces the same matrix as bard */
    fix.fake->places.scaled[1] = 0;
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("barista")->fit == PP_FIT_YES);
    assert_non_null(strstr(fix_status()->notice, "barista and bard cannot be on at once"));
    assert_int_equal(pp_controller_adapter_conflict(fix.c, 0), 1);
    assert_int_equal(pp_controller_adapter_conflict(fix.c, 1), 0);
    fixture_turn(&fix, "hello", "hi");
    cost = pp_controller_switch_cost(fix.c, SIZE_MAX);
    assert_true(cost.conflict && !cost.known);
    assert_false(pp_controller_switch_cost(fix.c, 0).conflict);

    assert_int_equal(fix_slash("/lora barista 0"), PP_SLASH_DONE);
    assert_true(pp_controller_adapter_conflict(fix.c, 0) == SIZE_MAX); /* strength 0 counts as off */
    assert_int_equal(fix_slash("/lora barista 0.5"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "barista and bard cannot be on at once"));
    assert_int_equal(fix_slash("/lora bard off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora barista 0.5"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "bard and barista cannot be on at once"));
    assert_false(pp_controller_set_adapter(fix.c, 0, true, 1));
    assert_int_equal(pp_controller_adapter_conflict(fix.c, 0), 1);
    assert_true(pp_controller_switch_cost(fix.c, 0).conflict);
    assert_false(pp_controller_switch_cost(fix.c, SIZE_MAX).conflict);
    assert_int_equal(fix_slash("/lora preset both"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "barista and bard cannot be on at once"));
    assert_string_equal(fix_status()->adapters, "barista 0.50");
    assert_int_equal(fix_slash("/compare none bard:1+barista:1"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/compare none both"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "barista and bard cannot be on at once"));
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->adapters, "bard 1.00");
}

/* F3 shows the folder as it is now: files that were added or removed, and whether a file that replaced another fits. */
static void folder_changes(void **state)
{
    (void)state;
    char path[700];
    struct pp_error err;
    fixture_flush(&fix);
    fixture_pump(&fix);
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    pp_controller_rescan(fix.c);
    fake_adapter(&fix, "it is half a file");
    pump_until(&fix, fix.fake->inspections == 2);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("barista")->fit == PP_FIT_YES && pp_controller_settled(fix.c));
    assert_int_equal(fix.fake->inspections, 2); /* the scan of the folder caused no further inspection */
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_ERROR);
    pp_controller_note_adapter(fix.c, 0, "mine");

    /* the file is replaced by a whole one: it may be switched on, and the list finds out by itself that it fits */
    snprintf(path, sizeof path, "%s", entry("bard")->path);
    assert_ok(pp_write_file(path, "whole now", 9, 0600, &err), err);
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_int_equal(entry("bard")->fit, PP_FIT_UNKNOWN);
    assert_int_equal(pp_controller_move_adapter(fix.c, 0, 1), 1);
    snprintf(path, sizeof path, "%s/adapters", fix.paths.data);
    assert_ok(pp_make_dirs(path, &err), err);
    snprintf(path, sizeof path, "%s/adapters/another.gguf", fix.paths.data);
    assert_ok(pp_write_file(path, "x", 1, 0600, &err), err);
    pp_controller_rescan(fix.c);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("bard")->fit == PP_FIT_YES && pp_controller_settled(fix.c));
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(fix.c, &n);
    assert_int_equal(n, 3);
    assert_string_equal(list[0].name, "barista"); /* in the order to which it was moved */
    assert_string_equal(list[1].note, "mine");
    assert_string_equal(list[2].name, "another");
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("another")->fit == PP_FIT_YES);

    assert_int_equal(unlink(path), 0);
    pp_controller_rescan(fix.c);
    pump_until(&fix, pp_controller_settled(fix.c));
    pp_controller_adapters(fix.c, &n);
    assert_int_equal(n, 2);
    assert_ok(pp_write_file(path, "y", 1, 0600, &err), err);
    pp_controller_rescan(fix.c);
    pump_until(&fix, pp_controller_settled(fix.c));
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("another")->fit == PP_FIT_YES);
    assert_int_equal(fix_slash("/lora another"), PP_SLASH_DONE);
    assert_int_equal(unlink(path), 0);
    pp_controller_rescan(fix.c);
    pump_until(&fix, entry("another")->fit == PP_FIT_UNKNOWN);
    pp_controller_adapters(fix.c, &n);
    assert_int_equal(n, 3); /* an adapter that is on stays in the list although its file is gone, and is inspected */
    assert_true(entry("another")->on);
}

/* An inspection that could not be requested is requested again when it is next needed. */
static void asked_again(void **state)
{
    (void)state;
    fixture_flush(&fix);
    fixture_pump(&fix);
    fix.fake->deaf = true;
    fix.fake->inspections = 0;
    fake_loaded(&fix); /* both adapters are on, and are therefore inspected at once */
    pump_until(&fix, fix.fake->inspections == 1);
    assert_int_equal(entry("bard")->fit, PP_FIT_UNKNOWN);
    fix.fake->deaf = false;
    pp_controller_inspect_adapters(fix.c);
    assert_int_equal(fix.fake->inspections, 2);
    fix.fake->deaf = true; /* a request in the middle of the list fails, too */
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("bard")->fit == PP_FIT_YES);
    assert_int_equal(fix.fake->inspections, 3);
    fix.fake->deaf = false;
    pp_controller_inspect_adapters(fix.c);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("barista")->fit == PP_FIT_YES);
    fixture_turn(&fix, "hello", "hi");
    fix.fake->deaf = true;
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    fix.fake->deaf = false;
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    assert_int_equal(fix.fake->prices, 2);
    fake_cost(&fix, 1000, 128);
    pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
}

static void the_price_of_a_switch(void **state)
{
    struct pp_switch_cost cost;
    (void)state;
    fixture_flush(&fix);
    fixture_pump(&fix);
    assert_true(pp_controller_switch_cost(fix.c, 9).cached); /* an empty conversation has nothing to compute again */
    fixture_turn(&fix, "hello", "hi");
    pp_controller_inspect_adapters(fix.c);
    assert_false(pp_controller_switch_cost(fix.c, 0).known); /* no cost is requested either, since the adapter may not
                                                                fit */
    assert_int_equal(fix.fake->prices, 0);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("bard")->fit == PP_FIT_YES);
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    assert_int_equal(fix.fake->prices, 1);
    assert_string_equal(fix.fake->price_of, "barista 0.50"); /* the adapters that are left without bard */
    assert_non_null(strstr(fix.fake->price_messages, "hi"));
    fake_cost(&fix, 1000, 128);
    pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
    cost = pp_controller_switch_cost(fix.c, 0);
    assert_int_equal(cost.tokens, 872);
    assert_false(cost.cached);
    assert_int_equal(fix.fake->prices, 1); /* not asked again */
    assert_false(pp_controller_switch_cost(fix.c, 9).known);
    assert_string_equal(fix.fake->price_of, "bard 1.00, barista 0.50");
    fake_cost(&fix, 1000, 995);
    pump_until(&fix, pp_controller_switch_cost(fix.c, 9).known);
    assert_true(pp_controller_switch_cost(fix.c, 9).cached);
    assert_int_equal(fix_slash("/lora bard 0.75"), PP_SLASH_DONE); /* the adapters have changed, so the cost is
                                                                      requested again */
    assert_false(pp_controller_switch_cost(fix.c, 9).failed);
    fake_no_cost(&fix);
    pump_until(&fix, pp_controller_switch_cost(fix.c, 9).failed);
    assert_false(pp_controller_switch_cost(fix.c, 9).known);
    assert_int_equal(fix.fake->prices--, 3);
    assert_int_equal(fix_slash("/lora bard 0.5"), PP_SLASH_DONE); /* another set of adapters costs something else */
    assert_false(pp_controller_switch_cost(fix.c, 9).known);
    assert_int_equal(fix.fake->prices, 3);
    fake_cost(&fix, 1000, 960); /* the last 40 tokens fill no page, and no speed has been measured yet */
    pump_until(&fix, pp_controller_switch_cost(fix.c, 9).known);
    assert_false(pp_controller_switch_cost(fix.c, 9).cached);
    assert_int_equal(pp_controller_switch_cost(fix.c, 9).tokens, 40);
    assert_true(pp_controller_switch_cost(fix.c, 9).seconds < 0);
    fix.fake->done = (struct pp_stats){.decode_tokens = 20, .decode_ns = 1000000000};
    fixture_turn(&fix, "more", "yes"); /* another turn: the prompt is another one */
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    assert_int_equal(fix.fake->prices, 4);
    fake_cost(&fix, 1000, 960); /* only the decoding speed is known: computing 40 tokens takes no longer than writing as
                                   many */
    pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
    cost = pp_controller_switch_cost(fix.c, 0);
    assert_true(cost.at_most && !cost.cached && cost.seconds > 1.99f && cost.seconds < 2.01f);
    fix.fake->done = (struct pp_stats){.prefill_tokens = 80, .prefill_ns = 1000000000};
    fixture_turn(&fix, "and more", "yes");
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    fake_cost(&fix, 1000, 960); /* now the prefill speed is known, too */
    pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
    cost = pp_controller_switch_cost(fix.c, 0);
    assert_true(!cost.at_most && !cost.cached && cost.seconds > 0.49f && cost.seconds < 0.51f);
    static const char *const others[] = {"/undo", "/redo", "/system Be brief.", "/persona pirate"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* each of these changes the prompt */
        assert_int_equal(fix_slash(others[i]), PP_SLASH_DONE);
        pump_until(&fix, pp_controller_settled(fix.c) && fix_status()->state == PP_STATE_IDLE);
        assert_false(pp_controller_switch_cost(fix.c, 0).known);
        fake_cost(&fix, 1000, 990);
        pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
    }
}

/* Before anything is computed, a switch's time is estimated from what was stored with the conversation's newest answer
 * that took long enough to measure. */
static void the_price_in_a_reopened_conversation(void **state)
{
    static const char *const stats[] = {
        "{\"prompt_tokens\":40,\"cached_tokens\":20,\"prefill_tps\":9.0,\"decode_tokens\":20,\"decode_tps\":20.0}",
        "{\"prompt_tokens\":90,\"cached_tokens\":10,\"prefill_tps\":160.0,\"decode_tokens\":20,\"decode_tps\":20.0}",
        "{\"prompt_tokens\":90,\"cached_tokens\":80,\"prefill_tps\":9.0,\"decode_tokens\":2,\"decode_tps\":9.0}"};
    struct pp_switch_cost cost;
    (void)state;
    fixture_flush(&fix);
    pp_controller_inspect_adapters(fix.c);
    fake_adapter(&fix, NULL);
    pump_until(&fix, entry("bard")->fit == PP_FIT_YES);
    for (int i = 0; i < 3; i++) {
        fix.fake->stats = stats[i];
        fixture_turn(&fix, "hello", "hi");
        fixture_flush(&fix);
        const int64_t id = pp_controller_session_id(fix.c);
        pp_controller_new_session(fix.c);
        pp_controller_open(fix.c, id);
        pump_until(&fix, pp_controller_session_id(fix.c) == id);
        assert_false(pp_controller_switch_cost(fix.c, 0).known);
        fake_cost(&fix, 1000, 200);
        pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
        cost = pp_controller_switch_cost(fix.c, 0);
        assert_int_equal(cost.at_most, i == 0); /* only the answer was long enough: 800 tokens at 20 a second */
        assert_float_equal(cost.seconds, i ? 5 : 40, 0.01);
    }
    /* what is measured now counts */
    fix.fake->done = (struct pp_stats){.prefill_tokens = 80, .prefill_ns = 1000000000};
    fixture_turn(&fix, "more", "yes");
    assert_false(pp_controller_switch_cost(fix.c, 0).known);
    fake_cost(&fix, 1000, 200);
    pump_until(&fix, pp_controller_switch_cost(fix.c, 0).known);
    assert_float_equal(pp_controller_switch_cost(fix.c, 0).seconds, 10, 0.01);
}

TEST_GROUP(adapter_mix)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(no_character_is_cut),
        cmocka_unit_test_setup_teardown(nothing_at_strength_zero, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(compared, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(compared_and_left, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(mistakes, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(order_is_kept, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(presets, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(presets_from_elsewhere, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(added_with_a_note, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(two_of_a_name, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(by_a_link, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(many, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(odd_names, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(still_looked_for, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(misfits_stay_off, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(compared_when_known, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(conflicts, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(folder_changes, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(goes_on_under_others, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(asked_again, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(the_price_of_a_switch, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(the_price_in_a_reopened_conversation, setup, fix_teardown),
    };
    return cmocka_run_group_tests_name("adapter_mix", tests, NULL, NULL);
}
