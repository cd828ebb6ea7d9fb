#include "worker/programs/shoalrun/embedded.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/base/env.h"
#include "common/config/config.h"
#include "worker/programs/shoalrun/page.h"
#include "worker/programs/step/fresh_secret.h"

#define EXTRA_BYTES_MAX (1u << 20)
#define LOG_TAIL_BYTES 4096
#define FOLDER_NAME "shoalrun-XXXXXX"
#define LOCK_BYTES 80

static int embedded_tcp_listen(struct embedded_daemon *daemon, struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(daemon->port)};
    socklen_t bytes = sizeof(address);
    /* Connections of a daemon that has ended may not be forgotten yet when the next one gets its
     * port. They are of that mind if their listener was; a new port must be nobody else's. */
    int again = daemon->port != 0, always = 1;
    daemon->tcp_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (daemon->tcp_socket < 0 ||
        setsockopt(daemon->tcp_socket, SOL_SOCKET, SO_REUSEADDR, &again, sizeof(again)) ||
        bind(daemon->tcp_socket, (struct sockaddr *)&address, sizeof(address)) ||
        listen(daemon->tcp_socket, SOMAXCONN) ||
        setsockopt(daemon->tcp_socket, SOL_SOCKET, SO_REUSEADDR, &always, sizeof(always)) ||
        getsockname(daemon->tcp_socket, (struct sockaddr *)&address, &bytes))
        return error_set_errno(error, errno, "cannot listen on 127.0.0.1:%u", daemon->port);
    daemon->port = ntohs(address.sin_port);
    return 0;
}

static int embedded_unix_listen(struct embedded_daemon *daemon, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, daemon->socket_path, sizeof(address.sun_path));
    daemon->unix_socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (daemon->unix_socket < 0 ||
        bind(daemon->unix_socket, (struct sockaddr *)&address, sizeof(address)) ||
        listen(daemon->unix_socket, SOMAXCONN))
        return error_set_errno(error, errno, "cannot listen on %s", daemon->socket_path);
    return 0;
}

static int embedded_file_write(const char *path, const char *text, struct error *error)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot create %s", path);
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return error_set(error, ERR_MEMORY, "out of memory");
    }
    bool wrong = fputs(text, file) < 0;
    if (fclose(file) || wrong)
        return error_set_errno(error, errno, "cannot write %s", path);
    return 0;
}

static int embedded_file_read(const char *path, char **text, struct error *error)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set_errno(error, errno, "cannot open %s", path);
    char *content = calloc(1, EXTRA_BYTES_MAX + 1);
    size_t bytes = content ? fread(content, 1, EXTRA_BYTES_MAX, file) : 0;
    int result = 0;
    if (!content)
        result = error_set(error, ERR_MEMORY, "out of memory");
    else if (ferror(file))
        result = error_set_errno(error, errno, "cannot read %s", path);
    else if (bytes == EXTRA_BYTES_MAX)
        result = error_set(error, ERR_CONFIG, "%s: larger than 1 MiB", path);
    fclose(file);
    if (result)
        free(content);
    else
        *text = content;
    return result;
}

/* The file in a folder that shoalrun and its daemons hold a lock on for as long as one of them
 * lives. Locks of another machine may not be seen, so each has a name of its own. */
static void lock_name(char name[LOCK_BYTES])
{
    struct utsname machine = {.nodename = ""};
    uname(&machine);
    snprintf(name, LOCK_BYTES, "lock.%.64s", machine.nodename);
}

/* The file has its name only once it is locked. -1: no lock, and nobody removes the folder later.
 */
static int lock_make(const char *directory)
{
    char name[LOCK_BYTES], path[192], unlocked[192];
    lock_name(name);
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    snprintf(unlocked, sizeof(unlocked), "%s/lock", directory);
    int fd = open(unlocked, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) || rename(unlocked, path))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Remove the files in a folder of this user's that nobody holds the lock of any more, and then the
 * folder. Of several who do so at once, the one that has removed the lock's file removes it. */
