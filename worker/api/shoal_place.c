/* Memory in which the ranks of a group on this node meet. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/api/group.h"
#include "worker/api/place.h"
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
    if (!meeting_init(&place->meeting, memory, bytes, group->rank, group->size)) {
        munmap(memory, bytes);
        return false;
    }
    forking_keep_memory(memory, bytes);
    place->memory = memory;
    place->bytes = bytes;
    return true;
}

static bool place_ask(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    struct error error;
    uint64_t bytes = meeting_bytes(group->size);
    struct group_opening opening = {.wanted = MESSAGE_SHARED_OPENED};
    struct message message = {
        .type = MESSAGE_MEETING_OPEN, .group = (int32_t)group->core.number, .bytes = bytes};
    int code = group_opening_ask(job, &opening, &message, job->timeout_ms, "a meeting place",
                                 &error);
    if (code < 0)
        return false;
    bool mapped = opening.error.code == 0 && opening.descriptor >= 0 &&
                  place_map(group, opening.descriptor, bytes);
    if (opening.descriptor >= 0)
        close(opening.descriptor); /* the mapping holds it */
    message_clear(&opening.answer);
    return mapped;
}

void place_open(struct shoal_group *group, const struct request_ask *ask)
{
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    struct meeting_ask wanted = {.kind = ask->kind, .dtype = ask->dtype, .count = ask->count};
    if (place->state != PLACE_UNASKED || !meeting_fits(&wanted, group->size))
        return;
    if (job->closing || group->core.failed || job->daemon_gone)
        return;
    place->state = PLACE_ASKING;
    bool open = group != job->groups || job->node_count == 1 ? place_ask(group) : false;
    place->state = open ? PLACE_OPEN : PLACE_NONE;
}
