#include "server/exchange/ground/archive.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Daemons remember a job that has failed for as long (server/jobs/succession.h). */
#define ARCHIVE_IDLE_NS (600 * 1000000000ull)
#define ARCHIVE_ALIGNMENT 64u
/* A step has buffers of several sizes. */
#define ARCHIVE_SPARES 8u

/* --- memory ----------------------------------------------------------------------------------- */

static void archived_free(struct exchange *exchange, struct archived *archived)
{
    if (archived->archive) {
        archived->archive->bytes -= archived->bytes;
        quota_give_back(&exchange->archived, archived->archive->user, archived->bytes);
    }
    free(archived->data);
    free(archived);
}

static void archive_free_spares(struct exchange *exchange, struct archive *archive)
{
    while (archive->spares) {
        struct archived *spare = archive->spares;
        archive->spares = spare->next;
        archived_free(exchange, spare);
    }
    archive->spare_count = 0;
}

static struct archived *archive_take_oldest(struct exchange *exchange, struct archive *archive)
{
    struct archived *oldest = archive->oldest;
    archive->oldest = oldest->next;
    if (!oldest->next)
        archive->newest = NULL;
    archive->count--;
    exchange->archived_count--;
    oldest->next = NULL;
    return oldest;
}

/* Keep the result no more. It is freed now, or when the last who reads it gives it back. */
static void archived_drop(struct exchange *exchange, struct archived *archived)
{
    archived->dropped = true;
    if (archived->readers == 0)
        archived_free(exchange, archived);
}

/* Find the user's job that has most to give. NULL: no job of the user has anything. */
static struct archive *archives_largest(const struct exchange *exchange, uint64_t user)
{
    struct archive *largest = NULL;
    for (struct archive *it = exchange->archives; it; it = it->next) {
        if (it->user == user && it->oldest && (!largest || it->bytes > largest->bytes))
            largest = it;
    }
    return largest;
}

/* Make room for `bytes` more of the user's results, and return whether there is room. Spare memory
 * goes first, then the oldest results of another user who has more, or else of the user himself. */
static bool archives_make_room(struct exchange *exchange, uint64_t user, uint64_t bytes)
{
    const struct quota *quota = &exchange->archived;
    if (bytes > quota->limit)
        return false;
    for (struct archive *it = exchange->archives; it; it = it->next) {
        if (quota_is_short(quota, bytes))
            archive_free_spares(exchange, it);
    }
    while (quota_is_short(quota, bytes)) {
        struct archive *largest = archives_largest(exchange, quota_giver(quota, user, bytes));
        if (!largest)
            largest = archives_largest(exchange, user);
        if (!largest)
            return false;
        archived_drop(exchange, archive_take_oldest(exchange, largest));
    }
    return true;
}

static struct archived *archive_take_spare(struct archive *archive, uint64_t bytes)
{
    for (struct archived **link = &archive->spares; *link; link = &(*link)->next) {
        struct archived *spare = *link;
        if (spare->bytes != bytes)
            continue;
        *link = spare->next;
        spare->next = NULL;
        archive->spare_count--;
        return spare;
    }
    return NULL;
}

static struct archived *archived_create(uint64_t bytes)
{
    struct archived *made = calloc(1, sizeof(*made));
    uint64_t rounded = (bytes + ARCHIVE_ALIGNMENT - 1) / ARCHIVE_ALIGNMENT * ARCHIVE_ALIGNMENT;
    uint8_t *data = rounded > 0 ? aligned_alloc(ARCHIVE_ALIGNMENT, rounded) : NULL;
    if (!made || (rounded > 0 && !data)) {
        free(made);
        free(data);
        return NULL;
    }
    made->bytes = bytes;
    made->data = data;
    return made;
}

static struct archived *archive_make(struct exchange *exchange, struct archive *archive,
                                     uint64_t bytes)
{
    struct archived *made = archive_take_spare(archive, bytes);
    if (made)
        return made;
    bool taken = archives_make_room(exchange, archive->user, bytes) &&
                 quota_take(&exchange->archived, archive->user, bytes) == 0;
    made = taken ? archived_create(bytes) : NULL;
    if (!made) {
        quota_give_back(&exchange->archived, archive->user, taken ? bytes : 0);
        return NULL;
    }
    made->archive = archive;
    archive->bytes += bytes;
    return made;
}

/* --- archives --------------------------------------------------------------------------------- */

