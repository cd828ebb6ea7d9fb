/* The private folder of a run, which goes with it. One that a run which was killed has left goes
 * when the same user's next run makes one: a lock says which are still used. */
#ifndef WORKER_PROGRAMS_SHOALRUN_FOLDER_H
#define WORKER_PROGRAMS_SHOALRUN_FOLDER_H

#include "common/base/error.h"

#define FOLDER_BYTES 80 /* the name of a socket must fit behind it */

struct folder {
    char path[FOLDER_BYTES]; /* "": there is none */
    int lock;                /* on a file in it; the daemons hold it too. -1: none */
};

/* Make the folder where `parent` says, else in /tmp, else in /dev/shm: in the first of them that
 * takes some 10 KiB. A line on stderr says what is wrong with each one before. parent: TMPDIR's, or
 * NULL. ERR_SYSTEM names them all. */
int folder_make(struct folder *folder, const char *parent, struct error *error);
/* Remove it, with what is in it. */
void folder_remove(struct folder *folder);

int folder_write(const struct folder *folder, const char *name, const char *text,
                 struct error *error);

#endif
