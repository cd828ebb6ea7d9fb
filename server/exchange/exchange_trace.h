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
/* Let the trace with this number end when everything that workers have told by now has been read
 * (exchange_traces_settle). Return its job, or 0 if the trace is over or was already to end. */
uint64_t exchange_trace_ends(struct exchange *exchange, uint32_t number);
/* Stop the traces that are to end and whose jobs' workers have been read to the end (is_read). */
void exchange_traces_settle(struct exchange *exchange, bool (*is_read)(void *context, uint64_t job),
                            void *context);
/* Return how many traces are to end. */
uint32_t exchange_traces_ending(const struct exchange *exchange);
/* Stop the trace with this number, if it is not over yet. */
void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end);

/* The job fails or closes: its trace, if there is one, is over. */
void exchange_trace_job_over(struct exchange_job *job, enum trace_end end);

#endif
