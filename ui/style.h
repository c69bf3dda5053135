/* style.h - the style of a piece of text: a slot of the theme, plus emphasis. Their colours are defined by the theme
 * (theme.h). */
#ifndef PP_UI_STYLE_H
#define PP_UI_STYLE_H

#include <stdint.h>

/* Their names in theme files are in theme.c, along with each slot's parent, from which it inherits what a theme does
 * not set. */
enum pp_slot {
    PP_SLOT_TEXT, PP_SLOT_DIM, PP_SLOT_USER, PP_SLOT_USER_NAME, PP_SLOT_ASSISTANT, PP_SLOT_ASSISTANT_NAME,
    PP_SLOT_SYSTEM, PP_SLOT_CODE, PP_SLOT_CODE_BLOCK, PP_SLOT_CODE_LABEL, PP_SLOT_HEADING, PP_SLOT_LINK,
    PP_SLOT_QUOTE, PP_SLOT_BULLET, PP_SLOT_BORDER, PP_SLOT_INPUT, PP_SLOT_PROMPT, PP_SLOT_NOTICE, PP_SLOT_ERROR,
    PP_SLOT_TITLE, PP_SLOT_STATUS, PP_SLOT_STATUS_STRONG, PP_SLOT_METER, PP_SLOT_KEYS, PP_SLOT_KEY, PP_SLOT_MENU,
    PP_SLOT_MENU_BORDER, PP_SLOT_MENU_TITLE, PP_SLOT_MENU_DIM, PP_SLOT_SELECTED, PP_SLOT_REASONING, PP_SLOT_DRAFTED,
    PP_SLOT_CODE_COMMENT, PP_SLOT_CODE_STRING, PP_SLOT_CODE_NUMBER, PP_SLOT_CODE_KEYWORD,
    PP_SLOTS
};

enum { PP_SLOT_MASK = 0xFF };
enum { PP_BOLD = 0x100, PP_ITALIC = 0x200, PP_UNDERLINE = 0x400, PP_FAINT = 0x800, PP_REVERSE = 0x1000 };
enum { PP_TINT = 0x2000 }; /* replaces the slot's foreground and attributes by those of PP_SLOT_DRAFTED */

typedef uint16_t pp_style; /* enum pp_slot | flags */

#endif
