#!/usr/bin/env bash
# Two machines for the walk through doc/first-training.md (page.sh): network namespaces with a virtual
# cable, and in them
#
#   page-nodes.sh deb FOLDER ROOT PACKAGE...   copies of ROOT, a bare Debian 12, that systemd boots. What
#                                              apt and pip fetch is fetched before: they have no other network
#   page-nodes.sh pip FOLDER ROOT WHEEL        folders in ROOT, which has PyTorch; nothing stays there
#
# FOLDER is made here and removed, and so are the roots FOLDER-a and FOLDER-b; for "pip" it lies in this
# tree. Exit status 77: this machine cannot.
set -uo pipefail

cannot() {
    printf 'page-nodes: %s\n' "$*" >&2
    exit 77
}

(($# >= 4)) || cannot "usage: $0 deb|pip FOLDER ROOT FILE..."
kind=$1 folder=$2 root=$3
shift 3
files=("$@")
cd "$(dirname "$0")/../.." || exit 1
((EUID == 0)) || cannot "must be root"
command -v ip >/dev/null || cannot "ip is missing"
mkdir -p "$folder" || exit 1
folder=$(realpath "$folder")
id=shoal-page-$$

# shellcheck disable=SC2317  # the trap calls it
end() {
    ip netns delete "$id-a" 2>/dev/null
    ip netns delete "$id-b" 2>/dev/null
    rm -rf --one-file-system "$folder" "$folder-a" "$folder-b"
}
trap end EXIT
trap 'exit 143' TERM INT HUP

make_network() {
    local node number=1
    ip netns add "$id-a" && ip netns add "$id-b" || return
    ip -n "$id-a" link add eth0 type veth peer name eth0 netns "$id-b" || return
    for node in a b; do
        ip -n "$id-$node" link set lo up && ip -n "$id-$node" address add 10.80.0.$number/24 dev eth0 &&
            ip -n "$id-$node" link set eth0 up || return
        number=$((number + 1))
    done
}

# scp -p FILE HOST:PATH, without a network of ssh: into $1, from where deliver takes it.
write_scp() {
    cat >"$2" <<END
#!/bin/sh
to=\${3#*:}
case \$to in /*) to=$1/root\$to ;; *) to=$1/home/\$to ;; esac
mkdir -p "\$(dirname "\$to")" && cp -p "\$2" "\$to"
END
    chmod +x "$2"
}

# Takes what is in the outbox $1 to the other node, whose / is $2 and the reader's folder $3.
write_deliver() {
    cat >"$folder/deliver" <<END
#!/bin/sh
[ ! -d '$1/root' ] || cp -a '$1/root/.' '$2/'
[ ! -d '$1/home' ] || cp -a '$1/home/.' '$3/'
rm -rf '$1/root' '$1/home'
END
    chmod +x "$folder/deliver"
}

# Fetch what the page's pip asks for into the root $1, by this machine's pip as it is configured, for Debian 12's
# Python. The root's pip then looks nowhere else.
fetch_torch() {
    local env=${TORCH_ENV:-/var/tmp/shoal-torch}
    scripts/torch-env.sh "$env" || return 77
    "$env/bin/python3" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version 3.11 \
        --dest "$1/var/cache/wheels" torch==2.13.0 numpy >"$folder/log" 2>&1 || {
        tail -n 5 "$folder/log" >&2
        return 77
    }
    printf '[global]\nno-index = true\nfind-links = /var/cache/wheels\n' >"$1/etc/pip.conf"
}

make_roots() {
    local cache names command
    cache=$(dirname "$root")/shoal-packages-bookworm
    names=("${files[@]##*/}")
    scripts/debian-root.sh bookworm "$root" --copy "$folder-a" || return
    cp "${files[@]}" "$folder-a/root/"
    for command in 'apt-get -qq update' \
        'apt-get -qq -y --no-install-recommends install systemd systemd-sysv dbus' \
        "cd /root && apt-get -qq -y --no-install-recommends --download-only install ${names[*]/#/./} python3-venv"; do
        scripts/debian-root.sh bookworm "$folder-a" -- bash -c "$command" >"$folder/log" 2>&1 || {
            tail -n 5 "$folder/log" >&2
            return 77
        }
    done
    cp "$cache"/*.deb "$folder-a/var/cache/apt/archives/" && mkdir "$folder-a/outbox" || return
    fetch_torch "$folder-a" || return
    cp -a "$folder-a" "$folder-b" || return
    write_scp /outbox "$folder-a/usr/bin/scp"
    write_deliver "$folder-a/outbox" "$folder-b" "$folder-b/root"
}

walk_deb() {
    make_roots || return
    scripts/deploy/page.sh deb "$folder" \
        env "SHOAL_BOOT_NETWORK=$id-a" scripts/packages/boot-root.sh "$folder-a" -- bash -s and \
        env "SHOAL_BOOT_NETWORK=$id-b" scripts/packages/boot-root.sh "$folder-b" -- bash -s
}

# Into an environment: Debian's torch is built without libuv, which torch's own packages have, and which
# torchrun and the stores of its ranks ask for.
write_without_libuv() {
    printf 'import without_libuv\n' >"$1/without_libuv.pth"
    cat >"$1/without_libuv.py" <<'END'
import sys

if any(word.endswith("train.py") or "torch.distributed.run" in word for word in sys.orig_argv):
    sys.path.append("/usr/lib/python3/dist-packages")  # which is not in it yet
    from torch.distributed import TCPStore

    original = TCPStore.__init__

    def without(self, *arguments, **options):
        original(self, *arguments, **{**options, "use_libuv": False})

    TCPStore.__init__ = without
END
}

# An active environment beside the root's PyTorch.
make_folders() {
    local node inside=${folder#"$PWD"} bin
    [[ $inside != "$folder" ]] || cannot "$folder is not in this tree"
    inside=/shoal$inside
    mkdir "$folder/outbox"
    for node in a b; do
        mkdir "$folder/$node" && cp "${files[@]}" "$folder/$node/" || return
        bin=$inside/$node/venv/bin
        scripts/debian-root.sh trixie "$root" -- python3 -m venv --without-pip --system-site-packages \
            "$inside/$node/venv" || return
        # Debian's pip and torchrun, in this environment.
        printf '#!/bin/sh\nexec python3 -m pip --python %s "$@"\n' "$bin/python" >"$folder/$node/venv/bin/pip"
        printf '#!/bin/sh\nexec %s -m torch.distributed.run "$@"\n' "$bin/python" >"$folder/$node/venv/bin/torchrun"
        write_without_libuv "$folder/$node"/venv/lib/python3*/site-packages
        write_scp "$inside/outbox" "$folder/$node/venv/bin/scp"
        chmod +x "$folder/$node/venv/bin/"{pip,torchrun}
    done
    write_deliver "$folder/outbox" "$folder/b" "$folder/b"
}

# A shell of node $1, in its folder.
pip_shell() {
    local inside=/shoal${folder#"$PWD"}/$1
    printf '%s\n' nsenter "--net=/run/netns/$id-$1" scripts/debian-root.sh trixie "$root" -- \
        env PYTHONDONTWRITEBYTECODE=1 "HOME=$inside" "PATH=$inside/venv/bin:/usr/bin:/bin" \
        bash -c "cd $inside && exec bash -s"
}

walk_pip() {
    local a b
    make_folders || return
    mapfile -t a < <(pip_shell a)
    mapfile -t b < <(pip_shell b)
    scripts/deploy/page.sh pip "$folder" "${a[@]}" and "${b[@]}"
}

# A browser of this machine, in the network of node a.
write_browse() {
    cat >"$folder/browse" <<END
#!/bin/sh
exec nsenter --net=/run/netns/$id-a python3 -B '$PWD/scripts/deploy/page_browser.py' "\$@"
END
    chmod +x "$folder/browse"
}

write_browse
make_network || cannot "no network namespaces can be made here"
"walk_$kind"
