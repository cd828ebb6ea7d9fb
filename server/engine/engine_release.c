/* Giving large memory back. To unmap an arena of some gigabytes whose worker has ended takes the
 * kernel most of a second, since the pages go with it: a thread of its own does it, and tells of it
 * afterwards. */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "server/engine/engine_private.h"

/* Memory up to this size is unmapped at once: that takes no longer than handing it over. */
#define RELEASE_AT_ONCE_BYTES (2u << 20)
/* Bytes that the thread unmaps in one call, in which no other thread can map or unmap. The call
 * takes some milliseconds. */
#define RELEASE_PIECE_BYTES ((uint64_t)32 << 20)

struct engine_release {
    struct engine_release *next;
    void *base;
    uint64_t bytes;
    struct engine_event *event; /* NULL: nobody is to be told */
};

static void release_now(struct engine *engine, void *base, uint64_t bytes,
                        struct engine_event *event)
{
    for (uint64_t piece; base && bytes > 0; bytes -= piece) {
        piece = bytes < RELEASE_PIECE_BYTES ? bytes : RELEASE_PIECE_BYTES;
        /* The kernel unmaps no piece of a page that is larger still, so all goes at once. */
        if (munmap(base, piece) < 0 && munmap(base, piece = bytes) < 0)
            break;
        base = (char *)base + piece;
    }
    if (event)
        engine_queue_put_event(&engine->events, event);
}

static struct engine_release *release_wait(struct engine_releaser *releaser)
{
    pthread_mutex_lock(&releaser->lock);
    while (!releaser->first && !releaser->stopping)
        pthread_cond_wait(&releaser->given, &releaser->lock);
    struct engine_release *release = releaser->first;
    if (release)
        releaser->first = release->next;
    pthread_mutex_unlock(&releaser->lock);
    return release;
}

static void *release_main(void *argument)
{
    struct engine *engine = argument;
    struct engine_release *release;
    while ((release = release_wait(&engine->releaser)) != NULL) {
        release_now(engine, release->base, release->bytes, release->event);
        free(release);
    }
    return NULL;
}

int engine_release_start(struct engine *engine, struct error *error)
{
    struct engine_releaser *releaser = &engine->releaser;
    pthread_mutex_init(&releaser->lock, NULL);
    pthread_cond_init(&releaser->given, NULL);
    /* Signals are for the control thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&releaser->thread, NULL, release_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set_errno(error, failed, "cannot start the thread that gives memory back");
    releaser->started = true;
    return 0;
}

void engine_release_stop(struct engine *engine)
{
    struct engine_releaser *releaser = &engine->releaser;
    if (!releaser->started)
        return;
    pthread_mutex_lock(&releaser->lock);
    releaser->stopping = true;
    pthread_cond_signal(&releaser->given);
    pthread_mutex_unlock(&releaser->lock);
    pthread_join(releaser->thread, NULL);
    pthread_cond_destroy(&releaser->given);
    pthread_mutex_destroy(&releaser->lock);
    releaser->started = false;
}

void engine_release(struct engine *engine, void *base, uint64_t bytes, struct engine_event *event)
{
    struct engine_releaser *releaser = &engine->releaser;
    struct engine_release *release = NULL;
    if (releaser->started && bytes > RELEASE_AT_ONCE_BYTES)
        release = calloc(1, sizeof(*release));
    if (!release) {
        release_now(engine, base, bytes, event);
        return;
    }
    *release = (struct engine_release){.base = base, .bytes = bytes, .event = event};
    pthread_mutex_lock(&releaser->lock);
    release->next = releaser->first; /* the order does not matter */
    releaser->first = release;
    pthread_cond_signal(&releaser->given);
    pthread_mutex_unlock(&releaser->lock);
}