static void folder_remove_stale(int parent, const char *name, const char *lock)
{
    struct stat status;
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return;
    bool own = fstat(folder, &status) == 0 && status.st_uid == geteuid();
    int fd = own ? openat(folder, lock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    DIR *entries = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 ? fdopendir(folder) : NULL;
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strcmp(entry->d_name, lock) != 0)
            unlinkat(folder, entry->d_name, 0); /* not "." and ".." */
    if (entries && unlinkat(folder, lock, 0) == 0)
        unlinkat(parent, name, AT_REMOVEDIR);
    if (fd >= 0)
        close(fd);
    if (entries)
        closedir(entries);
    else
        close(folder);
}

/* What runs that were killed have left. */
static void folders_remove_stale(const char *parent)
{
    char lock[LOCK_BYTES];
    lock_name(lock);
    DIR *entries = opendir(parent);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strlen(entry->d_name) == strlen(FOLDER_NAME) &&
            strncmp(entry->d_name, FOLDER_NAME, strcspn(FOLDER_NAME, "X")) == 0)
            folder_remove_stale(dirfd(entries), entry->d_name, lock);
    if (entries)
        closedir(entries);
}

static int directory_make(struct embedded *embedded, const char *parent, struct error *error)
{
    char path[sizeof(embedded->directory)];
    int length = snprintf(path, sizeof(path), "%s/" FOLDER_NAME, parent);
    if (length >= (int)sizeof(path) - 16) /* the sockets' names must fit behind it */
        return error_set(error, ERR_INVALID,
                         "%s is too long for the sockets of daemons; set TMPDIR", parent);
    if (!mkdtemp(path)) /* mode 0700 */
        return error_set_errno(error, errno, "cannot make a folder in %s", parent);
    memcpy(embedded->directory, path, sizeof(path));
    embedded->lock = lock_make(path);
    return 0;
}

static int daemons_listen(struct embedded *embedded, uint32_t worker_nodes, struct error *error)
{
    for (uint32_t i = 0; i < embedded->count; i++) {
        struct embedded_daemon *daemon = &embedded->daemons[i];
        launch_node_name(daemon->name, worker_nodes, i);
        snprintf(daemon->socket_path, sizeof(daemon->socket_path), "%s/%.8s.sock",
                 embedded->directory, daemon->name);
        snprintf(daemon->config_path, sizeof(daemon->config_path), "%s/%.8s.json",
                 embedded->directory, daemon->name);
        snprintf(daemon->log_path, sizeof(daemon->log_path), "%s/%.8s.log", embedded->directory,
                 daemon->name);
        int result = embedded_tcp_listen(daemon, error);
        if (result == 0)
            result = embedded_unix_listen(daemon, error);
        if (result)
            return result;
    }
    return 0;
}

static int secret_write(const char *path, struct error *error)
{
    char secret[FRESH_SECRET_BYTES];
    int result = fresh_secret(secret, error);
    return result ? result : embedded_file_write(path, secret, error);
}

static int configs_write(struct embedded *embedded, const struct launch_options *options,
                         const char *extra, struct error *error)
{
    uint16_t ports[LAUNCH_NODES_MAX], page_port = 0;
    char secret_path[sizeof(embedded->directory) + 16];
    long long pinned_bytes;
    /* What the workers may pin, whose daemons these are, is theirs to say. */
    int read =
        env_integer("SHOAL_PINNED_BYTES", 1, SHOAL_PINNED_BYTES_MAX, 0, &pinned_bytes, error);
    if (read < 0)
        return read;
    if (pinned_bytes > 0 && pinned_bytes < CONFIG_LEAST_PINNED_BYTES)
        pinned_bytes = CONFIG_LEAST_PINNED_BYTES;
    snprintf(secret_path, sizeof(secret_path), "%s/secret", embedded->directory);
    int written = secret_write(secret_path, error);
    if (written == 0 && options->page)
        written = page_reserve(&embedded->page, &page_port, error);
    if (written < 0)
        return written;
    for (uint32_t i = 0; i < embedded->count; i++)
        ports[i] = embedded->daemons[i].port;
    struct launch_config config = {
        .worker_nodes = embedded->count - options->cpu_nodes,
        .cpu_nodes = options->cpu_nodes,
        .ports = ports,
        .provider = options->provider,
        .pinned_bytes = (uint64_t)pinned_bytes,
        .page_port = page_port,
        .secret_path = secret_path,
        .extra = extra,
        .extra_name = options->config_path,
    };
    for (uint32_t i = 0; i < embedded->count; i++) {
        char *text;
        int result = launch_config_text(&config, i, embedded->daemons[i].socket_path, &text, error);
        if (result)
            return result;
        result = embedded_file_write(embedded->daemons[i].config_path, text, error);
        embedded->recovers = launch_config_recovers(text);
        free(text);
        if (result)
            return result;
    }
    return 0;
}

