/* Memory that the ranks of a group on this node share for results: made when the first of them
 * asks, given to each, and gone when all are done with it. Other nodes hear nothing of it. */
#include <inttypes.h>
#include <stdio.h>

#include "server/coordinator/coordinator_internal.h"

static void segment_drop_descriptor(struct coordinator *c, const struct job *job,
                                    struct segment *segment)
{
    if (segment->descriptor >= 0)
        c->io.segment_drop(c->io.context, job->uid, segment->descriptor);
    segment->descriptor = -1;
}

static void segment_remove(struct coordinator *c, struct job *job, struct group *group,
                           struct segment *segment)
{
    segment_drop_descriptor(c, job, segment);
    DL_DELETE(group->segments, segment);
    c->io.segment_freed(c->io.context, job->uid, segment->bytes);
    job->segment_count--;
    if (segment->nth == SEGMENT_MEETING) {
        job->place_count--;
        job->place_bytes -= segment->bytes;
    }
    segment_free(segment);
}

/* After a member's state has changed. May free the segment. */
static void segment_settle(struct coordinator *c, struct job *job, struct group *group,
                           struct segment *segment)
{
    if (!segment_is_wanted(segment))
        segment_drop_descriptor(c, job, segment);
    if (!segment_is_done(segment))
        return;
    coordinator_command(c, &(struct engine_command){.kind = COMMAND_SEGMENT_CLOSE,
                                                    .job = job->id,
                                                    .group = group->id,
                                                    .segment = {.number = segment->number}});
    segment_remove(c, job, group, segment);
}

static void segment_give(struct coordinator *c, struct worker *worker, const struct group *group,
                         const struct segment *segment, struct segment_member *member)
{
    struct message message = {.type = MESSAGE_SHARED_OPENED,
                              .request = member->request,
                              .group = (int32_t)group->id,
                              .segment = segment->number};
    member->state = SEGMENT_TAKEN;
    c->io.segment_send(c->io.context, worker->id, &message, segment->descriptor);
}

static bool segment_all_here(const struct job *job, const struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (!job->locals[group->ranks[i]])
            return false;
    }
    return true;
}

/* Return why the worker cannot have the segment; 0: it can. */
static int segment_check(const struct coordinator *c, const struct worker *worker,
                         const struct group *group, const struct message *message, uint32_t nth,
                         struct error *error)
{
    const struct job *job = worker->job;
    if (job->state == JOB_FAILED)
        return error_set(error, job->code, "%s", job->text);
    if (group->failed)
        return error_set(error, ERR_STATE, "group %" PRIu32 " has failed", group->id);
    if (nth == SEGMENT_MEETING && !segment_all_here(job, group))
        return error_set(error, ERR_UNSUPPORTED,
                         "group %" PRIu32 " has ranks on other nodes, and no meeting place",
                         group->id);
    const struct segment *segment = segment_find_nth(group->segments, nth);
    if (segment && segment->bytes != message->bytes)
        return error_set(error, ERR_MISMATCH,
                         "shared memory differs between ranks: rank %" PRIu32 " asked for %" PRIu64
                         " bytes, rank %" PRIu32 " for %" PRIu64,
                         segment->first_rank, segment->bytes, worker->rank, message->bytes);
    if (segment)
        return 0;
    if (message->bytes > c->config->memory_bytes)
        return error_set(error, ERR_MEMORY,
                         "%" PRIu64 " bytes of shared memory asked for, the limit "
                         "limits.memory_bytes of node %s is %" PRIu64,
                         message->bytes, coordinator_node_name(c, job->self),
                         c->config->memory_bytes);
    uint64_t most = c->config->memory_bytes / SEGMENT_PLACES_PART;
    if (nth == SEGMENT_MEETING && (job->place_count >= SEGMENTS_PER_JOB_MAX / SEGMENT_PLACES_PART ||
                                   message->bytes > most - job->place_bytes))
        return error_set(error, ERR_MEMORY,
                         "job '%s' has %u meeting places of %" PRIu64 " bytes on node %s, which is "
                         "the limit",
                         job->name, job->place_count, job->place_bytes,
                         coordinator_node_name(c, job->self));
    if (job->segment_count >= SEGMENTS_PER_JOB_MAX)
        return error_set(error, ERR_MEMORY,
                         "job '%s' has %u pieces of shared memory on node %s, which is the limit",
                         job->name, SEGMENTS_PER_JOB_MAX, coordinator_node_name(c, job->self));
    return 0;
}