struct archive *archive_join(struct exchange *exchange, uint32_t user, uint64_t lineage)
{
    if (exchange->options.keep_steps == 0)
        return NULL;
    struct archive *archive = exchange->archives;
    while (archive && archive->lineage != lineage)
        archive = archive->next;
    if (!archive) {
        archive = calloc(1, sizeof(*archive));
        if (!archive)
            return NULL;
        archive->user = user;
        archive->lineage = lineage;
        archive->next = exchange->archives;
        exchange->archives = archive;
    }
    archive->jobs++;
    return archive;
}

/* No generation of it is open, and so nothing of it is under way or read. */
static void archive_free(struct exchange *exchange, struct archive *archive)
{
    struct archive **link = &exchange->archives;
    while (*link != archive)
        link = &(*link)->next;
    *link = archive->next;
    while (archive->oldest)
        archived_drop(exchange, archive_take_oldest(exchange, archive));
    archive_free_spares(exchange, archive);
    assert(archive->jobs == 0 && archive->bytes == 0);
    free(archive);
}

void archive_leave(struct exchange *exchange, struct archive *archive, bool over)
{
    assert(archive->jobs > 0);
    archive->idle_ns = exchange->now_ns;
    if (--archive->jobs == 0 && (over || archive->count == 0))
        archive_free(exchange, archive);
}

void archives_tick(struct exchange *exchange)
{
    struct archive *next;
    for (struct archive *it = exchange->archives; it; it = next) {
        next = it->next;
        if (it->jobs == 0 && exchange->now_ns > it->idle_ns + ARCHIVE_IDLE_NS)
            archive_free(exchange, it);
    }
}

void archives_clear(struct exchange *exchange)
{
    while (exchange->archives)
        archive_free(exchange, exchange->archives);
    quota_clear(&exchange->archived);
    quota_clear(&exchange->archiving);
}

/* --- results ---------------------------------------------------------------------------------- */

int archive_number(struct exchange_job *job, uint64_t sequence, uint64_t number,
                   struct error *error)
{
    if (number > INT64_MAX || sequence > INT64_MAX)
        return error_set(error, ERR_PROTOCOL,
                         "collective %" PRIu64 " is number %" PRIu64 " of the job, it says",
                         sequence, number);
    if (job->numbered && (job->number != number || job->number_sequence != sequence))
        return error_set(error, ERR_PROTOCOL,
                         "collective %" PRIu64 " is number %" PRIu64
                         " of the job, it says, and collective %" PRIu64 " is number %" PRIu64
                         ", says another",
                         sequence, number, job->number_sequence, job->number);
    job->numbered = true;
    job->number = number;
    job->number_sequence = sequence;
    struct archive *archive = job->archive;
    struct archived **link = archive ? &archive->oldest : NULL;
    while (link && *link && (*link)->number < number)
        link = &(*link)->next;
    while (link && *link) {
        struct archived *later = *link;
        *link = later->next;
        archive->count--;
        job->exchange->archived_count--;
        archived_drop(job->exchange, later);
    }
    if (archive) {
        archive->newest = archive->oldest;
        while (archive->newest && archive->newest->next)
            archive->newest = archive->newest->next;
    }
    return 0;
}

void archive_begin(struct collective *collective)
{
    const struct exchange_group *group = collective->group;
    const struct exchange_job *job = group->job;
    if (!job->archive || !job->numbered || group->id != 0 ||
        collective->ask.kind != COLLECTIVE_ALL_REDUCE ||
        collective->sequence < job->number_sequence)
        return;
    struct quota *archiving = &job->exchange->archiving;
    uint64_t bytes = collective->ask.count * collective->element_bytes;
    if (!quota_has_room(archiving, job->archive->user, bytes))
        return;
    struct archived *made = archive_make(job->exchange, job->archive, bytes);
    if (made && quota_take(archiving, job->archive->user, bytes) != 0) {
        archived_free(job->exchange, made);
        made = NULL;
    }
    if (!made)
        return;
    made->number = job->number + (collective->sequence - job->number_sequence);
    made->ask = collective->ask;
    collective->archived = made;
}

/* Collectives may end in another order than they have begun. */
static void archive_insert(struct exchange *exchange, struct archive *archive,
                           struct archived *archived)
{
    struct archived **link = &archive->oldest;
    if (archive->newest && archive->newest->number < archived->number)
        link = &archive->newest->next;
    while (*link && (*link)->number < archived->number)
        link = &(*link)->next;
    archived->next = *link;
    *link = archived;
    if (!archived->next)
        archive->newest = archived;
    archive->count++;
    exchange->archived_count++;
}

