#include "ui/theme.h"

#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/whole_io.h"
#include "engine/base/word.h"

#define THEME_END ".theme"

enum { MAX_PALETTE = 64, MAX_THEMES = 256, MAX_FILE_BYTES = 64 * 1024 };

/* Parents come before their children. */
static const struct {
    const char *name;
    enum pp_slot parent;
} slots[PP_SLOTS] = {
    [PP_SLOT_TEXT] = {"text", PP_SLOT_TEXT},
    [PP_SLOT_DIM] = {"dim", PP_SLOT_TEXT},
    [PP_SLOT_USER] = {"user", PP_SLOT_TEXT},
    [PP_SLOT_USER_NAME] = {"user_name", PP_SLOT_TEXT},
    [PP_SLOT_ASSISTANT] = {"assistant", PP_SLOT_TEXT},
    [PP_SLOT_ASSISTANT_NAME] = {"assistant_name", PP_SLOT_TEXT},
    [PP_SLOT_SYSTEM] = {"system", PP_SLOT_DIM},
    [PP_SLOT_CODE] = {"code", PP_SLOT_TEXT},
    [PP_SLOT_CODE_BLOCK] = {"code_block", PP_SLOT_CODE},
    [PP_SLOT_CODE_LABEL] = {"code_label", PP_SLOT_CODE_BLOCK},
    [PP_SLOT_CODE_COMMENT] = {"code_comment", PP_SLOT_CODE_BLOCK},
    [PP_SLOT_CODE_STRING] = {"code_string", PP_SLOT_CODE_BLOCK},
    [PP_SLOT_CODE_NUMBER] = {"code_number", PP_SLOT_CODE_BLOCK},
    [PP_SLOT_CODE_KEYWORD] = {"code_keyword", PP_SLOT_CODE_BLOCK},
    [PP_SLOT_HEADING] = {"heading", PP_SLOT_TEXT},
    [PP_SLOT_LINK] = {"link", PP_SLOT_TEXT},
    [PP_SLOT_QUOTE] = {"quote", PP_SLOT_DIM},
    [PP_SLOT_REASONING] = {"reasoning", PP_SLOT_DIM},
    [PP_SLOT_DRAFTED] = {"guessed", PP_SLOT_TEXT},
    [PP_SLOT_BULLET] = {"bullet", PP_SLOT_DIM},
    [PP_SLOT_BORDER] = {"border", PP_SLOT_DIM},
    [PP_SLOT_INPUT] = {"input", PP_SLOT_TEXT},
    [PP_SLOT_PROMPT] = {"prompt", PP_SLOT_INPUT},
    [PP_SLOT_NOTICE] = {"notice", PP_SLOT_TEXT},
    [PP_SLOT_ERROR] = {"error", PP_SLOT_TEXT},
    [PP_SLOT_TITLE] = {"title", PP_SLOT_TEXT},
    [PP_SLOT_STATUS] = {"status", PP_SLOT_TEXT},
    [PP_SLOT_STATUS_STRONG] = {"status_strong", PP_SLOT_STATUS},
    [PP_SLOT_METER] = {"meter", PP_SLOT_STATUS},
    [PP_SLOT_KEYS] = {"keys", PP_SLOT_DIM},
    [PP_SLOT_KEY] = {"key", PP_SLOT_KEYS},
    [PP_SLOT_MENU] = {"menu", PP_SLOT_TEXT},
    [PP_SLOT_MENU_BORDER] = {"menu_border", PP_SLOT_MENU},
    [PP_SLOT_MENU_TITLE] = {"menu_title", PP_SLOT_MENU},
    [PP_SLOT_MENU_DIM] = {"menu_dim", PP_SLOT_MENU},
    [PP_SLOT_SELECTED] = {"selected", PP_SLOT_MENU},
};

/* --- colours ----------------------------------------------------------------------------------------------- */

static const int ansi_rgb[16] = {0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
                                 0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF};

static int cube_level(int i)
{
    return i == 0 ? 0 : 55 + 40 * i;
}

/* xterm's 256 colours: 16 defined by the terminal, a 6 x 6 x 6 cube, 24 greys. */
static int index_rgb(int index)
{
    if (index < 16)
        return ansi_rgb[index];
    if (index < 232) {
        int c = index - 16;
        return cube_level(c / 36) << 16 | cube_level(c / 6 % 6) << 8 | cube_level(c % 6);
    }
    int grey = 8 + 10 * (index - 232);
    return grey << 16 | grey << 8 | grey;
}

static int distance(int a, int b)
{
    int r = (a >> 16 & 255) - (b >> 16 & 255), g = (a >> 8 & 255) - (b >> 8 & 255), blue = (a & 255) - (b & 255);
    return 3 * r * r + 4 * g * g + 2 * blue * blue; /* approximate weights of human vision */
}

