#include "worker/job/joining.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

static int joining_check(const struct job_settings *settings, const struct message *joined,
                         struct error *error)
{
    if (joined->type == MESSAGE_ERROR)
        return error_set(error, joined->code < 0 ? joined->code : ERR_PROTOCOL, "%s", joined->text);
    if (joined->type == MESSAGE_FAILED)
        return error_set(error, joined->code < 0 ? joined->code : ERR_LOST, "%s", joined->text);
    if (joined->type != MESSAGE_JOINED)
        return error_set(error, ERR_PROTOCOL, "the daemon answered join with \"%s\"",
                         message_type_name(joined->type));
    if ((!settings->newcomer && joined->world_size != (uint32_t)settings->world_size) ||
        joined->rank >= (int32_t)joined->world_size ||
        (!settings->newcomer && settings->rank >= 0 && joined->rank != settings->rank) ||
        joined->local_rank < 0 || (uint32_t)joined->local_rank >= joined->world_size ||
        joined->group < 0)
        return error_set(error, ERR_PROTOCOL,
                         "the daemon's answer makes no sense: rank %" PRId32 " of %" PRIu32
                         ", local rank %" PRId32 " of %" PRIu32 ", group %" PRId32,
                         joined->rank, joined->world_size, joined->local_rank, joined->local_size,
                         joined->group);
    return 0;
}

/* How long this process has been there; 0: not known. By proc(5), whose 22nd field is when it
 * began, in clock ticks since the system did. */
static uint32_t process_age_ms(void)
{
    char text[1024];
    struct timespec now;
    FILE *file = fopen("/proc/self/stat", "re");
    size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file)
        fclose(file);
    text[length] = '\0';
    const char *at = strrchr(text, ')'); /* the end of the program's name */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    long ticks_s = sysconf(_SC_CLK_TCK);
    if (!at || ticks_s <= 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0)
        return 0;
    double begun_s = strtod(at + 1, NULL) / (double)ticks_s;
    double age_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - begun_s;
    return age_s <= 0 ? 0 : age_s < 1e6 ? (uint32_t)(age_s * 1000) : 1000000000u;
}

/* Wait for the answer to join; say once what the job waits for, when the daemon does. */
static int joining_wait(struct shoal_job *job, const struct job_settings *settings,
                        struct message *joined, uint64_t deadline_ns, struct error *error)
{
    int code = client_wait(&job->client, joined, deadline_ns, error);
    while (code == 0 && joined->type == MESSAGE_WAITING) {
        struct error waits; /* shows what a terminal would obey */
        error_set(&waits, ERR_AGAIN, "%s", joined->text);
        char who[24] = "a rank"; /* whose number the daemons are to assign */
        if (settings->rank >= 0)
            snprintf(who, sizeof(who), "rank %d", settings->rank);
        fprintf(stderr, "shoal: %s waits for its job to begin: %s\n", who, waits.text);
        message_clear(joined);
        code = client_wait(&job->client, joined, deadline_ns, error);
    }
    return code;
}

int joining_ask(struct shoal_job *job, const struct job_settings *settings, struct message *joined,
                struct error *error)
{
    uint64_t now_ns = clock_now_ns(), least_ns = now_ns + NS_PER_MS; /* 0 is the daemon's own */
    uint64_t end_ns = settings->deadline_ns > least_ns ? settings->deadline_ns : least_ns;
    struct message join = {
        .type = MESSAGE_JOIN,
        .world_size = settings->newcomer ? 0 : (uint32_t)settings->world_size,
        .rank = settings->rank,
        .local_rank = settings->local_rank,
        .timeout_ms = (uint32_t)((end_ns - now_ns) / NS_PER_MS),
        .age_ms = process_age_ms(),
        .mark = settings->newcomer ? 0 : settings->mark,
        .recovery = settings->recovery > 0   ? MESSAGE_RECOVERY_ON
                    : settings->recovery < 0 ? MESSAGE_RECOVERY_OFF
                                             : MESSAGE_RECOVERY_CONFIGURED,
    };
    snprintf(join.job, sizeof(join.job), "%s", settings->name);
    const int fds[2] = {job->arena_fd, job->submission_doorbell};
    uint64_t deadline_ns = end_ns + JOB_GRACE_MS * NS_PER_MS;
    int code = client_send(&job->client, &join, fds, 2, deadline_ns, error);
    job->asked_member = job->member;
    if (code == 0)
        code = joining_wait(job, settings, joined, deadline_ns, error);
    if (code < 0) {
        error_prefix(error, "cannot join job %s", settings->name);
        return code;
    }
    code = joining_check(settings, joined, error);
    if (code == 0)
        code = job_take_bell(job, error);
    if (code < 0)
        message_clear(joined);
    return code;
}

void joining_refuse(struct shoal_job *job, const struct job_settings *settings,
                    const struct error *why)
{
    struct message unable = {.type = MESSAGE_UNABLE,
                             .world_size = (uint32_t)settings->world_size,
                             .rank = settings->rank,
                             .code = why->code};
    snprintf(unable.job, sizeof(unable.job), "%s", settings->name);
    snprintf(unable.text, sizeof(unable.text), "%s", why->text);
    if (!settings->newcomer)
        client_send(&job->client, &unable, NULL, 0, 0, NULL);
}
