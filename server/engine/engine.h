/* The data path's thread: one transport, the arenas of this node's workers, the reduce threads, and
 * the exchange (server/exchange/exchange.h), which decides everything and does no I/O.
 *
 * The control thread gives commands and takes events; both are queues, so no call blocks, and what
 * a command leads to is an event. Commands are carried out in order.
 */
#ifndef SERVER_ENGINE_ENGINE_H
#define SERVER_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "common/memory/topology.h"
#include "common/transport/transport.h"
#include "server/commands/engine_command.h"
#include "server/commands/engine_event.h"
#include "server/engine/engine_status.h"

struct engine;

/* Opens the transport by config (provider, fabric.address, message size, peers) and starts the
 * threads, bound to the topology's cores when the config says so (NULL: not bound). The config, the
 * topology and the log must outlive the engine. */
int engine_start(struct engine **engine, const struct config *config,
                 const struct topology *topology, struct log *log, struct error *error);
/* Stop the threads and free everything; jobs still open are dropped. */
void engine_stop(struct engine *engine);

/* For the control thread's event loop: readable while engine_next_event has something. */
int engine_event_descriptor(const struct engine *engine);
/* NULL when there is none (and then the descriptor is clear). */
struct engine_event *engine_next_event(struct engine *engine);

const struct transport_info *engine_transport_info(const struct engine *engine);
/* The instruction set that the sums use: "avx2". */
const char *engine_instruction_set(const struct engine *engine);
/* This node's fabric address for the hello between daemons. Constant after engine_start. */
void engine_fabric_address(const struct engine *engine, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                           uint32_t *bytes);

/* Copies the command, and takes what is handed over in it. */
void engine_command(struct engine *engine, const struct engine_command *command);

/* How often the engine's thread has gone round so far. Asking wakes it, so that a thread which is
 * not stuck has gone round once more soon after. */
uint64_t engine_turns(struct engine *engine);

#endif
