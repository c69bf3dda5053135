#include "ui/find.h"

#include <string.h>

#include "engine/base/utf8.h"
#include "ui/found.h"
#include "ui/state.h"

/* Also literally, as the characters of "a[i]++" are not words. */
static bool has(const struct pp_chat_message *m, const char *words)
{
    return m->text && (pp_found_phrase(m->text, words) || pp_found_in(m->text, words));
}

/* The newest message before `end` that contains the words: its index + 1, or 0. */
static size_t newest_before(const struct pp_ui *ui, size_t end, const char *words)
{
    while (end && !has(pp_controller_message(ui->controller, end - 1), words))
        end--;
    return end;
}

/* Index of the match shown last; the number of messages if it is not in this conversation. */
static size_t shown_last(const struct pp_ui *ui)
{
    const size_t n = pp_controller_n_messages(ui->controller);
    size_t i = 0;
    while (i < n && pp_controller_message(ui->controller, i)->id != ui->find.message)
        i++;
    return i;
}

static void show(struct pp_ui *ui, size_t i)
{
    ui->find.message = pp_controller_message(ui->controller, i)->id;
    pp_transcript_show(ui, i, ui->find.words, false);
}

void pp_ui_find(struct pp_ui *ui, const char *words)
{
    const size_t n = pp_controller_n_messages(ui->controller);
    if (*words && strcmp(words, ui->find.words) != 0) {
        pp_utf8_print(ui->find.words, sizeof ui->find.words, "%s", words);
        ui->find.message = 0;
    }
    words = ui->find.words;
    if (!*words) {
        pp_ui_notice(ui, true, "/find WORDS goes to the newest message of this conversation with these words, /find "
                               "alone to the one before");
        return;
    }
    const size_t from = shown_last(ui);
    size_t i = newest_before(ui, from, words);
    const bool again = !i && from < n;
    if (again)
        i = newest_before(ui, n, words);
    if (!i) {
        pp_transcript_unmark(ui);
        pp_ui_notice(ui, true, "no message of this conversation contains \"%s\"; F2 searches all conversations", words);
        return;
    }
    show(ui, i - 1);
    if (again)
        pp_ui_notice(ui, false, "no earlier message contains \"%s\"; back at the newest", words);
    else
        pp_ui_notice(ui, false, "%s \"%s\"; /find goes on to the one before", from < n ? "this one also contains"
                     : "the newest message with", words);
}
