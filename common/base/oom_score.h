/* The score by which the kernel chooses the process to kill when memory runs out:
 * proc_pid_oom_score_adj(5). The process with most memory mapped has the highest; on a node that is
 * the daemon, which maps the arenas of all ranks. Calls error.h. */
#ifndef COMMON_BASE_OOM_SCORE_H
#define COMMON_BASE_OOM_SCORE_H

#include "common/base/error.h"

#define OOM_SCORE_LAST (-900) /* of those that may be taken at all */
#define OOM_SCORE_RANK 500    /* as if it had half of the machine's memory beside its own */

/* This process's own, in thousandths of the machine's memory. ERR_SYSTEM. */
int oom_score_read(int *score, struct error *error);
/* Whoever lowers it needs CAP_SYS_RESOURCE. Children inherit it. ERR_SYSTEM. */
int oom_score_write(int score, struct error *error);

#endif
