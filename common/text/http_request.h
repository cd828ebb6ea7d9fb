/* The request of an HTTP client, as far as a server needs it that has one document: the method, the
 * path, and where the headers end, which are not looked at (RFC 9112, sections 2 to 5). Calls
 * common/base. */
#ifndef COMMON_TEXT_HTTP_REQUEST_H
#define COMMON_TEXT_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_REQUEST_BYTES 4096u /* with its headers and the empty line after them */
#define HTTP_PATH_BYTES 128u

enum http_status {
    HTTP_STATUS_OK = 200,
    HTTP_STATUS_BAD_REQUEST = 400,
    HTTP_STATUS_NOT_FOUND = 404,
    HTTP_STATUS_NOT_ALLOWED = 405, /* the method */
    HTTP_STATUS_TOO_LARGE = 431,
    HTTP_STATUS_UNAVAILABLE = 503,
};

struct http_request {
    bool head; /* HEAD: the headers of the answer only */
    char path[HTTP_PATH_BYTES];
};

/* HTTP_STATUS_OK, with the request; 0: more bytes must come; else what to refuse it with. What
 * comes behind the request is not looked at. */
int http_request_parse(struct http_request *request, const char *bytes, size_t length);

/* "Not Found"; never NULL. */
const char *http_status_text(int status);

#endif
