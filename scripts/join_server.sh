#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes one object of llama.cpp's server out of its archives, so that it can be part of the program kvspan and run
# on kvspan's caches without a change of its sources:
#     scripts/join_server.sh OUT.o PASSED.txt ARCHIVE...
# Every call of a libllama function becomes a call of kvspan_serve_<its name without llama_>, except those listed in
# PASSED.txt. src/server defines these; a function that is in neither place does not link. Its routes, its signal
# handlers and the question whether a sequence can go back are turned the same way (below). All other names become
# local: the program has its own common library beside the server's.
set -euo pipefail
out=$1 passed=$2
shift 2
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT

# defined NAME: the linker's name of a function of the archives, by its name in C++.
nm --defined-only --quiet "$@" 2>/dev/null | awk '$2 == "T" {print $3}' | sort -u >"$work/defined"
paste <(c++filt <"$work/defined") "$work/defined" >"$work/names"
defined() {
  local found
  found=$(awk -F '\t' -v name="$1(" 'index($1, name) == 1 {print $2}' "$work/names")
  [[ -n $found && $found != *$'\n'* ]] || { echo "join_server.sh: the archives have no one function $1" >&2; exit 1; }
  printf '%s\n' "$found"
}
get=$(defined server_http_context::get)
post=$(defined server_http_context::post)
can_remove=$(defined common_context_can_seq_rm)
entry=$(awk -F '\t' '$1 == "llama_server(int, char**)" {print $2}' "$work/names")

# turn MEMBER FROM=TO...: in that object alone.
archives=()
for archive in "$@"; do
  cp "$archive" "$work/"
  archives+=("$work/${archive##*/}")
done
objects=()
turn() {
  local member=$1 archive turned=()
  shift
  for name in "$@"; do turned+=(--redefine-sym "$name"); done
  for archive in "${archives[@]}"; do
    ar t "$archive" | grep -qx "$member" || continue
    (cd "$work" && ar x "$archive" "$member")
    ar d "$archive" "$member"
    objcopy "${turned[@]}" "$work/$member"
    objects+=("$work/$member")
    return
  done
  echo "join_server.sh: no archive has $member" >&2
  exit 1
}
turn server.cpp.o "$get=kvspan_serve_route_get" "$post=kvspan_serve_route_post" \
  sigaction=kvspan_serve_sigaction
turn server-context.cpp.o "$can_remove=kvspan_serve_context_can_seq_rm"

ld -r --force-group-allocation -o "$work/joined.o" "${objects[@]}" --whole-archive "${archives[@]}"
nm -u "$work/joined.o" | awk '{print $NF}' >"$work/undefined"
paste <(c++filt <"$work/undefined" | sed 's/(.*//') "$work/undefined" |
  awk -F '\t' -v passed="$passed" '
    BEGIN { while ((getline line < passed) > 0) if (line !~ /^#/) keep[line] = 1 }
    $1 ~ /^llama_/ && !($1 in keep) { name = $1; sub(/^llama_/, "kvspan_serve_", name); print $2, name }' >"$work/renamed"
# Unique names (static variables of inline functions) cannot be made local: they are told apart by a prefix.
nm "$work/joined.o" | awk '$2 == "u" {print $3, "kvspan_server" $3}' >>"$work/renamed"
objcopy --redefine-syms="$work/renamed" --redefine-sym "$entry=kvspan_serve_llama_server" "$work/joined.o"
objcopy --redefine-sym "$get=kvspan_server_get" --redefine-sym "$post=kvspan_server_post" \
  --redefine-sym "$can_remove=kvspan_server_can_seq_rm" "$work/joined.o"
objcopy --keep-global-symbol=kvspan_serve_llama_server --keep-global-symbol=kvspan_server_get \
  --keep-global-symbol=kvspan_server_post --keep-global-symbol=kvspan_server_can_seq_rm "$work/joined.o"
mv "$work/joined.o" "$out"
