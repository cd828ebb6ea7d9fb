/* Ranks that cannot join their job: the job's home is told why, and tells those that gather there.
 * Those that come later hear it too, for a while: a rank may begin minutes after the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

#define UNABLE_NS (60000 * COORDINATOR_MS)
#define UNABLE_OF_USER_MAX 8u /* of one user; the oldest of these makes room */

void unable_tell(struct coordinator *c, const struct unable_rank *who, int code, const char *text)
{
    uint32_t home = auth_home_of_job(who->job, c->config->server_count);
    if (who->world_size == 0 || !coordinator_reaches(c, home))
        return; /* a newcomer, whom nobody waits for; or the others have no home either */
    struct message message = {.type = MESSAGE_JOB_UNABLE,
                              .uid = who->uid,
                              .pid = who->pid,
                              .world_size = who->world_size,
                              .rank = who->rank};
    snprintf(message.job, sizeof(message.job), "%s", who->job);
    coordinator_message_error(&message, code, text);
    coordinator_send(c, home, &message);
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
    unable_tell(c, &who, message->code, message->text);
    return 0;
}

static void unable_drop(struct coordinator *c, struct unable *unable)
{
    DL_DELETE(c->unables, unable);
    free(unable);
}

/* What is older than a minute goes; and of this user what is of the same job, or one too many. */
static void unable_make_room(struct coordinator *c, uint32_t uid, const char *job)
{
    struct unable *unable, *next, *oldest = NULL;
    uint32_t count = 0;
    DL_FOREACH_SAFE(c->unables, unable, next)
    {
        bool same = unable->uid == uid && strcmp(unable->job, job) == 0;
        if (same || c->now_ns >= unable->until_ns) {
            unable_drop(c, unable);
        } else if (unable->uid == uid) {
            oldest = oldest ? oldest : unable;
            count++;
        }
    }
    if (oldest && count >= UNABLE_OF_USER_MAX)
        unable_drop(c, oldest);
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
    unable->told++;
    if (rank >= 0 && rank < (int64_t)unable->world_size)
        unable->knows[rank] = true;
}

void unable_note(struct coordinator *c, const struct unable_rank *who, int code, const char *text,
                 const struct gathering *gathering)
{
    unable_make_room(c, who->uid, who->job);
    struct unable *unable = calloc(1, sizeof(*unable) + who->world_size * sizeof(bool));
    if (!unable)
        return;
    snprintf(unable->job, sizeof(unable->job), "%s", who->job);
    snprintf(unable->text, sizeof(unable->text), "%s", text);
    unable->uid = who->uid;
    unable->world_size = who->world_size;
    unable->until_ns = c->now_ns + UNABLE_NS;
    unable->code = code;
    DL_APPEND(c->unables, unable);
    unable_told(unable, who->rank);
    for (uint32_t i = 0; gathering && i < gathering->count; i++)
        unable_told(unable, gathering->members[i].rank);
    if (unable->told >= unable->world_size)
        unable_drop(c, unable);
}

bool unable_refuses(struct coordinator *c, const struct message *join, struct error *refusal)
{
    struct unable *unable;
    DL_FOREACH(c->unables, unable)
    {
        if (unable->uid == join->uid && strcmp(unable->job, join->job) == 0)
            break;
    }
    if (!unable)
        return false;
    /* One that knows it, and asks again, is of another attempt. */
    if (c->now_ns >= unable->until_ns || unable->world_size != join->world_size ||
        (join->rank >= 0 && unable->knows[join->rank])) {
        unable_drop(c, unable);
        return false;
    }
    error_set(refusal, unable->code, "%s", unable->text);
    unable_told(unable, join->rank);
    if (unable->told >= unable->world_size)
        unable_drop(c, unable);
    return true;
}

void unables_forget(struct coordinator *c)
{
    struct unable *unable, *next;
    DL_FOREACH_SAFE(c->unables, unable, next)
    {
        unable_drop(c, unable);
    }
}
