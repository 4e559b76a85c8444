# What .ci/run, .ci/full and .ci/flakes share. It is sourced in the repository's root.
set -euo pipefail
started=$SECONDS
logs=$(mktemp -d)
shared=$(cd .. && pwd)/shared/ci # where this project's machines have a script for each server; elsewhere there is none
modules=($(go work edit -json | sed -n 's|.*"DiskPath": "\./\(.*\)".*|\1|p')) # of go.work, besides the root
packages=("${modules[@]/#/./}") # of these modules
packages=("${packages[@]/%//...}")
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0
export OUTBOX_TEST_REQUIRE=all

# say NAME: begins a stage, and says how long the one before took.
stage= stage_began=$SECONDS
say() {
  [ -z "$stage" ] || printf -- '-- %s: %d s\n' "$stage" $((SECONDS - stage_began))
  stage=$* stage_began=$SECONDS
  printf '\n== %s (%d s since the start)\n' "$*" $((SECONDS - started))
}

# install: what the tests need besides Go, on Debian and Ubuntu, and the newest minor of each PostgreSQL that a package there has.
install() {
  local missing=() as=() major named package programs
  [ -n "$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || command -v initdb >/dev/null || missing+=(postgresql)
  command -v psql >/dev/null || missing+=(postgresql-client)
  command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
  command -v gcc >/dev/null || missing+=(gcc libc6-dev)
  [ "${0##*/}" != full ] || command -v npm >/dev/null || missing+=(nodejs npm) # for .ci/site
  # What tests name by needs.Program or needs.Optional, in calls on one line: a package, and programs of which one is enough.
  named=$(git grep -hoE 'needs\.(Program|Optional)\(t(, "[^"]+"){2,}' -- '*_test.go' ':!internal/testing/needs' | sort -u)
  while read -r package programs; do
    (PATH=$PATH:/usr/sbin; for program in $programs; do command -v "$program" && exit; done; exit 1) >/dev/null || missing+=("$package")
  done < <(sed -E 's/^[^"]*//; s/[",]//g' <<<"$named")
  [ -n "$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null)" ] || missing+=(faketime)
  for major in $(ls /usr/lib/postgresql 2>/dev/null); do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "postgresql-$major" 2>/dev/null)" != installed ] || missing+=("postgresql-$major")
    [ -x "/usr/lib/postgresql/$major/bin/pg_repack" ] || ! apt-cache show "postgresql-$major-repack" >/dev/null 2>&1 || missing+=("postgresql-$major-repack")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing: ${missing[*]}"
  [ "$(id -u)" = 0 ] || as=(sudo)
  "${as[@]}" apt-get update -qq
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$logs/apt" 2>&1 || { tail -20 "$logs/apt"; exit 1; }
}

# server MAJOR: prints the directory of that version's initdb and postgres.
server() {
  local bin=/usr/lib/postgresql/$1/bin as=()
  if [ ! -x "$bin/initdb" ] && [ -x "$shared/postgres-version" ]; then
    "$shared/postgres-version" "$1" | tail -1
    return
  fi
  if [ ! -x "$bin/initdb" ]; then # from PostgreSQL's own packages
    [ "$(id -u)" = 0 ] || as=(sudo)
    "${as[@]}" apt-get install -y -qq postgresql-common ca-certificates >/dev/null
    "${as[@]}" bash -c '/usr/share/postgresql-common/pgdg/apt.*.sh -y' >/dev/null
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "postgresql-$1" >/dev/null
  fi
  echo "$bin"
}

