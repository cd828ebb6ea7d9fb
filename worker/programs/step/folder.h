/* The folder where the tasks of a node find the daemon of their step. Who serves it holds a lock on
 * it from before the first name in it to its removal: no other one's names are touched. Ranks hold
 * `alive`, a pipe. Calls common/base. */
#ifndef WORKER_PROGRAMS_STEP_FOLDER_H
#define WORKER_PROGRAMS_STEP_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

struct step_folder {
    const char *path;
    int fd;             /* with the lock */
    int alive;          /* hangs up when ranks have had it open, and none has it any more */
    uint64_t expect_ns; /* when a rank must have opened it; 0: that is past */
};

/* 0: it is made if need be, locked, and holds nothing; 1: another one serves it, and takes ranks.
 * One whose ranks have ended is waited for. ERR_TIMEOUT, ERR_REFUSED: not this user's alone;
 * ERR_SYSTEM. step_folder_close in every case. */
int step_folder_take(struct step_folder *folder, const char *path, uint64_t deadline_ns,
                     struct error *error);
int step_folder_open_alive(struct step_folder *folder, struct error *error);
/* Milliseconds until step_folder_expect is to be called again, -1: no more. From then on `alive`
 * hangs up even if no rank has ever opened it. */
int step_folder_expect(struct step_folder *folder);
/* Once `alive` has hung up: true when no rank holds it, nor can any more, for the names are gone;
 * false: one has come in between. */
bool step_folder_is_left(const struct step_folder *folder);
void step_folder_remove(const struct step_folder *folder);
void step_folder_close(struct step_folder *folder);

#endif
