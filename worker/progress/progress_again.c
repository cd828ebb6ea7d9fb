/* Requests that are begun anew when the job goes on by itself. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <utlist.h>

#include "worker/progress/progress_private.h"

/* Sends and receives are told when they are over, not when both ranks know: one that is under way
 * may be over for the other. */
static bool again_may(const struct progress *progress)
{
    const struct progress_group *group;
    DL_FOREACH(progress->groups, group)
    {
        const struct request *transfer;
        DL_FOREACH(group->transfers, transfer)
        {
            if (transfer->state != REQUEST_QUEUED)
                return false;
        }
    }
    return !progress->failed;
}

static void again_take_group(struct progress *progress, struct progress_group *group)
{
    while (group->requests) {
        struct request *request = group->requests;
        DL_DELETE(group->requests, request);
        group->request_count--;
        if (request->state == REQUEST_SUBMITTED)
            progress->table[progress_place(progress, request->number)] = NULL;
        request->state = REQUEST_QUEUED;
        if (!request->ask.internal)
            continue;
        request->result = ERR_LOST;
        request->state = REQUEST_COMPLETE; /* its caller looks at it */
    }
    group->chunks = 0;
}

bool progress_stop(struct progress *progress)
{
    if (!again_may(progress))
        return false;
    progress->stopped = true;
    progress->held = true;
    return true;
}

void progress_take_back(struct progress *progress)
{
    struct progress_group *group;
    assert(progress->stopped);
    progress->to_submit = NULL;
    progress->to_stage = NULL;
    progress->to_deliver = NULL;
    progress->submitted = 0;
    DL_FOREACH(progress->groups, group)
    {
        again_take_group(progress, group);
    }
    staging_restart(&progress->staging);
}

void progress_open_again(struct progress *progress)
{
    struct progress_group *group;
    progress->stopped = false;
    progress->omitted = 0;
    progress->staged_max_bytes = UINT64_MAX;
    DL_FOREACH(progress->groups, group)
    {
        group->next_sequence = 0;
        group->stable = 0;
        group->chunks = 0;
    }
}

void progress_position(const struct progress_group *group, uint64_t *done, uint64_t *told)
{
    const struct request *whole;
    *told = group->kept ? group->kept->index : group->next_index;
    *done = group->next_index;
    DL_FOREACH2(group->kept, whole, kept_next)
    {
        if (!whole->has_result) {
            *done = whole->index;
            break;
        }
    }
}

void progress_tell_results(struct progress *progress, struct progress_group *group, uint64_t count,
                           uint64_t now_ns)
{
    while (group->kept && group->kept->index < count)
        progress_tell_kept(progress, group->kept, now_ns);
}

/* With the servers of this generation it may be more chunks than there may be: so it is for all
 * ranks, and none of them gives it a number. */
static void again_fail(struct progress *progress, struct request *whole, uint64_t now_ns)
{
    struct error error;
    error_set(&error, ERR_INVALID,
              "%s: %" PRIu64 " elements are too many for the servers that the job went on with: "
              "one collective has at most %u chunks of up to %" PRIu32
              " bytes (data.chunk_bytes); split it",
              collective_name(whole->ask.kind), whole->ask.count, LAYOUT_MAX_CHUNKS,
              whole->group->rule.chunk_bytes);
    whole->result = error.code;
    whole->error_text = strdup(error.text);
    progress_tell_kept(progress, whole, now_ns);
}

static void again_begin(struct progress *progress, struct progress_group *group,
                        struct request *whole, uint32_t rank, uint64_t now_ns)
{
    const struct layout_rule *rule = &group->rule;
    uint64_t sequence = group->next_sequence;
    int code = request_again(whole, rank, rule, sequence, &progress->memory);
    for (uint32_t i = 0; i < whole->block_count && code == 0; i++)
        code = request_again(&whole->blocks[i], rank, rule, sequence, &progress->memory);
    if (code < 0) {
        again_fail(progress, whole, now_ns);
        return;
    }
    group->next_sequence++;
    whole->incomplete = whole->block_count + 1;
    progress_enqueue(progress, group, whole, whole->age);
    for (uint32_t i = 0; i < whole->block_count; i++)
        progress_enqueue(progress, group, &whole->blocks[i], whole->age);
}

void progress_go_on(struct progress *progress, struct progress_group *group, uint64_t base,
                    uint32_t rank, uint64_t now_ns)
{
    struct request *whole, *next;
    progress_tell_results(progress, group, base, now_ns);
    for (whole = group->kept; whole; whole = next) {
        next = whole->kept_next;
        again_begin(progress, group, whole, rank, now_ns);
    }
}

void progress_release(struct progress *progress)
{
    progress->held = false;
    progress_submit_waiting(progress);
}