int embedded_prepare(struct embedded *embedded, const struct launch_options *options,
                     const char *parent, struct error *error)
{
    uint32_t worker_nodes = options->nodes ? options->nodes : 1;
    *embedded = (struct embedded){.alive_read = -1, .alive_write = -1, .page = -1, .lock = -1};
    uint32_t count = worker_nodes + options->cpu_nodes;
    embedded->daemons = calloc(count, sizeof(*embedded->daemons));
    if (!embedded->daemons)
        return error_set(error, ERR_MEMORY, "out of memory");
    embedded->count = count;
    for (uint32_t i = 0; i < count; i++)
        embedded->daemons[i].unix_socket = embedded->daemons[i].tcp_socket = -1;
    char *extra = NULL;
    int result = options->config_path ? embedded_file_read(options->config_path, &extra, error) : 0;
    folders_remove_stale(parent);
    if (result == 0)
        result = directory_make(embedded, parent, error);
    if (result == 0)
        result = daemons_listen(embedded, worker_nodes, error);
    if (result == 0)
        result = configs_write(embedded, options, extra, error);
    free(extra);
    int alive[2];
    if (result == 0 && pipe2(alive, O_CLOEXEC))
        result = error_set_errno(error, errno, "cannot open a pipe");
    else if (result == 0) {
        embedded->alive_read = alive[0];
        embedded->alive_write = alive[1];
    }
    return result;
}

void embedded_program(char path[PATH_MAX])
{
    static const char name[] = "shoald";
    char own[PATH_MAX - sizeof(name)];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (length > 0) {
        own[length] = 0;
        char *slash = strrchr(own, '/');
        if (slash) {
            slash[1] = 0;
            snprintf(path, PATH_MAX, "%s%s", own, name);
            if (access(path, X_OK) == 0)
                return;
        }
    }
    snprintf(path, PATH_MAX, "%s", name);
}

static int embedded_daemon_start(struct embedded *embedded, struct embedded_daemon *daemon,
                                 struct supervisor *supervisor, struct child *child, bool verbose,
                                 char *const *environment, struct error *error)
{
    char program[PATH_MAX], listen_text[16], socket_text[16], alive_text[16];
    embedded_program(program);
    snprintf(listen_text, sizeof(listen_text), "%d", daemon->tcp_socket);
    snprintf(socket_text, sizeof(socket_text), "%d", daemon->unix_socket);
    snprintf(alive_text, sizeof(alive_text), "%d", embedded->alive_read);
    char name[] = "shoald", option_config[] = "--config", option_listen[] = "--listen-fd",
         option_socket[] = "--socket-fd", option_alive[] = "--exit-with-parent-fd";
    char *argv[] = {name,          option_config, daemon->config_path, option_listen, listen_text,
                    option_socket, socket_text,   option_alive,        alive_text,    NULL};
    int log = -1, input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!verbose)
        log = open(daemon->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int result = 0;
    if (input < 0 || (!verbose && log < 0))
        result = error_set_errno(error, errno, "cannot open the log of %s", daemon->name);
    int kept[] = {daemon->tcp_socket, daemon->unix_socket, embedded->alive_read, embedded->lock};
    struct child_start start = {
        .program = program,
        .argv = argv,
        .environment = environment,
        .input = input,
        .output = verbose ? STDERR_FILENO : log,
        .inherited = kept,
        .inherited_count = embedded->lock >= 0 ? 4 : 3,
        .own_group = true,
    };
    if (result == 0)
        result = supervisor_start(supervisor, child, &start, error);
    if (input >= 0)
        close(input);
    if (log >= 0)
        close(log);
    return result;
}

