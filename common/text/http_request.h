/* The request of an HTTP client, as far as a server needs it that has a few documents: the method,
 * the path, and under which name the server was asked. No other header is looked at (RFC 9112,
 * sections 2 to 5). Calls common/base. */
#ifndef COMMON_TEXT_HTTP_REQUEST_H
#define COMMON_TEXT_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_REQUEST_BYTES 4096u /* with its headers and the empty line after them */
#define HTTP_PATH_BYTES 128u
#define HTTP_HOST_BYTES 256u

enum http_status {
    HTTP_STATUS_OK = 200,
    HTTP_STATUS_BAD_REQUEST = 400,
    HTTP_STATUS_NOT_FOUND = 404,
    HTTP_STATUS_NOT_ALLOWED = 405, /* the method */
    HTTP_STATUS_MISDIRECTED = 421, /* a name that is not the server's */
    HTTP_STATUS_TOO_LARGE = 431,
    HTTP_STATUS_UNAVAILABLE = 503,
};

struct http_request {
    bool head; /* HEAD: the headers of the answer only */
    char path[HTTP_PATH_BYTES];
    char host[HTTP_HOST_BYTES]; /* without port and brackets; "": the client did not say */
};

/* Parse the request that the bytes begin with. Return HTTP_STATUS_OK, with the request; 0: more
 * bytes must come; otherwise the status to refuse it with. Bytes behind the request are not looked
 * at. */
int http_request_parse(struct http_request *request, const char *bytes, size_t length);

/* Whether nobody on the Internet can have the name for their own: an address, or a name without a
 * dot, as "localhost". A site can have its name lead to any address once its page is in a browser
 * (DNS rebinding), but not such a name. */
bool http_host_is_local(const char *host);

/* "Not Found"; never NULL. */
const char *http_status_text(int status);

#endif
