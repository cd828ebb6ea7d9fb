/* Writing the stages that chunks go through into the trace of their job. A job that is traced has
 * the trace while it is taken, so whether to record is one look at job->trace. Whoever calls
 * these has looked.
 *
 * A chunk or slot remembers when its present stage began. A record is written when the stage ends,
 * and one of each open stage when the trace does.
 *
 * Layer: may call server/commands/trace.h.
 */
#ifndef SERVER_EXCHANGE_GROUND_RECORDER_H
#define SERVER_EXCHANGE_GROUND_RECORDER_H

#include "server/commands/trace.h"
#include "server/exchange/model/model.h"

uint64_t recorder_now_ns(const struct exchange *exchange);

/* The stage of the record, whose begin is set, ends now. Returns the time. */
uint64_t recorder_end(const struct exchange_job *job, struct trace_record *record);
/* The stage was the task, which is done: its time is that of the thread that did it, where that
 * took it. Returns the time now. */
uint64_t recorder_end_task(const struct exchange_job *job, struct trace_record *record,
                           const struct reduce_task *task);
/* The stage was a copy by a worker, whose times these are. They are shown when they can be, and
 * nothing else is made of them. */
void recorder_end_copy(const struct exchange_job *job, struct trace_record *record,
                       const struct arena_submission *submission, uint64_t now_ns);
/* The trace ends in the middle of the stage. */
void recorder_cut(struct trace *trace, struct trace_record record);

void recorder_send_posted(struct exchange_send *send);
void recorder_send_over(const struct exchange_send *send);

/* A worker's ARENA_COPIED; checked and no more when the job is not traced. ERR_PROTOCOL: more of
 * them than chunks that were given back. */
int recorder_copied(struct exchange_worker *worker, const struct arena_submission *submission,
                    struct error *error);

#endif
