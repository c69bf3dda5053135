/* menu.h - lists over the screen: one widget, and a file menu_NAME.c for what each shows and does. UI thread. */
#ifndef PP_UI_MENU_H
#define PP_UI_MENU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ui/field.h"
#include "ui/input.h"

struct pp_controller;
struct pp_menu;
struct pp_named;
struct pp_ui;

enum { PP_MENU_DETAIL = 320, PP_MENU_MAX_DETAILS = 8 };

struct pp_menu_row {
    char left[320], right[128]; /* untrusted text */
    bool current;               /* marked with a dot */
    bool heading;               /* drawn as a heading */
    bool dim;                   /* cannot be chosen */
};

/* Functions that are NULL do nothing. */
struct pp_menu_class {
    const char *title;
    const struct pp_menu_class *parent; /* the menu that Esc returns to; NULL: none */
    const char *hint;   /* the keys, at the lower edge */
    const char *empty;  /* shown when there are no rows; */
    const char *(*why_empty)(struct pp_ui *ui, struct pp_menu *m); /* or the result of this */
    bool columns;       /* right parts form a column instead of being aligned to the right edge */
    bool search;        /* typing changes menu->search and calls searched() */
    void (*open)(struct pp_ui *ui, struct pp_menu *m);
    bool (*pending)(struct pp_ui *ui, struct pp_menu *m);  /* new rows have been requested: Enter waits for them */
    /* The rows, as a list of the controller's; the current one is selected first. NULL: count() and row() give them. */
    const struct pp_named *(*named)(const struct pp_controller *c, size_t *n);
    size_t (*count)(struct pp_ui *ui, struct pp_menu *m);
    void (*row)(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row); /* *row is zeroed */
    /* Called before the menu itself handles a key. True: the key was handled. */
    bool (*key)(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key);
    void (*choose)(struct pp_ui *ui, struct pp_menu *m);   /* Enter on a row */
    void (*moved)(struct pp_ui *ui, struct pp_menu *m);    /* another row is selected */
    void (*cancel)(struct pp_ui *ui, struct pp_menu *m);   /* Esc; the menu closes */
    void (*searched)(struct pp_ui *ui, struct pp_menu *m);
    /* The answer to pp_menu_ask. False: refused; question and text stay, and a notice says why. */
    bool (*answered)(struct pp_ui *ui, struct pp_menu *m, const char *text);
    void (*confirmed)(struct pp_ui *ui, struct pp_menu *m);                  /* yes to pp_menu_confirm */
    void (*close)(struct pp_ui *ui, struct pp_menu *m);
    /* Lines about the selected row, below the list; the same number for every row. A long one takes several rows of the
     * screen where there is room. */
    int n_details;
    void (*details)(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL]); /* [n_details], zeroed */
    void (*complete)(struct pp_ui *ui, struct pp_menu *m); /* Tab while typing in menu->field */
};

enum pp_menu_mode { PP_MENU_LIST, PP_MENU_ASK, PP_MENU_CONFIRM };

struct pp_menu {
    const struct pp_menu_class *cls;
    enum pp_menu_mode mode;
    size_t selected, top, shown; /* rows: the selected one, the first on the screen, and how many are there */
    struct pp_field search, field;
    char question[400];
    int64_t subject;   /* id of what a question is about, */
    char name[64];     /* or its name, since the list may have changed by the time of the answer */
    bool chosen;       /* Enter was pressed while the rows were pending */
    bool being_checked; /* the answer is, and no key has come since: if it is refused, it is asked for again */
    uint64_t refused_at;  /* ui->notice_at of the notice that tells why the answer was refused; 0: it was not */
    uint64_t notice_seen; /* ui->notice_at of the notice that was shown before the last key */
    int asking;        /* which of the class' questions it is */
    int details_w, details_rows; /* the most rows that details have taken so far, at this width in columns */
    void *data;        /* of the class; freed by its close() */
};

/* Shows a menu of this class, and closes the one that is open. */
void pp_menu_open(struct pp_ui *ui, const struct pp_menu_class *cls);
void pp_menu_close(struct pp_ui *ui);  /* no effect if none is open */
void pp_menu_cancel(struct pp_ui *ui); /* closes it as Esc does */
/* Puts a path that could not be added back into the field, if the menu of adapters is open and no key has come since.
 * */
void pp_menu_lora_refused(struct pp_ui *ui, const char *path);
/* Moves the selection by the mouse wheel: < 0 up. */
void pp_menu_wheel(struct pp_ui *ui, int rows);
/* Handles a key in the open menu; the present notice counts as read then. */
void pp_menu_key(struct pp_ui *ui, const struct pp_key *key);
void pp_menu_settle(struct pp_ui *ui); /* after a pump: makes a choice that was waiting for rows, if they have come */
void pp_menu_draw(struct pp_ui *ui); /* and places the cursor */
/* Ask below the list for a line of text, which initially is `text`, or for a yes or no. The class' answered() or
 * confirmed() gets the answer; Esc cancels. */
void pp_menu_ask(struct pp_ui *ui, const char *question, const char *text);
void pp_menu_confirm(struct pp_ui *ui, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void pp_menu_complete_path(struct pp_ui *ui); /* in the field; a notice lists the candidates */
int pp_menu_width(const struct pp_ui *ui); /* cells available for a row without a right part */

extern const struct pp_menu_class pp_menu_help, pp_menu_sessions, pp_menu_models, pp_menu_lora, pp_menu_presets,
    pp_menu_templates, pp_menu_personas, pp_menu_draft, pp_menu_themes, pp_menu_params, pp_menu_overflow;

#endif