void archive_end(struct collective *collective, bool whole)
{
    struct archived *archived = collective->archived;
    struct exchange *exchange = collective->group->job->exchange;
    if (!archived)
        return;
    struct archive *archive = archived->archive;
    collective->archived = NULL;
    quota_give_back(&exchange->archiving, archive->user, archived->bytes);
    if (!whole) {
        archived_free(exchange, archived);
        return;
    }
    archive_insert(exchange, archive, archived);
    if (archive->count <= exchange->options.keep_steps)
        return;
    struct archived *oldest = archive_take_oldest(exchange, archive);
    if (oldest->readers > 0) {
        oldest->dropped = true;
        return;
    }
    /* Memory that was touched before is written faster than new. */
    if (archive->spare_count == ARCHIVE_SPARES)
        archive_free_spares(exchange, archive);
    oldest->next = archive->spares;
    archive->spares = oldest;
    archive->spare_count++;
}

/* --- reading ---------------------------------------------------------------------------------- */

static struct archived *archive_of_number(const struct archive *archive, uint64_t number)
{
    struct archived *it = archive ? archive->oldest : NULL;
    while (it && it->number != number)
        it = it->next;
    return it;
}

void archive_tell(const struct archive *archive, struct engine_job_status *status)
{
    status->archived_bytes = archive->bytes;
    if (!archive->oldest)
        return;
    status->archived_first = archive->oldest->number;
    status->archived_end = archive->newest->number + 1;
}

static struct archived *archive_describe(const struct exchange_job *job, uint64_t number)
{
    struct archived *made = archived_create(ARCHIVE_ANSWERS * sizeof(int64_t));
    if (!made)
        return NULL;
    const struct archive *archive = job->archive;
    const struct archived *it = archive_of_number(archive, number);
    struct engine_job_status told = {0};
    int64_t answers[ARCHIVE_ANSWERS] = {0};
    if (archive) {
        archive_tell(archive, &told);
        answers[ARCHIVE_FIRST] = (int64_t)told.archived_first;
        answers[ARCHIVE_END] = (int64_t)told.archived_end;
        answers[ARCHIVE_STEPS] = job->exchange->options.keep_steps;
    }
    if (it) {
        answers[ARCHIVE_HAS] = 1;
        answers[ARCHIVE_COUNT] = (int64_t)it->ask.count;
        answers[ARCHIVE_DTYPE] = it->ask.dtype;
        answers[ARCHIVE_OP] = it->ask.op;
    }
    memcpy(made->data, answers, sizeof(answers));
    made->ask = (struct wire_ask){.dtype = DTYPE_I64, .count = ARCHIVE_ANSWERS};
    made->dropped = true;
    return made;
}

struct archived *archive_find(const struct exchange_group *group, uint64_t sequence,
                              const struct wire_ask *ask)
{
    uint64_t number = sequence & ~WIRE_SEND_SEQUENCE;
    if (group->id != 0)
        return NULL;
    bool asks = route_replay(ask->kind, ask->block, group->members.size) == ROUTE_REPLAY_ASKS;
    struct archived *found = asks ? archive_describe(group->job, number)
                                  : archive_of_number(group->job->archive, number);
    if (!found)
        return NULL;
    found->readers++;
    if (found->ask.dtype == ask->dtype && found->ask.count == ask->count)
        return found;
    archive_give_back(group->job->exchange, found);
    return NULL;
}

void archive_give_back(struct exchange *exchange, struct archived *archived)
{
    if (!archived)
        return;
    assert(archived->readers > 0);
    if (--archived->readers == 0 && archived->dropped)
        archived_free(exchange, archived);
}

/* --- for tests -------------------------------------------------------------------------------- */

void archives_check_invariants(const struct exchange *exchange)
{
    uint64_t bytes = 0, count = 0;
    for (const struct archive *archive = exchange->archives; archive; archive = archive->next) {
        uint64_t listed = 0, last = 0;
        for (const struct archived *it = archive->oldest; it; it = it->next) {
            assert(it == archive->oldest || it->number > last);
            assert(it->next || it == archive->newest);
            last = it->number;
            listed++;
        }
        assert(listed == archive->count && listed <= exchange->options.keep_steps);
        bytes += archive->bytes;
        count += listed;
    }
    assert(bytes == exchange->archived.used && bytes <= exchange->archived.limit);
    assert(exchange->archiving.used <= bytes);
    assert(count == exchange->archived_count);
}
