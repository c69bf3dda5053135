/* state.h - what the parts of the screen share: the program's view of itself. UI thread only. */
#ifndef PP_UI_STATE_H
#define PP_UI_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/controller.h"
#include "src/options.h"
#include "src/paths.h"
#include "ui/draw.h"
#include "ui/input.h"
#include "ui/menu.h"
#include "ui/settings.h"
#include "ui/theme.h"
#include "ui/view_input.h"
#include "ui/view_reasoning.h"
#include "ui/view_transcript.h"

enum { PP_DRAW_INPUT = 1, PP_DRAW_STATUS = 2, PP_DRAW_TRANSCRIPT = 4, PP_DRAW_MENU = 8, PP_DRAW_ALL = 15 };

/* Where things are. Heights of 0 are not shown. From the top: transcript, notice, rule, input, status, keys. */
struct pp_geometry {
    int rows, cols;
    struct pp_area transcript, notice, rule, input, status, keys;
};

struct pp_ui {
    const struct pp_options *options;
    const struct pp_paths *paths;
    struct pp_controller *controller;
    struct pp_input *keyboard;
    struct pp_theme theme;
    struct pp_settings settings;
    struct pp_geometry at;
    struct pp_transcript transcript;
    struct pp_input_view input;
    struct pp_menu menu;              /* cls NULL: none is open */
    enum pp_reasoning_view reasoning; /* what is seen of it */
    unsigned dirty;                   /* PP_DRAW_... */
    enum pp_state state;              /* of the controller, at the last pump */
    char notice[1024];                /* "" for none */
    bool notice_is_error;
    uint64_t notice_at;               /* when it came, pp_now_ns */
    bool rest_kept;                   /* what was being typed is in the history; */
    struct pp_buf unsent_in;          /* or, too long for that, in these files, by name */
    struct pp_buf unsent;             /* or nowhere but here, */
    struct pp_error unsent_why;       /* for this reason */
    char unsaved;                     /* the first letter of why something is not saved, as drawn */
    uint64_t notice_serial;           /* of the controller's last one */
    uint64_t overflow_serial;         /* of the controller's last question about a full context */
    uint64_t read_at;                 /* when the last key came; 0: none yet */
    uint64_t interrupted_at;          /* last Ctrl-C: a second one soon after leaves; 0 for none */
    int64_t session;                  /* on screen, at the last pump */
    struct {
        int64_t session, message;     /* 0: none */
        char search[256];
        bool in_title;                /* the newest message that has it, too, is shown */
        bool asked;                   /* it is on another branch, which is on its way */
    } found;                          /* by a search: shown as soon as its conversation is on the screen */
    struct {
        char words[256];              /* "" : nothing yet */
        int64_t message;              /* that was shown last; 0: none */
    } find;                           /* /find */
    size_t editing;                   /* /edit: index + 1 of the message that the input line will replace; 0 for none */
    enum pp_role editing_role;        /* ... and whose it is */
    size_t sent_edit;                 /* what `editing` was when the last message went */
    char *next_line;                  /* what the input line becomes once readline has emptied it; NULL: nothing */
    char *held;                       /* what is sent once the model is there, if it still is the line; or NULL */
    bool history_failed;              /* the last attempt to write it */
    bool no_color;
    bool leaving;                     /* the controller is closing */
    char last_key[24];                /* session to name in the hint at the end */
};

/* --- ui.c */
/* Says something above the input line, in the place of what was said before; sanitised when it is drawn, cut between
 * characters. The first key after two seconds takes it away; an error stays until Esc, or until a line is sent. */
void pp_ui_notice(struct pp_ui *ui, bool error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void pp_ui_clear_notice(struct pp_ui *ui);
void pp_ui_leave(struct pp_ui *ui);   /* begins to; the loop ends when the controller is closed */
void pp_ui_resize(struct pp_ui *ui);  /* takes the terminal's size, and draws anew */
void pp_ui_suspend(struct pp_ui *ui); /* Ctrl-Z: returns when the job goes on */
/* Uses a theme; a broken one leaves a notice and a plain look, and is false. */
bool pp_ui_use_theme(struct pp_ui *ui, const char *id);
void pp_ui_show_found(struct pp_ui *ui); /* what a search has found, if it is in the conversation on the screen */
void pp_ui_keep_theme(struct pp_ui *ui, const char *id); /* and remembers it for the next start */
/* One of ui->settings, to their file; a notice follows if that cannot be. */
void pp_ui_keep(struct pp_ui *ui, const char *name, const char *value);

/* --- keys.c */
/* What a key does, in the menu that is open or else in the line and the conversation. */
void pp_ui_key(struct pp_ui *ui, const struct pp_key *key);
bool pp_ui_accept(void *user, const char *text);        /* Enter: see edit.h */
void pp_ui_send_held(struct pp_ui *ui);                 /* the model has been loaded, and no menu is open */
void pp_ui_toggle_tint(struct pp_ui *ui);               /* of what was guessed; kept in the settings */

#endif
