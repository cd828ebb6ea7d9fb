/* Ranks that cannot join their job: the job's home is told why, and tells those that gather there.
 * Ranks that come later hear it too, for a while: a rank may begin minutes after the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

#define UNABLE_NS (60000 * COORDINATOR_MS)
#define UNABLE_START_NS (3000 * COORDINATOR_MS) /* a launcher starts its processes within */
#define NODE_UNABLE_NS (10000 * COORDINATOR_MS) /* as long as a daemon that fails says so */
#define UNABLE_MAX 256u
#define UNABLE_OF_USER_MAX 8u /* the oldest makes room */

int64_t unable_home(const struct coordinator *c, const char *job)
{
    if (c->config->recovery)
        return coordinator_first_home(c, job);
    uint32_t home = auth_home_of_job(job, c->config->server_count);
    return coordinator_reaches(c, home) ? (int64_t)home : -1;
}

void unable_tell(struct coordinator *c, const struct unable_rank *who, int64_t home, int code,
                 const char *text)
{
    if (who->world_size == 0 || home < 0)
        return; /* a newcomer, whom nobody waits for; or the others have no home either */
    struct error error;
    if (coordinator_may_say(c, (uint32_t)home, who->uid, &error) != 0)
        return; /* his others hear that it is away */
    struct message message = {.type = MESSAGE_JOB_UNABLE,
                              .uid = who->uid,
                              .pid = who->pid,
                              .world_size = who->world_size,
                              .rank = who->rank};
    snprintf(message.job, sizeof(message.job), "%s", who->job);
    coordinator_message_error(&message, code, text);
    coordinator_send(c, (uint32_t)home, &message);
}

int unable_worker_message(struct coordinator *c, const struct coordinator_credentials *credentials,
                          const struct message *message, struct error *error)
{
    if (message->code >= 0 || message->job[0] == '\0' ||
        message->rank >= (int64_t)message->world_size)
        return error_set(error, ERR_PROTOCOL, "unable makes no sense");
    struct unable_rank who = {.uid = credentials->uid,
                              .pid = credentials->pid,
                              .world_size = message->world_size,
                              .rank = message->rank};
    snprintf(who.job, sizeof(who.job), "%s", message->job);
    unable_tell(c, &who, unable_home(c, who.job), message->code, message->text);
    return 0;
}

static void unable_drop(struct coordinator *c, struct unable *unable)
{
    DL_DELETE(c->unables, unable);
    free(unable);
}

static bool unable_is_old(const struct coordinator *c, const struct unable *unable)
{
    return c->now_ns >= unable->noted_ns + UNABLE_NS;
}

/* Drop notes that are older than a minute, and the one of the same job. Then drop the user's
 * oldest note, or the oldest of all, where the user or all have too many. */
static void unable_make_room(struct coordinator *c, uint32_t uid, const char *job)
{
    struct unable *unable, *next, *oldest = NULL;
    uint32_t of_user = 0, of_all = 0;
    DL_FOREACH_SAFE(c->unables, unable, next)
    {
        bool own = unable->who.uid == uid;
        if ((own && strcmp(unable->who.job, job) == 0) || unable_is_old(c, unable)) {
            unable_drop(c, unable);
            continue;
        }
        oldest = own && !oldest ? unable : oldest;
        of_user += own;
        of_all++;
    }
    if (oldest && of_user >= UNABLE_OF_USER_MAX)
        unable_drop(c, oldest);
    else if (c->unables && of_all >= UNABLE_MAX)
        unable_drop(c, c->unables);
}

void unable_text(const struct coordinator *c, uint32_t node, const struct message *message,
                 char *text, size_t bytes)
{
    char who[64];
    if (message->rank >= 0)
        snprintf(who, sizeof(who), "rank %d", message->rank);
    else
        snprintf(who, sizeof(who), "process %u", message->pid);
    snprintf(text, bytes, "%s on node %s cannot join job '%s': %.800s", who,
             coordinator_node_name(c, node), message->job, message->text);
}

static void unable_told(struct unable *unable, int32_t rank)
{
    if (rank >= (int64_t)unable->who.world_size)
        return; /* of another world */
    unable->told++;
    if (rank >= 0)
        unable->knows[rank] = true;
}

void unable_note(struct coordinator *c, const struct unable_rank *who, int code, const char *text,
                 const struct gathering *gathering)
{
    unable_make_room(c, who->uid, who->job);
    struct unable *unable = calloc(1, sizeof(*unable) + who->world_size * sizeof(bool));
    if (!unable)
        return;
    unable->who = *who;
    snprintf(unable->text, sizeof(unable->text), "%s", text);
    unable->noted_ns = c->now_ns;
    unable->code = code;
    DL_APPEND(c->unables, unable);
    if (who->rank >= 0)
        unable_told(unable, who->rank);
    for (uint32_t i = 0; gathering && i < gathering->count; i++)
        unable_told(unable, gathering->members[i].rank);
    if (unable->told >= unable->who.world_size)
        unable_drop(c, unable);
}

bool unable_refuses(struct coordinator *c, uint32_t node, const struct message *join,
                    struct error *refusal)
{
    struct unable *unable;
    DL_FOREACH(c->unables, unable)
    {
        if (unable->who.uid == join->uid && strcmp(unable->who.job, join->job) == 0)
            break;
    }
    if (!unable)
        return false;
    /* A process that began later, or that knows the note, belongs to another attempt. */
    uint64_t age_ns = join->age_ms * COORDINATOR_MS;
    uint64_t begun_ns = c->now_ns > age_ns ? c->now_ns - age_ns : 0;
    bool here = join->world_size == unable->who.world_size;
    bool itself = unable->who.pid != 0 && unable->who.pid == join->pid && unable->who.node == node;
    if (itself || unable_is_old(c, unable) || begun_ns >= unable->noted_ns + UNABLE_START_NS ||
        (here && join->rank >= 0 && unable->knows[join->rank])) {
        unable_drop(c, unable);
        return false;
    }
    error_set(refusal, unable->code, "%s", unable->text);
    if (here)
        unable_told(unable, join->rank);
    if (unable->told >= unable->who.world_size)
        unable_drop(c, unable);
    return true;
}

void unable_note_node(struct coordinator *c, uint32_t node, const char *reason)
{
    struct node_unable *unable = &c->nodes_unable[node];
    unable->until_ns = c->now_ns + NODE_UNABLE_NS;
    snprintf(unable->reason, sizeof(unable->reason), "%s", reason);
}

void unable_forget_node(struct coordinator *c, uint32_t node)
{
    c->nodes_unable[node].until_ns = 0;
}

bool unable_node(const struct coordinator *c, int64_t node, struct error *why)
{
    for (uint32_t i = 0; i < c->config->server_count; i++)
        if ((node < 0 || node == i) && c->nodes_unable[i].until_ns > c->now_ns) {
            coordinator_unable_error(c, i, c->nodes_unable[i].reason, why);
            return true;
        }
    return false;
}

void unables_forget(struct coordinator *c)
{
    struct unable *unable, *next;
    DL_FOREACH_SAFE(c->unables, unable, next)
    {
        unable_drop(c, unable);
    }
}
