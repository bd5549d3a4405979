package docker

import (
	"regexp"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// What a shell in the image does for us where there is no guest. It is any shell
// that POSIX describes, with /proc; programs of the image are called nowhere but
// where it is said.

// launcherCommand is what starts cmd with the environment env: a shell that says its process
// number, which the engine does not know, and then becomes the command. A terminal
// gets its size in between. It calls env, for variables that shells do not pass on.
func launcherCommand(cmd *atoll.Command, env []string) []string {
	script := findProgramScript + `echo $$; `
	if cmd.TTY != nil {
		script += `read -r line; echo ` + launchReady + `; unset line; `
	}
	script += "exec "
	if odd := nonShellVariables(env); len(odd) > 0 {
		script += "env " + strings.Join(odd, " ") + " "
	}
	return append([]string{shellPath, "-c", script + `"$@"`, shellPath}, cmd.Args...)
}

// nonShellVariables are those of env whose names are none to a shell, quoted for one.
func nonShellVariables(env []string) (odd []string) {
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !shellName.MatchString(name) {
			odd = append(odd, "'"+strings.ReplaceAll(kv, "'", `'\''`)+"'")
		}
	}
	return odd
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

const (
	launchReady  = "atoll-ready"
	launchFailed = "atoll-failed "
)

// findProgramScript looks for the program as exec will: what is wrong with it is no
// exit code of its own then.
const findProgramScript = `
code=127
case $1 in
*/*) if [ -d "$1" ]; then code=126; elif [ -x "$1" ]; then code=0; elif [ -e "$1" ]; then code=126; fi ;;
*) IFS=:
	for dir in $PATH; do
		if [ -f "$dir/$1" ] && [ -x "$dir/$1" ]; then code=0; break; fi
		[ -f "$dir/$1" ] && code=126
	done
	unset IFS ;;
esac
[ $code = 0 ] || { echo "` + launchFailed + `$code"; exit $code; }
unset code dir
`

// idleScript is the main process of a sandbox that has none: it is not ended by
// who asks all processes to end, and has a variable by which it is known. It calls
// sleep.
const idleScript = `trap '' HUP INT QUIT TERM; export ` + idleVar + `=1; exec sleep 2147483647`

const idleVar = "ATOLL_IDLE"

// exitGone is the exit code of a script for a process that is there no longer.
const exitGone = 3

// processFunctions defines slurp, which reads a file of /proc into $all, NULs left out, and
// look, which tells of process $1 its state, parent and session; see
// proc_pid_stat(5). A command's name may hold anything.
const processFunctions = `
slurp() {
	all=
	while IFS= read -r line || [ -n "$line" ]; do all="$all$line "; line=; done 2>/dev/null <"$1"
}
look() {
	slurp "/proc/$1/stat"
	[ -n "$all" ] || return 1
	set -- ${all##*)}
	state=$1 parent=$2 session=$4
	[ "$state" != Z ]
}
`

// signalScript sends process $1 signal $2, if it still is the leader of the
// session that it was made for.
const signalScript = processFunctions + `
look "$1" && [ "$session" = "$1" ] || exit 3
kill "-$2" "$1"
`

// killScript kills process $1 with its session, those that have $2 in their
// environment, and all that descend from these, until none is left. It looks again
// and again, because they may be starting others. It calls sleep.
const killScript = processFunctions + `
tries=0
look "$1" && [ "$session" = "$1" ] && kill -9 "$1" # before it learns that its children have died
while [ $tries -lt 100 ]; do
	all_of_them= family=' '
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		[ $pid != 1 ] && [ $pid != $$ ] && look $pid || continue
		all_of_them="$all_of_them $pid:$parent"
		if [ $session = "$1" ]; then family="$family$pid "; continue; fi
		slurp "$dir/environ"
		case $all in *"$2"*) family="$family$pid " ;; esac
	done
	grown=1
	while [ -n "$grown" ]; do
		grown=
		for one in $all_of_them; do
			case $family in *" ${one%:*} "*) continue ;; esac
			case $family in *" ${one#*:} "*) family="$family${one%:*} " grown=1 ;; esac
		done
	done
	[ "$family" = ' ' ] && exit 0
	kill -9 $family 2>/dev/null
	tries=$((tries + 1))
	sleep 0.05 2>/dev/null || sleep 1
done
echo "left:$family"
exit 1
`

// stopScript asks all processes of its user to end.
const stopScript = `kill -TERM -1`

// awaitOthersScript returns when no process but the idle one is left. It calls sleep.
const awaitOthersScript = processFunctions + `
while :; do
	left=
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		[ $pid != 1 ] && [ $pid != $$ ] && look $pid || continue
		slurp "$dir/environ"
		case $all in *` + idleVar + `=1*) continue ;; esac
		left=$pid
		break
	done
	[ -n "$left" ] || exit 0
	sleep 0.05 2>/dev/null || sleep 1
done
`
