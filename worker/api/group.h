/* Functions about groups that the public calls share. Calls worker/{job,drive} only. */
#ifndef WORKER_API_GROUP_H
#define WORKER_API_GROUP_H

#include "worker/job/job.h"

/* Return the settings of this thread for the group; zeroes when it has set nothing. Lock held. */
struct group_settings group_settings_read(const struct shoal_group *group);
/* Return the settings of this thread for the group, to be written to; NULL when there is no memory
 * for them. Lock held. */
struct group_settings *group_settings_write(struct shoal_group *group);

/* Wait until the job, if it goes on by itself just now, has done so, for timeout_ms. ERR_TIMEOUT,
 * ERR_STATE. `lock` is held, and let go of meanwhile. */
int group_await(struct shoal_job *job, int timeout_ms, struct error *error);
/* Send the opening's message, and wait for its answer for timeout_ms and what the library waits
 * longer. what: "a group of 3 ranks". On success and when the daemon refuses (opening->error) the
 * answer is the caller's. `lock` is held, and let go of meanwhile. */
int group_opening_ask(struct shoal_job *job, struct group_opening *opening, struct message *message,
                      int timeout_ms, const char *what, struct error *error);

#endif
