#include "worker/drive/drive_sleep.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_socket.h"

#define POLLERS 3
/* A rank says which rank a send or receive waits for when it has waited so long. The daemon says it
 * for collectives (MESSAGE_WAITING). */
#define SAY_WAITING_MS 10000u
#define SAY_AGAIN_MS 60000u

static void eventfd_clear(int fd)
{
    uint64_t value;
    ssize_t got = read(fd, &value, sizeof(value));
    (void)got;
}

/* Read a byte for each ring; what remains rings again. Close the doorbell when the daemon has
 * closed its end: it is gone, or has let this rank go, and no ring comes any more. */
static void doorbell_clear(int *fd)
{
    char rings[64];
    if (read(*fd, rings, sizeof(rings)) != 0)
        return;
    close(*fd);
    *fd = -1;
}

/* The oldest transfer of a group waits: say so on stderr, once, and not often. Returns when to look
 * again. */
static uint64_t say_transfer_waits(struct shoal_job *job, const struct shoal_group *group,
                                   uint64_t now_ns)
{
    struct request *oldest = group->core.transfers;
    if (!oldest || oldest->any) /* a server waits for any rank that asks */
        return UINT64_MAX;
    if (oldest->say_ns == 0)
        oldest->say_ns = now_ns + SAY_WAITING_MS * NS_PER_MS;
    if (now_ns < oldest->say_ns)
        return oldest->say_ns;
    bool often =
        job->said_waiting_ns > 0 && now_ns < job->said_waiting_ns + SAY_AGAIN_MS * NS_PER_MS;
    if (oldest->say_ns != UINT64_MAX && !often) {
        char text[256];
        request_describe(oldest, group->core.number, text, sizeof(text));
        drive_socket_say_waits(job, text);
        job->said_waiting_ns = now_ns;
    }
    oldest->say_ns = UINT64_MAX;
    return UINT64_MAX;
}

static uint64_t say_transfers_wait(struct shoal_job *job, uint64_t now_ns)
{
    uint64_t again_ns = UINT64_MAX;
    const struct shoal_group *group;
    if (job->progress.transfers[0] == 0 && job->progress.transfers[1] == 0)
        return again_ns; /* there may be many groups */
    DL_FOREACH(job->groups, group)
    {
        uint64_t say_ns = say_transfer_waits(job, group, now_ns);
        again_ns = say_ns < again_ns ? say_ns : again_ns;
    }
    return again_ns;
}

/* Wait until something happens or the deadline, but not when something has been found already.
 * Return what ppoll does, with `pollers` filled, or 0. */
static int drive_wait_for_news(struct shoal_job *job, struct pollfd *pollers, uint64_t deadline_ns)
{
    bool connected = !job->daemon_gone;
    uint64_t watch_ns = drive_socket_watch(job);
    if (watch_ns < deadline_ns)
        deadline_ns = watch_ns;
    uint64_t look_ns = job->device ? device_queue_deadline_ns(job->device) : UINT64_MAX;
    if (look_ns < deadline_ns)
        deadline_ns = look_ns;
    uint64_t now_ns = clock_now_ns(), say_ns = say_transfers_wait(job, now_ns);
    if (say_ns < deadline_ns)
        deadline_ns = say_ns;
    if ((connected && job->daemon_gone) || arena_worker_prepare_sleep(&job->arena))
        return 0;
    pollers[0] = (struct pollfd){.fd = job->completion_doorbell, .events = POLLIN};
    pollers[1] = (struct pollfd){.fd = job->wake_fd, .events = POLLIN};
    pollers[2] = (struct pollfd){.fd = job->daemon_gone ? -1 : job->client.fd, .events = POLLIN};
    uint64_t remaining_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct timespec remaining = {.tv_sec = (time_t)(remaining_ns / NS_PER_S),
                                 .tv_nsec = (long)(remaining_ns % NS_PER_S)};
    pthread_mutex_unlock(&job->lock);
    int ready = ppoll(pollers, POLLERS, deadline_ns == UINT64_MAX ? NULL : &remaining, NULL);
    pthread_mutex_lock(&job->lock);
    arena_worker_cancel_sleep(&job->arena);
    return ready;
}

void drive_sleep(struct shoal_job *job, uint64_t deadline_ns)
{
    struct pollfd pollers[POLLERS];
    if (!job->socket_read) {
        /* poll does not tell of lines that were received with an earlier one. */
        job->socket_read = true;
        drive_socket_read(job);
        return;
    }
    /* From here on: watching the daemon lets the lock go, and what is submitted meanwhile must wake
     * this thread. */
    job->driver_sleeping = true;
    int ready = drive_wait_for_news(job, pollers, deadline_ns);
    job->driver_sleeping = false;
    if (ready <= 0)
        return;
    if (pollers[0].revents) {
        drive_socket_heard(job);
        doorbell_clear(&job->completion_doorbell);
    }
    if (pollers[1].revents)
        eventfd_clear(job->wake_fd);
    if (pollers[2].revents)
        drive_socket_read(job);
}

bool drive_listen_until(struct shoal_job *job, uint64_t deadline_ns)
{
    struct pollfd pollers[2] = {{.fd = job->client.fd, .events = POLLIN},
                                {.fd = job->listen_fd, .events = POLLIN}};
    uint64_t now_ns = clock_now_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                            .tv_nsec = (long)(left_ns % NS_PER_S)};
    job->listening = true;
    pthread_mutex_unlock(&job->lock);
    int ready = ppoll(pollers, 2, deadline_ns == UINT64_MAX ? NULL : &left, NULL);
    pthread_mutex_lock(&job->lock);
    job->listening = false;
    if (ready > 0 && pollers[1].revents)
        eventfd_clear(job->listen_fd);
    return ready > 0 && pollers[0].revents;
}
