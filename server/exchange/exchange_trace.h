/* Taking a trace of a job: its beginning and its end.
 *
 * Layer: may call server/exchange/node/, owner/, ground/ and model/.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_TRACE_H
#define SERVER_EXCHANGE_EXCHANGE_TRACE_H

#include "server/commands/trace.h"
#include "server/exchange/model/port.h"

struct exchange;

/* Record in trace->records what the chunks of trace->job go through. ERR_STATE: no such job is
 * open, or it is traced already; the caller keeps the trace. Otherwise it comes back with
 * ENGINE_TRACED, at exchange_trace_stop or the job's end. */
int exchange_trace_start(struct exchange *exchange, struct trace *trace, struct error *error);
/* It is to end when what workers have told by now has been read. The job that it is of; 0: it is
 * over, or this has been said. */
uint64_t exchange_trace_ends(struct exchange *exchange, uint32_t number);
/* Stop those that are to end and of whose jobs all has been read. */
void exchange_traces_settle(struct exchange *exchange, bool (*is_read)(void *context, uint64_t job),
                            void *context);
/* How many are to end. */
uint32_t exchange_traces_ending(const struct exchange *exchange);
/* Nothing, when that trace is over. */
void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end);

/* The job fails or closes: its trace, if there is one, is over. */
void exchange_trace_job_over(struct exchange_job *job, enum trace_end end);

#endif
