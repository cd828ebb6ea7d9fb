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
 * open, or one is traced; the caller keeps the trace. Otherwise it comes back with ENGINE_TRACED,
 * at exchange_trace_stop or the job's end. */
int exchange_trace_start(struct exchange *exchange, struct trace *trace, struct error *error);
/* The job that this trace is of; 0: it is over. */
uint64_t exchange_traced_job(const struct exchange *exchange, uint32_t number);
/* Nothing, when that trace is over. */
void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end);

/* The job fails or closes: its trace, if there is one, is over. */
void exchange_trace_job_over(struct exchange_job *job, enum trace_end end);

#endif
