/* Closing what strangers have sent. Whoever closes the last reference to a descriptor may have to
 * wait: a socket may linger, a file system in user space may take its time, a Unix socket may hold
 * descriptors of such kinds in messages that nobody has read. The control thread therefore leaves
 * it to threads that do nothing else, of which any number may wait. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define THREADS_MAX 256u /* by the users who have sent what they close */

struct control_closing {
    uint32_t uid;     /* who has sent them */
    uint64_t charged; /* to his account, until they are closed */
    bool running;
    atomic_bool done;
    atomic_uint holders; /* the control thread and, while it runs, the other */
    struct control_closing *next, *prev;
    size_t count;
    int descriptors[];
};

static void closing_let_go(struct control_closing *closing)
{
    if (atomic_fetch_sub(&closing->holders, 1) == 1)
        free(closing);
}

static void *closing_run(void *argument)
{
    static const struct linger at_once = {0, 0};
    struct control_closing *closing = argument;
    for (size_t i = 0; i < closing->count; i++) {
        /* Only sockets have it, and even this may have to wait for one in use. */
        setsockopt(closing->descriptors[i], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        close(closing->descriptors[i]);
    }
    atomic_store(&closing->done, true);
    closing_let_go(closing);
    return NULL;
}

static int closing_start(struct control_closing *closing)
{
    pthread_attr_t detached;
    pthread_t thread;
    int cause = pthread_attr_init(&detached);
    if (cause != 0)
        return cause;
    atomic_fetch_add(&closing->holders, 1);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    cause = pthread_create(&thread, &detached, closing_run, closing);
    pthread_attr_destroy(&detached);
    closing->running = cause == 0;
    if (cause != 0)
        closing_let_go(closing);
    return cause;
}

static void closing_remove(struct control *control, struct control_closing *closing)
{
    /* Takes each of a list of several for its only one.
     * NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    DL_DELETE(control->closings, closing);
    account_release(&control->accounts, closing->uid, ACCOUNT_DESCRIPTORS, closing->charged);
    closing_let_go(closing); /* its thread, if it has one, frees it, or the end of the process */
}

void control_closer_sweep(struct control *control)
{
    struct quota threads = {.limit = THREADS_MAX, .own_user = control->accounts.own_uid};
    struct control_closing *closing, *next;
    DL_FOREACH_SAFE(control->closings, closing, next)
    {
        if (!atomic_load(&closing->done)) {
            quota_take(&threads, closing->uid, closing->running);
            continue;
        }
        closing_remove(control, closing);
    }
    DL_FOREACH(control->closings, closing)
    {
        if (closing->running || !quota_has_room(&threads, closing->uid, 1))
            continue;
        if (quota_take(&threads, closing->uid, 1) != 0 || closing_start(closing) != 0)
            break; /* once a second there is another try */
    }
    quota_clear(&threads);
}

void control_close_foreign(struct control *control, uint32_t uid, const int *descriptors,
                           size_t count)
{
    if (count == 0)
        return;
    struct error error;
    struct control_closing *closing = calloc(1, sizeof(*closing) + count * sizeof(int));
    if (!closing) {
        log_error(control->log, "no memory to close %zu descriptors: they stay open", count);
        return;
    }
    closing->uid = uid;
    atomic_init(&closing->done, false);
    atomic_init(&closing->holders, 1);
    closing->count = count;
    memcpy(closing->descriptors, descriptors, count * sizeof(int));
    if (account_add(&control->accounts, uid, ACCOUNT_DESCRIPTORS, count, &error) == 0)
        closing->charged = count;
    DL_APPEND(control->closings, closing);
    control_closer_sweep(control);
}

void control_close_connection(struct control *control, uint32_t uid, int fd)
{
    int bytes = 0;
    /* A connection that is empty holds no descriptors in messages, and gets none from now on. */
    if (shutdown(fd, SHUT_RD) == 0 && ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 0)
        close(fd);
    else
        control_close_foreign(control, uid, &fd, 1);
}

uint32_t control_closing_count(const struct control *control, uint32_t uid)
{
    const struct control_closing *closing;
    uint32_t count = 0;
    DL_FOREACH(control->closings, closing)
    {
        count += !atomic_load(&closing->done) && (uid == CONTROL_ANY_USER || closing->uid == uid);
    }
    return count;
}

void control_closer_clear(struct control *control)
{
    struct control_closing *closing, *next;
    DL_FOREACH_SAFE(control->closings, closing, next)
    {
        closing_remove(control, closing);
    }
}
