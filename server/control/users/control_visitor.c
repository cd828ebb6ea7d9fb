/* This file finds who is behind a TCP connection: a user of this machine if the kernel knows the
 * other end, else an address. */
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define USERS ((uint64_t)1 << 32) /* beyond all addresses of IPv4 */

struct visitor_question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 body;
};

/* Write an address and port as the kernel's questions have them. False: the family is neither IPv4
 * nor IPv6. */
static bool visitor_end(const struct sockaddr *address, __be32 number[4], __be16 *port)
{
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
    if (address->sa_family == AF_INET) {
        memcpy(&ipv4, address, sizeof(ipv4));
        memcpy(number, &ipv4.sin_addr, sizeof(ipv4.sin_addr));
        *port = ipv4.sin_port;
        return true;
    }
    memcpy(&ipv6, address, sizeof(ipv6));
    memcpy(number, &ipv6.sin6_addr, sizeof(ipv6.sin6_addr));
    *port = ipv6.sin6_port;
    return address->sa_family == AF_INET6;
}

/* False: it is of another machine, or closed, or the kernel does not tell. */
static bool visitor_ask(int netlink, const struct visitor_question *question, uint32_t *uid)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg body;
        char more[256];
    } answer;
    if (send(netlink, question, sizeof(*question), MSG_DONTWAIT) != (ssize_t)sizeof(*question))
        return false;
    ssize_t bytes = recv(netlink, &answer, sizeof(answer), MSG_DONTWAIT);
    if (bytes < (ssize_t)(sizeof(answer.head) + sizeof(answer.body)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY || answer.body.idiag_inode == 0)
        return false;
    *uid = answer.body.idiag_uid;
    return true;
}

uint64_t control_visitor(int fd, const struct sockaddr *from)
{
    struct sockaddr_storage own = {0};
    socklen_t length = sizeof(own);
    struct visitor_question question = {
        .head = {.nlmsg_len = sizeof(question),
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = (uint8_t)from->sa_family,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = UINT32_MAX,
                 .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
    struct inet_diag_sockid *id = &question.body.id; /* as the other end sees it */
    uint32_t uid;
    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0 ||
        !visitor_end(from, id->idiag_src, &id->idiag_sport) ||
        !visitor_end((const struct sockaddr *)&own, id->idiag_dst, &id->idiag_dport))
        return quota_owner_of(from);
    int netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    bool known = netlink >= 0 && visitor_ask(netlink, &question, &uid);
    if (netlink >= 0)
        close(netlink);
    return known ? USERS + uid : quota_owner_of(from);
}
