/* The environment: the one place that reads or sets it. */
#ifndef COMMON_ENV_H
#define COMMON_ENV_H

/* Set a variable unless it is set already. 0 or ERR_MEMORY. Before threads are started. */
int env_set_default(const char *name, const char *value);

#endif
