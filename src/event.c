#include "src/event.h"

#include "engine/base/mem.h"
#include "src/io.h"

struct pp_event *pp_event_new(enum pp_event_type type)
{
    struct pp_event *e = pp_calloc(1, sizeof *e);
    if (e)
        e->type = type;
    return e;
}

void pp_event_free(struct pp_event *e)
{
    if (!e)
        return;
    if (e->job && e->job->release)
        e->job->release(e->job);
    pp_free(e->info);
    pp_free(e->adapter);
    pp_free(e->drafter);
    pp_free(e->text);
    pp_free(e->thoughts.text);
    pp_draft_runs_free(&e->drafted);
    pp_free(e);
}