static struct segment *segment_make(struct coordinator *c, const struct worker *worker,
                                    struct group *group, const struct message *message,
                                    uint32_t nth, struct error *error)
{
    struct job *job = worker->job;
    struct segment *made = segment_create(job->next_segment, nth, message->bytes, group->count);
    if (!made) {
        error_set(error, ERR_MEMORY, "no memory for shared memory");
        return NULL;
    }
    uint8_t *base;
    if (c->io.segment_make(c->io.context, job->uid, made->bytes, nth == SEGMENT_MEETING, &base,
                           &made->descriptor, error) != 0) {
        segment_free(made);
        return NULL;
    }
    coordinator_command(c, &(struct engine_command){.kind = COMMAND_SEGMENT_OPEN,
                                                    .job = job->id,
                                                    .group = group->id,
                                                    .segment = {made->number, base, made->bytes,
                                                                nth == SEGMENT_MEETING}});
    made->first_rank = worker->rank;
    for (uint32_t i = 0; i < group->count; i++) {
        if (job->locals[group->ranks[i]])
            made->members[i].state = SEGMENT_UNASKED;
    }
    job->next_segment++;
    job->segment_count++;
    if (nth == SEGMENT_MEETING) {
        job->place_count++;
        job->place_bytes += made->bytes;
    }
    DL_APPEND(group->segments, made);
    return made;
}

int segment_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                        struct error *error)
{
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "%s before it has joined",
                         message_type_name(message->type));
    struct job *job = worker->job;
    uint32_t nth = message->type == MESSAGE_MEETING_OPEN ? SEGMENT_MEETING : message->nth;
    struct group *group = job_group(job, (uint32_t)message->group);
    int64_t position = group && group->ready ? group_position(group, worker->rank) : -1;
    struct error refusal = {0};
    struct segment *segment = NULL;
    if (position < 0)
        return error_set(error, ERR_PROTOCOL, "%s of group %d, which rank %u has not",
                         message_type_name(message->type), message->group, worker->rank);
    if (segment_check(c, worker, group, message, nth, &refusal) == 0) {
        segment = segment_find_nth(group->segments, nth);
        if (!segment)
            segment = segment_make(c, worker, group, message, nth, &refusal);
    }
    if (!segment) {
        worker_send_error(c, worker, message->request, refusal.code, refusal.text);
        return 0;
    }
    struct segment_member *member = &segment->members[position];
    if (member->state != SEGMENT_UNASKED)
        return error_set(error, ERR_PROTOCOL,
                         "%s of number %u of group %d, which rank %u has asked for",
                         message_type_name(message->type), nth, message->group, worker->rank);
    member->state = SEGMENT_WAITING;
    member->request = message->request;
    if (!segment->opened)
        return 0;
    segment_give(c, worker, group, segment, member);
    segment_settle(c, job, group, segment);
    return 0;
}

void segment_engine_opened(struct coordinator *c, const struct engine_event *event)
{
    struct job *job = coordinator_job(c, event->job);
    struct group *group = job ? job_group(job, event->group) : NULL;
    struct segment *segment = group ? segment_find_number(group->segments, event->segment) : NULL;
    for (uint32_t i = 0; segment && i < segment->count; i++) {
        struct segment_member *member = &segment->members[i];
        struct worker *worker = job->locals[group->ranks[i]];
        if (member->state != SEGMENT_WAITING || !worker)
            continue;
        if (event->code == 0)
            segment_give(c, worker, group, segment, member);
        else
            worker_send_error(c, worker, member->request, event->code, event->text);
    }
    if (segment && event->code != 0) { /* who asks later tries again */
        segment_remove(c, job, group, segment);
    } else if (segment) {
        segment->opened = true;
        segment_settle(c, job, group, segment);
    }
}

int segment_worker_close(struct coordinator *c, struct worker *worker,
                         const struct message *message, struct error *error)
{
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "shared_close before it has joined");
    struct job *job = worker->job;
    struct group *group = job_group(job, (uint32_t)message->group);
    int64_t position = group ? group_position(group, worker->rank) : -1;
    struct segment *segment =
        position >= 0 ? segment_find_number(group->segments, message->segment) : NULL;
    /* The close may cross an answer that came too late for the library, which has closed the group
     * since. */
    if (message->segment < job->next_segment &&
        (!segment || segment->members[position].state == SEGMENT_DONE))
        return 0;
    if (!segment || segment->members[position].state != SEGMENT_TAKEN)
        return error_set(error, ERR_PROTOCOL,
                         "shared_close of shared memory %u of group %d, which rank %u has not",
                         message->segment, message->group, worker->rank);
    segment->members[position].state = SEGMENT_DONE;
    segment_settle(c, job, group, segment);
    return 0;
}

static void segments_leave_group(struct coordinator *c, const struct worker *worker,
                                 struct group *group)
{
    int64_t position = group_position(group, worker->rank);
    struct segment *segment, *next;
    DL_FOREACH_SAFE(group->segments, segment, next)
    {
        if (position < 0)
            continue;
        segment->members[position].state = SEGMENT_DONE;
        segment_settle(c, worker->job, group, segment);
    }
}

void segments_leave(struct coordinator *c, struct worker *worker, struct group *group)
{
    if (group) {
        segments_leave_group(c, worker, group);
        return;
    }
    for (struct group *it = worker->job->groups; it; it = it->hh.next)
        segments_leave_group(c, worker, it);
}

void segments_forget(struct coordinator *c, struct job *job, struct group *group)
{
    while (group->segments)
        segment_remove(c, job, group, group->segments);
}
