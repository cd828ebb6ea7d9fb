/* A daemon's end of a control connection, said word by word, to speak to a real control thread. No
 * secret. */
#ifndef TESTS_LIB_SERVER_RAW_PEER_H
#define TESTS_LIB_SERVER_RAW_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/format/message.h"
#include "common/text/line_reader.h"
#include "tests/lib/server/control_daemon.h"

struct raw_peer {
    int fd;
    struct line_reader lines;
    struct message hello; /* what it says; may be changed before it is said */
    uint8_t their_nonce[MESSAGE_HASH_BYTES];
    uint64_t their_incarnation;
    struct message fabric; /* of which `session` and `heard` may be changed before it is said */
};

/* A TCP connection to the port of 127.0.0.1, from 127.0.0.`host`; negative errno. */
int raw_connect(uint16_t port, uint8_t host);

/* Connected to the daemon, with the hello of node 0 of its roster ready to be said. */
void raw_peer_open(struct raw_peer *peer, const struct control_daemon *daemon,
                   uint64_t incarnation);
/* Its end of the connection that comes to listen_fd, of the daemon that is node 0, as node 1. It
 * says hello and auth, and has heard the daemon's fabric, which is in *theirs. */
void raw_peer_accept(struct raw_peer *peer, int listen_fd, const struct control_daemon *daemon,
                     struct message *theirs);
void raw_peer_close(struct raw_peer *peer);
void raw_peer_send(struct raw_peer *peer, const struct message *message);
/* The next line that is no ping, decoded and without lists; false: the end. Waits for 20 s at most.
 */
bool raw_peer_next(struct raw_peer *peer, struct message *message);
void raw_peer_expect(struct raw_peer *peer, enum message_type type, struct message *message);
/* hello, auth and fabric; what the daemon says to the last of them is not awaited. */
void raw_peer_shake_hands(struct raw_peer *peer);
/* Nothing more comes than pings, and the end. */
bool raw_peer_is_closed(struct raw_peer *peer);

#endif
