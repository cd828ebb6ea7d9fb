/* Collectives of a job that goes on by itself: a result is told when it is stable. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "worker/progress/progress_private.h"

void progress_complete_whole(struct progress *progress, struct request *whole, uint64_t now_ns)
{
    whole->state = REQUEST_COMPLETE;
    whole->completed_ns = now_ns;
    DL_APPEND2(progress->completed, whole, queue_prev, queue_next);
}

/* Whether all ranks of the group have the result that this one has. Between two generations the
 * request's number is of the last one, and what is told to be stable may be of the next. */
static bool keep_is_stable(const struct progress *progress, const struct request *whole)
{
    return !progress->held && whole->sequence < whole->group->stable;
}

static void keep_untie(struct request *whole)
{
    DL_DELETE2(whole->group->kept, whole, kept_prev, kept_next);
    whole->group->request_count--;
}

void progress_keep(struct progress_group *group, struct request *whole)
{
    whole->index = group->next_index++;
    DL_APPEND2(group->kept, whole, kept_prev, kept_next);
    group->request_count++;
}

void progress_tell_kept(struct progress *progress, struct request *whole, uint64_t now_ns)
{
    keep_untie(whole);
    request_drop_kept(whole);
    progress_complete_whole(progress, whole, now_ns);
}

void progress_tell_stable(struct progress *progress, struct progress_group *group, uint64_t now_ns)
{
    while (group->kept && group->kept->has_result && keep_is_stable(progress, group->kept))
        progress_tell_kept(progress, group->kept, now_ns);
}

void progress_end_whole(struct progress *progress, struct request *whole, uint64_t now_ns)
{
    if (!progress->keeps || progress_is_transfer(whole) || whole->ask.internal) {
        progress_complete_whole(progress, whole, now_ns);
    } else if (whole->result < 0) {
        progress_tell_kept(progress, whole, now_ns);
    } else {
        whole->has_result = true;
        progress_tell_stable(progress, whole->group, now_ns);
    }
}

void progress_fail_kept(struct progress *progress, struct progress_group *group,
                        const struct error *error, uint64_t now_ns)
{
    struct request *whole, *next;
    for (whole = group->kept; whole; whole = next) {
        next = whole->kept_next;
        if (whole->result < 0)
            continue; /* a device copies for it: it is told when that has ended */
        whole->result = error->code;
        whole->error_text = strdup(error->text);
        progress_tell_kept(progress, whole, now_ns);
    }
}
