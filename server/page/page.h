/* The live page: one document of HTML, with its style and its program inside, and no other asset.
 * Pure. */
#ifndef SERVER_PAGE_PAGE_H
#define SERVER_PAGE_PAGE_H

#include <stddef.h>

/* page.html, as the Makefile compiles it in; no NUL ends it. */
extern const char page_html[];
extern const size_t page_html_bytes;

#define PAGE_HEADERS_BYTES 512

/* The page's Content-Security-Policy and what else it asks of a browser, with line ends: the
 * style and the program of the page run, named by their hashes (CSP level 3, section 2.3.1), and
 * nothing else does; it may ask its own daemon and nobody else. ERR_PROTOCOL: the page has no
 * such parts. */
int page_headers(char headers[PAGE_HEADERS_BYTES]);

#endif