static int nearest(int rgb, int first, int last)
{
    int best = first;
    for (int i = first + 1; i <= last; i++)
        if (distance(rgb, index_rgb(i)) < distance(rgb, index_rgb(best)))
            best = i;
    return best;
}

int pp_color_reduce(struct pp_color c, int colors)
{
    if (c.kind == PP_COLOR_UNSET || c.kind == PP_COLOR_DEFAULT || colors < 8)
        return -1;
    int few = colors >= 16 ? 15 : 7;
    if (c.kind == PP_COLOR_INDEX) {
        if (colors >= 1 << 24) /* on direct-colour terminals ncurses takes 0 to 7 as the palette */
            return c.value < 8 ? c.value : index_rgb(c.value);
        if (c.value <= few || (c.value < colors && colors >= 256))
            return c.value;
        return c.value < 16 ? c.value - 8 : nearest(index_rgb(c.value), 0, few);
    }
    if (colors >= 1 << 24)
        return c.value < 8 ? 8 : c.value;
    return colors >= 256 ? nearest(c.value, 16, 255) : nearest(c.value, 0, few);
}

int pp_color_reduce_on(struct pp_color c, int bg, int colors)
{
    const int fg = pp_color_reduce(c, colors);
    const bool black = c.kind == PP_COLOR_INDEX ? c.value == 0 : c.kind == PP_COLOR_RGB && c.value == 0;
    if (colors >= 16 || fg < 0)
        return fg;
    if (bg < 0)
        /* a grey that became black would be invisible on a black default background */
        return fg == 0 && !black ? -1 : fg;
    return fg != bg ? fg : bg == 0 ? 7 : 0;
}

/* --- parsing ----------------------------------------------------------------------------------------------- */

struct parser {
    struct pp_theme *t;
    FILE *file;
    struct { char name[32]; struct pp_color color; } palette[MAX_PALETTE];
    int n_palette;
    int line;         /* number of the current line */
    char reason[256]; /* why a line was refused */
    int refused;      /* the number of the first refused line; 0: none */
};

static bool ansi_color(const char *s, struct pp_color *c)
{
    static const char *const names[] = {"black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"};
    int bright = strncmp(s, "bright-", 7) == 0 ? 8 : 0;
    for (int i = 0; i < 8; i++)
        if (strcmp(s + (bright ? 7 : 0), names[i]) == 0) {
            *c = (struct pp_color){PP_COLOR_INDEX, i + bright};
            return true;
        }
    return false;
}

static bool parse_color(const struct parser *p, const char *s, struct pp_color *c)
{
    for (int i = 0; i < p->n_palette; i++)
        if (strcmp(p->palette[i].name, s) == 0) {
            *c = p->palette[i].color;
            return true;
        }
    if (strcmp(s, "default") == 0) {
        *c = (struct pp_color){PP_COLOR_DEFAULT, 0};
        return true;
    }
    if (ansi_color(s, c))
        return true;
    size_t len = strlen(s);
    if (s[0] == '#' && len == 7 && strspn(s + 1, "0123456789abcdefABCDEF") == 6) {
        *c = (struct pp_color){PP_COLOR_RGB, (int)strtol(s + 1, NULL, 16)};
        return true;
    }
    if (len > 0 && len < 4 && strspn(s, "0123456789") == len && atoi(s) < 256) {
        *c = (struct pp_color){PP_COLOR_INDEX, atoi(s)};
        return true;
    }
    return false;
}

