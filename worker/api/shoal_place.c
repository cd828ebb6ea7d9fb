/* Memory in which the ranks of a group on this node meet. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "worker/api/group.h"
#include "worker/api/place.h"
#include "worker/drive/drive_meet.h"
#include "worker/job/forking.h"

/* False: it cannot be used. */
static bool place_map(struct shoal_group *group, int fd, uint64_t bytes)
{
    struct place *place = &group->place;
    struct stat status;
    if (fstat(fd, &status) < 0 || (uint64_t)status.st_size < bytes)
        return false;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return false;
    place->memory = malloc(sizeof(*place->memory));
    if (!place->memory || !meeting_init(&place->meeting, memory, bytes, group->rank, group->size)) {
        free(place->memory);
        munmap(memory, bytes);
        return false;
    }
    *place->memory = (struct place_memory){.memory = memory, .bytes = bytes};
    forking_keep_memory(memory, bytes);
    return true;
}

/* The answer has come. */
static void place_answered(struct shoal_group *group)
{
    struct place *place = &group->place;
    struct group_opening opening = place->opening;
    DL_DELETE(group->job->openings, &place->opening);
    bool mapped = opening.error.code == 0 && opening.descriptor >= 0 &&
                  place_map(group, opening.descriptor, meeting_bytes(group->size));
    if (opening.descriptor >= 0)
        close(opening.descriptor); /* the mapping holds it */
    message_clear(&opening.answer);
    place->state = mapped ? PLACE_OPEN : PLACE_NONE;
}

static void place_ask(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    struct message message = {.type = MESSAGE_MEETING_OPEN,
                              .request = ++job->next_opening,
                              .group = (int32_t)group->core.number,
                              .bytes = meeting_bytes(group->size)};
    place->opening = (struct group_opening){
        .request = message.request, .wanted = MESSAGE_SHARED_OPENED, .descriptor = -1};
    DL_APPEND(job->openings, &place->opening);
    place->state = PLACE_ASKING;
    pthread_mutex_unlock(&job->lock);
    bool sent = job_send_now(job, &message);
    pthread_mutex_lock(&job->lock);
    if (sent || place->state != PLACE_ASKING)
        return;
    /* Another thread was sending. */
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the first of many has a next */
    DL_DELETE(job->openings, &place->opening);
    place->state = PLACE_UNASKED;
}

void place_look(struct shoal_group *group, const struct request_ask *ask,
                const struct request_ask *blocks, uint32_t block_count)
{
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    if (place->state == PLACE_ASKING && place->opening.answered)
        place_answered(group);
    else if (place->state == PLACE_UNASKED && !job->closing && !group->core.failed &&
             !job->progress.keeps && /* for nobody could say what is stable */
             !job->daemon_gone && (group != job->groups || job->node_count == 1) &&
             drive_meet_fits(group, ask, blocks, block_count))
        place_ask(group);
}