static void sockets_close(struct embedded_daemon *daemon)
{
    if (daemon->tcp_socket >= 0)
        close(daemon->tcp_socket);
    if (daemon->unix_socket >= 0)
        close(daemon->unix_socket);
    daemon->tcp_socket = daemon->unix_socket = -1;
}

int embedded_start(struct embedded *embedded, struct supervisor *supervisor, bool verbose,
                   char *const *environment, struct error *error)
{
    for (uint32_t i = 0; i < embedded->count; i++) {
        struct child *child = &supervisor->children[i];
        child->kind = CHILD_DAEMON;
        child->name = embedded->daemons[i].name;
        int result = embedded_daemon_start(embedded, &embedded->daemons[i], supervisor, child,
                                           verbose, environment, error);
        /* The daemon alone may hold them: once it is gone, connecting must fail. */
        sockets_close(&embedded->daemons[i]);
        if (result)
            return result;
    }
    return 0;
}

int embedded_restart(struct embedded *embedded, uint32_t i, struct supervisor *supervisor,
                     bool verbose, char *const *environment, struct error *error)
{
    struct embedded_daemon *daemon = &embedded->daemons[i];
    unlink(daemon->socket_path);
    int result = embedded_tcp_listen(daemon, error);
    if (result == 0)
        result = embedded_unix_listen(daemon, error);
    if (result == 0)
        result = embedded_daemon_start(embedded, daemon, supervisor, &supervisor->children[i],
                                       verbose, environment, error);
    sockets_close(daemon);
    return result;
}

void embedded_print_logs(const struct embedded *embedded)
{
    for (uint32_t i = 0; i < embedded->count; i++) {
        FILE *file = fopen(embedded->daemons[i].log_path, "re");
        if (!file)
            continue;
        char tail[LOG_TAIL_BYTES + 1];
        if (fseek(file, -LOG_TAIL_BYTES, SEEK_END))
            rewind(file);
        size_t bytes = fread(tail, 1, LOG_TAIL_BYTES, file);
        bool whole = ftell(file) <= (long)bytes;
        tail[bytes] = 0;
        fclose(file);
        char *line = whole ? tail : strchr(tail, '\n');
        fprintf(stderr, "shoalrun: the end of the log of %s:\n", embedded->daemons[i].name);
        char *rest = NULL;
        for (line = line ? strtok_r(line, "\n", &rest) : NULL; line;
             line = strtok_r(NULL, "\n", &rest))
            fprintf(stderr, "    %s\n", line);
    }
}

static int entry_remove(const char *path, const struct stat *status, int type, struct FTW *level)
{
    (void)status, (void)type, (void)level;
    return remove(path);
}

void embedded_clear(struct embedded *embedded)
{
    for (uint32_t i = 0; i < embedded->count; i++)
        sockets_close(&embedded->daemons[i]);
    if (embedded->alive_read >= 0)
        close(embedded->alive_read);
    if (embedded->alive_write >= 0)
        close(embedded->alive_write);
    if (embedded->directory[0])
        nftw(embedded->directory, entry_remove, 8, FTW_DEPTH | FTW_PHYS);
    if (embedded->page >= 0)
        close(embedded->page);
    if (embedded->lock >= 0)
        close(embedded->lock);
    free(embedded->daemons);
    *embedded = (struct embedded){.alive_read = -1, .alive_write = -1, .page = -1, .lock = -1};
}
