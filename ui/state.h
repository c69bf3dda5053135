/* state.h - the state that the parts of the screen share. UI thread only. */
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

/* The areas of the screen, from the top; an area of height 0 is not shown. */
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
    enum pp_reasoning_view reasoning; /* how much of it is shown */
    unsigned dirty;                   /* PP_DRAW_... */
    enum pp_state state;              /* of the controller, at the last pump */
    char notice[1024];                /* "" for none */
    bool notice_is_error;
    uint64_t notice_at;               /* when it was set, pp_now_ns */
    bool unsent_in_history;           /* on leaving, the unsent input was added to the history; */
    struct pp_buf unsent_files;       /* or, too long for that, to files of these names, */
    struct pp_buf unsent;             /* or it is only here, */
    struct pp_error unsent_why;       /* for this reason */
    char unsaved;                     /* the first letter of the drawn reason why something is not saved */
    int writing;                      /* answers being written, here and elsewhere, at the last pump */
    uint64_t notice_serial;           /* of the controller's last one */
    uint64_t overflow_serial;         /* of the controller's last question about a full context */
    uint64_t read_at;                 /* time of the last key; 0: none yet */
    uint64_t interrupted_at;          /* time of the last Ctrl-C: a second one soon after leaves; 0: none */
    int64_t session;                  /* on screen, at the last pump */
    struct {
        int64_t session, message;     /* 0: none */
        char search[256];
        bool in_title;                /* the title matched: the newest message that matches, too, is shown */
        bool asked;                   /* it is on another branch, which has been requested */
    } found;                          /* a search result, shown as soon as its conversation is on the screen */
    struct {
        char words[256];              /* "": nothing yet */
        int64_t message;              /* the match shown last; 0: none */
    } find;                           /* /find */
    size_t editing;                   /* /edit: index + 1 of the message that the input line will replace; 0 for none */
    enum pp_role editing_role;        /* ... and its role */
    size_t sent_edit;                 /* `editing` when the last message was sent */
    char *next_line;                  /* the next input line, set once readline has emptied it; NULL: none */
    char *queued;                     /* sent once the model is loaded, if the line is still the same; or NULL */
    bool history_failed;              /* the last attempt to write the history */
    bool no_color;
    bool leaving;                     /* the controller is closing */
    char last_key[24];                /* key of the session for the hint at the end */
};

/* --- ui.c */
/* Shows a notice above the input line, replacing the one before; sanitised when it is drawn, truncated between
 * characters. The first key after two seconds removes it; an error stays until Esc, or until a line is sent. */
void pp_ui_notice(struct pp_ui *ui, bool error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void pp_ui_clear_notice(struct pp_ui *ui);
void pp_ui_leave(struct pp_ui *ui);   /* begins to leave; the loop ends when the controller is closed */
void pp_ui_resize(struct pp_ui *ui);  /* adopts the terminal's size, and redraws */
void pp_ui_suspend(struct pp_ui *ui); /* Ctrl-Z: returns when the job continues */
/* Uses a theme. False: it is broken; a notice says so, and the look is plain. */
bool pp_ui_use_theme(struct pp_ui *ui, const char *id);
void pp_ui_show_found(struct pp_ui *ui); /* scrolls to ui->found, if that is in the conversation on the screen */
void pp_ui_save_theme(struct pp_ui *ui, const char *id); /* uses a theme, also after the next start */
/* Saves one of ui->settings in their file; a notice follows if that fails. */
void pp_ui_save_setting(struct pp_ui *ui, const char *name, const char *value);

/* --- keys.c */
/* Handles a key, in the open menu or else in the input line and the conversation. */
void pp_ui_key(struct pp_ui *ui, const struct pp_key *key);
bool pp_ui_accept(void *user, const char *text);        /* Enter: see edit.h */
void pp_ui_send_queued(struct pp_ui *ui);               /* once the model is loaded and no menu is open */
void pp_ui_toggle_tint(struct pp_ui *ui);               /* of drafted text; saved in the settings */

#endif