# versions MAJOR...: prints the servers that the tests use: those that are installed, and these.
versions() {
  local major bin
  { ls -d /usr/lib/postgresql/*/bin; for major in "$@"; do server "$major"; done; } 2>/dev/null | sort -u | while read -r bin; do
    [ ! -x "$bin/postgres" ] || echo "$("$bin/postgres" --version) in $bin"
  done
}

# fetch MAJOR...: installs what the tests need, PostgreSQL 17 in Docker and each of these versions, while the script goes on
# until it calls fetched.
fetch() {
  local major
  fetching=("$@")
  { install; docker_server 17; for major in "$@"; do server "$major"; done; } >"$logs/fetch" 2>&1 &
  fetch=$!
}
fetched() {
  wait $fetch || { cat "$logs/fetch"; exit 1; }
  versions "${fetching[@]}"
}

# docker_server MAJOR: makes sure that a Docker engine runs and can have that version's image.
docker_server() {
  if [ -x "$shared/docker-postgres" ]; then
    "$shared/docker-postgres" "$1" >"$logs/docker" 2>&1 || { tail -20 "$logs/docker"; exit 1; }
  fi
  docker info >/dev/null || { echo 'no Docker engine'; exit 1; }
}

# said_by_failed LOG: the lines of go test -v that belong to tests that failed.
said_by_failed() {
  awk 'NR == FNR { if ($1 == "---" && $2 == "FAIL:") failed[$3]; next }
    $1 == "===" { name = $3; if (name in failed) print; next }
    name in failed && $1 != "---" { print }' "$1" "$1"
}

# suite NAME ARGS...: go test -v, with the number of tests that ran. Each alternative of a -run
# pattern has to match a test that passed; one that was skipped does not do.
suite() {
  local name=$1 log="$logs/${1//[^a-zA-Z0-9]/_}"; shift
  say "tests: $name"
  if ! go test -count=1 -v -vet=off -timeout 20m "$@" >"$log" 2>&1; then
    echo "FAILED: $name"
    grep -E '^(\s*--- FAIL|FAIL|panic:|fatal error:)' "$log" | head -50 || true
    echo "--- what the failed tests said:"; said_by_failed "$log" | sed -n 1,300p
    echo "--- the end of the log:"; grep -vE '^\s*(=== |--- PASS)' "$log" | tail -150
    exit 1
  fi
  grep -E '^ok ' "$log" || true
  grep -oE 'devpg: [a-z]+: PostgreSQL .* at postgres:' "$log" | sed 's/ at postgres:$//' | sort | uniq -c || true
  echo "$name: $(grep -cE '^\s*--- PASS' "$log") tests passed, $(grep -cE '^\s*--- SKIP' "$log" || true) skipped"
  while [ $# -gt 1 ] && [ "$1" != -run ]; do shift; done
  if [ "${1:-}" = -run ]; then
    local alternative
    for alternative in ${2//|/ }; do
      grep -qE -- "^--- PASS: ([^/ ]*)${alternative/%\$/ }" "$log" ||
        { echo "$name: no test that ran matches $alternative"; exit 1; }
    done
  fi
}

# tidy MODULE: its go.mod requires what it imports. The modules require versions of each other that are released together, so it is
# told where these are.
tidy() {
  local mod="$logs/tidy.mod"
  cp "$1/go.mod" "$mod"
  cp "$1/go.sum" "$logs/tidy.sum"
  go mod edit -replace "github.com/txoutbox/outbox=$PWD" "$mod"
  for m in "${modules[@]}"; do
    [ "$m" = "$1" ] || go mod edit -replace "github.com/txoutbox/outbox/$m=$PWD/$m" "$mod"
  done
  (cd "$1" && GOWORK=off go mod tidy -diff -modfile="$mod")
}

checks() {
  say 'gofmt, vet, staticcheck, modules'
  local unformatted; unformatted=$(gofmt -l .)
  [ -z "$unformatted" ] || { echo "not formatted: $unformatted"; exit 1; }
  go vet ./... "${packages[@]}"
  go run $staticcheck ./... $(printf '%s\n' "${packages[@]}" | grep -vE '/(browsertest|examples|chaos)/')
  go run .ci/api.go
  go mod tidy -diff
  for m in bench bench/moves; do (cd "$m" && go vet ./... && go mod tidy -diff); done
  for m in "${modules[@]}"; do tidy "$m"; done
}

# footprint: what an app gets with the library.
footprint() {
  say 'go.sum of an app'
  GOWORK=off go run .ci/footprint.go
}

# more_checks: for the nightly run, as staticcheck looks at all packages that these need.
more_checks() {
  go mod verify
  go run $staticcheck ./dashboard/browsertest ./examples/... ./internal/testing/chaos/...
  for m in bench bench/moves; do (cd "$m" && go run $staticcheck ./...); done
}

# oldest ARGS...: a suite, and those of the modules that apps import, with the oldest Go and the oldest dependencies that each go.mod
# allows. All else runs with the versions of go.work.
oldest() {
  local m go
  for m in . $(printf '%s\n' "${modules[@]}" | grep -E '^(adapter|publish|telemetry)/'); do
    go=go$(sed -n 's/^go //p' "$m/go.mod")
    [[ $(go env GOVERSION) != "${go%.*}".* ]] || go=local # as publish/kafka, whose client needs the latest Go
    GOTOOLCHAIN=$go go version >/dev/null 2>&1 || { echo "SKIPPED: $go cannot be fetched; $(go env GOVERSION) in its place"; go=local; }
    [ "$m" = . ] || set -- ./...
    pushd "$m" >/dev/null
    GOWORK=off GOTOOLCHAIN=$go suite "$m with the oldest Go and dependencies, $(GOTOOLCHAIN=$go go env GOVERSION)" "$@"
    popd >/dev/null
  done
}

# old_libpq ARGS...: a suite with the newest lib/pq of a year ago. It takes one host only in a connection string.
old_libpq() {
  local old=1.10.9
  cp go.mod "$logs/libpq.mod"
  cp go.sum "$logs/libpq.sum"
  go mod edit -require="github.com/lib/pq@v$old" "$logs/libpq.mod"
  GOWORK=off go mod tidy -modfile="$logs/libpq.mod" # -modfile is not for workspaces
  grep -q "github.com/lib/pq v$old" "$logs/libpq.mod" || { echo "a dependency needs a newer lib/pq than $old"; exit 1; }
  GOWORK=off OUTBOX_TEST_DRIVER=postgres suite "lib/pq $old" -modfile="$logs/libpq.mod" "$@"
}

# linked FROM TO: a copy for reading, of hard links where that is possible.
linked() { cp -al "$1" "$2" 2>/dev/null || { rm -rf "$2"; cp -r "$1" "$2"; }; }

# workplace: what follows runs in a clone with the checkout's changes, at a path that anybody can read and that is the same
# for each run. So all stages, and the next run, share what was compiled. One run at a time has that path.
workplace() {
  local dir mod; dir=/var/tmp/outbox-ci-$(id -u)
  mkdir -p "$dir"
  [ -O "$dir" ] || { echo "$dir is not yours: remove it"; exit 1; }
  # The lock is held by a process of its own: a daemon that this run starts, as Docker's, must not inherit it.
  mkfifo "$logs/locked"
  flock -o "$dir/lock" sh -c 'echo >"$0"; exec tail --pid="$1" -f /dev/null' "$logs/locked" $$ &
  read -r <"$logs/locked" || true
  rm -rf "$dir/outbox"
  git clone -q . "$dir/outbox"
  git diff --binary HEAD | git -C "$dir/outbox" apply --allow-empty --index
  git ls-files -zo --exclude-standard | xargs -0r cp --parents -t "$dir/outbox"
  if [ "$(id -u)" = 0 ]; then # bare runs as nobody
    mod=$(go env GOMODCACHE)
    mkdir -p "$mod"
    rm -rf "$dir/modules"
    linked "$mod" "$dir/modules"
    export GOMODCACHE=$dir/modules
  fi
  cd "$dir/outbox"
  untracked >"$logs/untracked"
}

untracked() { git ls-files -o --exclude-standard; }

# bare [PACKAGES]: the README's test command with a PATH that has Go and PostgreSQL only. As root it runs as nobody.
bare() {
  [ $# -gt 0 ] || set -- ./...
  say 'go test with Go and PostgreSQL only'
  local dir="$logs/bare" mod cache as=() path
  path=$(go env GOROOT)/bin:$(dirname "$(ls -d /usr/lib/postgresql/*/bin/initdb | tail -1)")
  mod=$(go env GOMODCACHE)
  cache=$(go env GOCACHE)
  mkdir -p "$dir/home"
  if [ "$(id -u)" = 0 ]; then
    linked "$cache" "$dir/cache" # root's own is not for others to write
    cache=$dir/cache
    chmod 755 "$logs" "$dir"
    chown nobody: "$dir/home"
    find "$cache" -type d -exec chown nobody: {} +
    as=(setpriv --reuid nobody --regid nogroup --clear-groups)
  fi
  local failed=0
  "${as[@]}" env -i PATH="$path" HOME="$dir/home" GOCACHE="$cache" GOMODCACHE="$mod" GOPROXY=off \
    go test -count=1 "$@" >"$logs/bare.log" 2>&1 || failed=1
  grep -E '^ok ' "$logs/bare.log" || true
  [ $failed = 0 ] || { grep -v '^ok ' "$logs/bare.log" | tail -200; echo 'FAILED: go test with Go and PostgreSQL only'; exit 1; }
}

benchmark() {
  say 'the benchmark against the field, very short'
  (cd bench && go test -count=1 ./...)
  say 'moves from other queues'
  (cd bench/moves && go test -count=1 .)
}

# clean ends the script: no file has changed since the work began, go.work.sum neither.
clean() {
  say 'a clone is as it was'
  go doc . >/dev/null
  go list -m all >/dev/null
  git diff --exit-code --stat
  untracked | diff "$logs/untracked" -
  say "all passed"
}

finish() {
  local code=$?
  [ $code = 0 ] || printf '\nFAILED in: %s, after %d s\n' "$stage" $((SECONDS - started))
  rm -rf "$logs"
}
trap finish EXIT