static unsigned parse_attribute(const char *s)
{
    static const struct { const char *name; unsigned flag; } table[] = {
        {"bold", PP_BOLD}, {"dim", PP_FAINT}, {"italic", PP_ITALIC}, {"underline", PP_UNDERLINE},
        {"reverse", PP_REVERSE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(s, table[i].name) == 0)
            return table[i].flag;
    return 0;
}

static int refuse(struct parser *p, const char *fmt, const char *what)
{
    if (!p->refused) {
        pp_utf8_print(p->reason, sizeof p->reason, fmt, what);
        p->refused = p->line;
    }
    return 0;
}

static int parse_look(struct parser *p, struct pp_look *look, const char *value)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", value);
    *look = (struct pp_look){.set = true};
    bool background = false;
    char *rest = NULL;
    for (char *word = strtok_r(copy, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        struct pp_color color;
        unsigned flag = parse_attribute(word);
        if (strcmp(word, "on") == 0) {
            background = true;
        } else if (flag) {
            look->flags |= flag;
        } else if (parse_color(p, word, &color)) {
            *(background ? &look->bg : &look->fg) = color;
            background = false;
        } else {
            return refuse(p, "'%s' is neither a colour nor an attribute", word);
        }
    }
    return background ? refuse(p, "a background colour is missing after '%s'", "on") : 1;
}

static int add_palette(struct parser *p, const char *name, const char *value)
{
    struct pp_color color;
    if (p->n_palette == MAX_PALETTE)
        return refuse(p, "the palette has too many colours, from '%s' on", name);
    if (strlen(name) >= sizeof p->palette[0].name)
        return refuse(p, "the name '%s' is too long", name);
    if (!parse_color(p, value, &color))
        return refuse(p, "'%s' is not a colour (a name, 0 to 255, or #rrggbb)", value);
    strcpy(p->palette[p->n_palette].name, name);
    p->palette[p->n_palette++].color = color;
    return 1;
}

static int on_entry(void *user, const char *section, const char *name, const char *value)
{
    struct parser *p = user;
    if (!*section) {
        if (strcmp(name, "name") != 0)
            return refuse(p, "'%s' is unknown here (only `name`; styles go under [styles])", name);
        snprintf(p->t->title, sizeof p->t->title, "%s", value);
        return 1;
    }
    if (strcmp(section, "palette") == 0)
        return add_palette(p, name, value);
    if (strcmp(section, "styles") != 0)
        return refuse(p, "there is no section [%s]", section);
    for (int i = 0; i < PP_SLOTS; i++)
        if (strcmp(slots[i].name, name) == 0)
            return parse_look(p, &p->t->looks[i], value);
    return refuse(p, "there is no style '%s'", name);
}

/* Reads lines for inih, which would take the rest of an overlong line as another one: overlong lines are refused
 * here, except for comments, which may have any length. */
static char *next_line(char *out, int size, void *user)
{
    struct parser *p = user;
    int n = 0, c;
    bool fits = true, is_text = true;
    while ((c = getc(p->file)) != EOF && c != '\n') {
        is_text = is_text && c;
        fits = fits && n + 2 < size; /* room for \n and NUL */
        if (fits)
            out[n++] = (char)c;
    }
    if (c == EOF && n == 0)
        return NULL;
    out[n] = '\0';
    p->line++;
    const char *first = out + strspn(out, " \t");
    if (*first == ';' || *first == '#')
        n = 0;
    else if (!is_text || !fits)
        n = refuse(p, is_text ? "the line is too long: '%.40s...'" : "this is not text", out);
    return strcpy(out + n, "\n") - n;
}

/* Fills in what the theme does not set. Drafted text is underlined if the theme has no style for it. */
static void inherit(struct pp_theme *t)
{
    if (!t->looks[PP_SLOT_DRAFTED].set)
        t->looks[PP_SLOT_DRAFTED] = (struct pp_look){.flags = PP_UNDERLINE, .set = true};
    for (int i = 0; i < PP_SLOTS; i++) {
        struct pp_look *look = &t->looks[i], *parent = &t->looks[slots[i].parent];
        if (!look->set)
            *look = *parent;
        if (look->fg.kind == PP_COLOR_UNSET)
            look->fg = parent->fg;
        if (look->bg.kind == PP_COLOR_UNSET)
            look->bg = parent->bg;
    }
}

/* The fallback without colours if a theme file cannot be read. */
static void use_plain(struct pp_theme *t)
{
    *t = (struct pp_theme){.id = "plain", .title = "Plain"};
    static const struct { enum pp_slot slot; unsigned flag; } table[] = {
        {PP_SLOT_USER_NAME, PP_BOLD}, {PP_SLOT_ASSISTANT_NAME, PP_BOLD}, {PP_SLOT_HEADING, PP_BOLD},
        {PP_SLOT_ERROR, PP_BOLD}, {PP_SLOT_KEY, PP_BOLD}, {PP_SLOT_MENU_TITLE, PP_BOLD}, {PP_SLOT_LINK, PP_UNDERLINE},
        {PP_SLOT_STATUS, PP_REVERSE}, {PP_SLOT_SELECTED, PP_REVERSE}, {PP_SLOT_DRAFTED, PP_UNDERLINE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        t->looks[table[i].slot] = (struct pp_look){.flags = table[i].flag, .set = true};
    inherit(t);
}

enum pp_code pp_theme_parse(FILE *f, const char *file, struct pp_theme *t, struct pp_error *err)
{
    struct parser p = {.t = t, .file = f};
    *t = (struct pp_theme){0};
    const int line = ini_parse_stream(next_line, &p, on_entry, &p);
    if (line != 0 || p.refused) {
        use_plain(t);
        if (line < 0)
            return pp_fail(err, PP_ERR_IO, "cannot read the theme %s", file);
        const bool refused = p.refused && (!line || p.refused <= line);
        return pp_fail(err, PP_ERR_FORMAT, "%s, line %d: %s.", file, refused ? p.refused : line,
                       refused ? p.reason : "this is not NAME = VALUE");
    }
    inherit(t);
    return PP_OK;
}

/* --- files ------------------------------------------------------------------------------------------------- */

static bool is_name(const char *id)
{
    size_t len = strlen(id);
    return len > 0 && len < 64 && strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == len;
}

/* Opens a theme; the user's own takes precedence, even if it cannot be read. NULL: path is "" if there is none of
 * that name, otherwise errno says why it cannot be opened. */
static FILE *open_theme(const struct pp_paths *paths, const char *id, char *path, size_t cap)
{
    const char *const formats[] = {"%s/themes/%s.theme", "%s/%s.theme"};
    const char *const folders[] = {paths->config, paths->themes};
    struct stat st;
    *path = '\0';
    if (strchr(id, '/'))
        return pp_ends_with(id, THEME_END) && pp_expand_home(id, path, cap) ? pp_open_regular(path) : NULL;
    for (int i = 0; i < 2 && is_name(id); i++) {
        if (!*folders[i])
            continue;
        snprintf(path, cap, formats[i], folders[i], id);
        FILE *f = pp_open_regular(path);
        const int why = errno;
        if (f || lstat(path, &st) == 0) {
            errno = why;
            return f;
        }
    }
    *path = '\0';
    return NULL;
}

static enum pp_code fail_unknown(const struct pp_paths *paths, const char *id, struct pp_error *err)
{
    char(*ids)[64], names[400] = "";
    size_t n;
    struct stat st;
    if (strchr(id, '/') && stat(id, &st) != 0 && errno == ENOENT)
        return pp_fail(err, PP_ERR_NOT_FOUND, "there is no file %.200s", id);
    if (strchr(id, '/'))
        return pp_fail(err, PP_ERR_NOT_FOUND,
                       "%.200s is not a theme: give the name of one, or a file NAME" THEME_END ".",
                       id);
    enum pp_code code = pp_theme_list(paths, &ids, &n, err);
    if (code != PP_OK)
        return code;
    for (size_t i = 0, used = 0; i < n && used + 68 < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", ids[i]);
    pp_free(ids);
    return pp_fail(err, PP_ERR_NOT_FOUND, "there is no theme \"%.60s\"; choose from %s", id,
                   *names ? names : "none at all");
}

enum pp_code pp_theme_load(const struct pp_paths *paths, const char *id, struct pp_theme *t, struct pp_error *err)
{
    char path[1200];
    struct stat st;
    use_plain(t);
    FILE *f = open_theme(paths, id, path, sizeof path);
    if (!f && *path && !strchr(id, '/'))
        return pp_fail(err, PP_ERR_IO, "cannot open %s: %s", path,
                       errno == EINVAL ? "it is not a regular file" : strerror(errno));
    if (!f)
        return fail_unknown(paths, id, err);
    enum pp_code code;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE_BYTES)
        code = pp_fail(err, PP_ERR_FORMAT, "%s is not a theme: it must be a file of at most %d bytes.", path,
                       MAX_FILE_BYTES);
    else
        code = pp_theme_parse(f, path, t, err);
    fclose(f);
    if (code == PP_OK) {
        snprintf(t->id, sizeof t->id, "%.63s", id);
        if (!t->title[0])
            snprintf(t->title, sizeof t->title, "%s", t->id);
    }
    return code;
}

struct names {
    char (*ids)[64];
    size_t n, cap;
};

static int add_folder(struct names *names, const char *folder)
{
    DIR *d = opendir(folder);
    int failed = 0;
    for (struct dirent *e; d && !failed && names->n < MAX_THEMES && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len >= 64 || !pp_ends_with(e->d_name, THEME_END))
            continue;
        failed = pp_grow(&names->ids, &names->cap, names->n + 1, sizeof *names->ids);
        if (failed)
            break;
        snprintf(names->ids[names->n], sizeof *names->ids, "%.*s", (int)(len - strlen(THEME_END)), e->d_name);
        names->n += is_name(names->ids[names->n]);
    }
    if (d)
        closedir(d);
    return failed;
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

enum pp_code pp_theme_list(const struct pp_paths *paths, char (**ids)[64], size_t *n, struct pp_error *err)
{
    struct names names = {0};
    char own[600];
    *ids = NULL;
    *n = 0;
    snprintf(own, sizeof own, "%s/themes", paths->config);
    if ((*paths->config && add_folder(&names, own) != 0) ||
        (*paths->themes && add_folder(&names, paths->themes) != 0)) {
        pp_free(names.ids);
        return pp_fail_nomem(err, "the list of themes");
    }
    if (names.n)
        qsort(names.ids, names.n, sizeof *names.ids, compare);
    for (size_t i = 0; i < names.n; i++)
        if (*n == 0 || strcmp(names.ids[i], names.ids[*n - 1]) != 0)
            memmove(names.ids[(*n)++], names.ids[i], sizeof *names.ids);
    *ids = names.ids;
    return PP_OK;
}
